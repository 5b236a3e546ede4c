"""The tasks that copy: readers put fetched batches into lanes, and writers send the batches that the lanes release.

copier        the choice of the partitions, and the tasks around them
context       the clusters, limits and rights that all tasks of a copier share
lanes         all partitions of a copier, by leader
reading       fetch sessions with source leaders
same_rack     the followers that are read in place of leaders
writing       produce requests to target leaders
holes         offsets without records: control markers or empty transactions
markers       requests for control markers, of many partitions at once, with the batches before the markers
windows       batches that leave together with the hole behind them
window_notes  what status says of windows
min_insync    the topics that may be sent long windows
window_probe  the probe of a broker that may be sent windows
recovery      a partition's position, holes and offset map, from the target's own log
foreign       the search for other writers of a topic that is copied back
request_size  the adaptive size of requests and responses
throttle      the link's limit in bytes per second
disks         free room on the target's disks, and the decision whether the copy waits
"""
