"""A snapshot of a migration, computed from offsets of both clusters, and what follows from snapshots.

snapshot       the whole snapshot
group_figures  both clusters' answers about groups: members, committed offsets, lags
lags           the lags of copies and groups, and the offsets that are left to copy
progress       rates, copied parts and times left, from successive snapshots
attention      what needs attention, with the reason of each stop and wait
stragglers     clients that pass the routers by, and what becomes of their records
timeline       what happened to links, topics and groups, as far as this process has seen
missing_credentials  clients as whom the routers cannot log in to a source, and the lines for their table
aftermath      what has become of a promote or rollback since its report
document       the JSON document of `status`
group_detail   one group: members with their partitions, and the lag of each partition
"""
