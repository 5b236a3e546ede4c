"""The promote of one topic: fence, drain, barrier, lag zero, flip; or back to mirroring with a reason.

`topic` drives the promote by records. `sealing` and `revoking` replace the word of a router that does not answer.
`late_writes` watches the source after the flip.

    topic           the promote of one topic
    fence_rounds    whose turn it is where many topics are promoted at once
    direct_writers  producers that write to the source without a router
    sealing         a fence that the source broker holds in place of a silent router
    revoking        producer identities taken back at the source
    barrier_table   the last sequence of each producer below the barrier
    final_check     what both clusters say once more before the flip
    settling        ACLs before the flip, configs after it
    outcome         how a promote ends in the topic's record
    closing         the seal of the source topic after the flip
    late_writes     the watch on the source after the flip
    late_batches    batches at or beyond the barrier, read from the source
    late_findings   late writes, named for `status.snapshot`, `verify` and `link finish`
"""
