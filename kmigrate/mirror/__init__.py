"""The mirror: copies raw record batches from source leaders to target leaders, offset for offset, by compare-and-set.

`engine` follows the state log and copies this process's share of the partitions. The process that holds the link's
lease also maintains the link. A reader for each source leader fills the partitions' queues. Writers for each target
leader send the batches that the partitions release.

    settings   the settings of a mirror process, as a frozen value
    link       a link as a mirror process knows the link
    engine     a link's mirror in one process
    metrics    the mirror's metrics
    partition  PURE: the state machine of one partition: what may be sent, and what each answer means
    copy       readers, writers, holes and recovery
    sharing    the lease, the live processes, and the assignment of partitions
    upkeep     target topics: creation, configs, ACLs, log starts, and the work of the lease's holder
    bulk       the same copier inside Spark tasks
"""
