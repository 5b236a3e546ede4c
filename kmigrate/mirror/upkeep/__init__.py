"""Target topics while they are mirrored: created, aligned, and kept in step with the source until their promote.

activation         the preparation of a link before the first copy
lease_holder       the work of the lease's holder, which is most of this package's work
topics             the target topic: created with the source's shape
configs            configs of the target topic, relaxed while the topic is mirrored
align              the target's log start
forecast           a forecast of the copy: identical or mapped offsets, holes, bytes
hiding             the wait for routers before fillers are written
source_changes     partitions, configs and ACLs that follow the source
acls               ACLs of mirrored topics and groups on the target
patterns           topics and groups that match an expression of the link
stops              each process's stopped partitions, written into the topics' records
way_back_notes     notes about copies back, kept at the source for the loss of the target
direct_writer_log  each process's direct writers, written into the state log
"""
