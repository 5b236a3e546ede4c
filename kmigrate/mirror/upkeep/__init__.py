"""Target topics while they are mirrored. The holder of the link's lease does all of this.

`lease_holder` creates topics, moves log starts and assigns partitions. `source_changes` follows partitions, configs
and ACLs of the source. What stopped is written into the state log, so that no restart goes on in silence.

    activation         what a link needs before its first copy
    lease_holder       the rounds of the lease's holder
    topics             the target topic: created with the source's shape
    configs            configs of the target topic, relaxed while it is mirrored
    align              the target's log start
    forecast           what a copy will be like: identical or mapped, holes, bytes
    hiding             the wait for routers before fillers are written
    source_changes     partitions, configs and ACLs of the source, followed
    acls               ACLs of mirrored topics and groups on the target
    patterns           topics and groups that match an expression of the link
    stops              stopped partitions, written into the topics' records
    direct_writer_log  direct writers, written into the state log
"""
