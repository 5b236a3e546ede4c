"""One mirrored partition as a machine without I/O.

A fetched answer becomes steps (`steps`): appends, holes, or a reason to stop. `lane` decides which batch may be
sent now and what each answer means. `mapped` is the same for partitions whose target offsets differ from the
source's.

    steps           a fetched partition as appends, holes, or a reason to stop
    reactions       the table of errors and what the mirror does about each
    lane            the machine of a partition with identical offsets
    mapped          the machine of a partition with mapped offsets
    direct_writers  producers that write to the source without a router
    tally           the partition's counters
"""
