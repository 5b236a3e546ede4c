"""One mirrored partition as a state machine without I/O.

A fetch response becomes steps (`steps`): appends, holes, or a reason to stop. `lane` decides which batch may be sent
now, and what each answer means. `mapped` does the same for partitions with target offsets of their own.

    steps           the steps that follow from a fetched partition
    reactions       the table of errors and the mirror's reactions
    transitions     the table of a lane's states and events
    lane            the state machine of a partition with identical offsets
    source_cursor   a lane's place in the source's log
    target_log      the target's log, and the batches on their way there
    report          a lane's stop and troubles, as others see them
    mapped          the state machine of a partition with mapped offsets
    direct_writers  producers that write to the source without a router
    tally           the partition's counters
"""
