"""The tasks that copy: readers, writers, and the other work for a partition.

Readers put fetched batches into lanes. Writers send the batches that the lanes release. Recovery and holes read the
target's own log.

copier        the choice of the partitions, and the tasks around them
context       the clusters, limits and rights that all tasks of a copier share
lanes         all partitions of a copier, by leader
reading       fetch sessions with source leaders
writing       produce requests to target leaders
holes         offsets without records: control markers or empty transactions
recovery      a partition's position, holes and offset map
request_size  the adaptive size of requests and responses
throttle      the link's limit in bytes per second
disks         free room on the target's disks, and the decision whether the copy waits
"""
