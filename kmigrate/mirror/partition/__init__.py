"""One mirrored partition as a state machine without I/O.

A fetch response becomes steps (`steps`): appends, holes, or a reason to stop. `lane` decides which batch may be sent
now, and what each answer means. `mapped` does the same for partitions with target offsets of their own.

    steps           the steps that follow from a fetched partition
    reactions       the table of errors and the mirror's reactions
    transitions     the table of a lane's states and events
    lane            the state machine of a partition with identical offsets
    lane_parts      the parts of a lane: source cursor, target log and report
    mapped          the state machine of a partition with mapped offsets
    direct_writers  producers that write to the source without a router
    tally           the partition's counters
"""
