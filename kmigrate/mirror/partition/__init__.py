"""One mirrored partition as a state machine without I/O.

steps           the steps that follow from a fetched partition: appends, holes, or a reason to stop
reactions       the table of errors and the mirror's reactions
transitions     the table of a lane's states and events
lane            the state machine of a partition with identical offsets: what may be sent, what each answer means
window          batches and the holes behind them that leave together
lane_parts      the parts of a lane: source cursor, target log and report
mapped          the state machine of a partition with mapped offsets
direct_writers  producers that write to the source without a router
tally           the partition's counters
"""
