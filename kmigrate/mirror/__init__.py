"""The mirror: copies raw record batches from source leaders to target leaders, offset for offset, by compare-and-set.

`engine` follows the state log. It holds the link's lease or copies its share of the partitions. One reader per
source leader feeds the partitions; one writer per target leader sends what they release.

    settings   how one mirror process runs, as one frozen value
    engine     one link in one process: copies its share, and looks after the link while it holds the lease
    metrics    the mirror's metrics
    partition  PURE: one partition's machine: what may be sent, and what each answer means
    copy       readers, writers, holes, and recovery around the partitions
    sharing    the lease, the living processes, and who copies which partition
    upkeep     target topics: creation, configs, ACLs, log starts, and what the lease's holder does
    bulk       the same copier inside tasks of Spark
"""
