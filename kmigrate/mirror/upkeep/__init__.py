"""Target topics while they are mirrored. The holder of the link's lease does most of this work.

`lease_holder` creates topics, moves log starts and assigns partitions. `source_changes` applies the source's changes of
partitions, configs and ACLs. Each mirror process writes its own stopped partitions and direct writers into the state
log, so that no restart passes over them in silence.

    activation         the preparation of a link before the first copy
    lease_holder       the work of the lease's holder
    topics             the target topic: created with the source's shape
    configs            configs of the target topic, relaxed while the topic is mirrored
    align              the target's log start
    forecast           a forecast of the copy: identical or mapped offsets, holes, bytes
    hiding             the wait for routers before fillers are written
    source_changes     partitions, configs and ACLs that follow the source
    acls               ACLs of mirrored topics and groups on the target
    patterns           topics and groups that match an expression of the link
    stops              stopped partitions, written into the topics' records
    direct_writer_log  direct writers, written into the state log
"""
