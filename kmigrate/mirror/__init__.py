"""The mirror: copies raw record batches from source leaders to target leaders, offset for offset, by compare-and-set.

A reader for each source leader fills the partitions' queues. Writers for each target leader send released batches.

    settings   the settings of a mirror process, as a frozen value
    link       a link as a mirror process knows the link
    metrics    the mirror's metrics
    process    a link's mirror in one process: the engine that follows the state log, and the copy back to the source
    partition  PURE: the state machine of one partition: what may be sent, and what each answer means
    copy       readers, writers, holes and recovery
    sharing    the lease, the live processes, and the assignment of partitions
    upkeep     target topics: creation, configs, ACLs, log starts, and the work of the lease's holder
    bulk       the same copier inside Spark tasks
"""
