"""The promote of a topic: fence, drain, barrier, lag zero, flip; or back to mirroring with a reason.

topic           the promote of one topic, by records
fence           the steps that a promote and a rollback share
fence_hook      the hook before a fence
fence_rounds    the order of the fences of many topics
direct_writers  producers that write to the source without a router
size_limit      the size limit of a source topic, by which the source refuses writes
sealing         a fence that the source broker holds in place of a silent router
revoking        identities of transactional producers, revoked at the source
barrier         the last sequence of each producer below the barrier, and the last check before the flip
rollback        the rollback of one topic, by records: the promote in the other direction
transactions    transactions on a topic that is rolled back
outcome         the end of a promote: the records, ACLs before the flip, configs after the flip
closing         the seal of the source topic after the flip
denying         deny ACLs that keep other writers out of the source while a topic is copied back
late_writes     the watch on the source after the flip
evidence        what the report of a promote or rollback says
late_findings   late writes, named for `status`, `verify` and `link finish`
"""
