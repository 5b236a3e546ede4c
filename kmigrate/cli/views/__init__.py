"""Model values as rich renderables; nothing here contacts a cluster or decides.

tables        links, topics, groups and parity
snapshots     a snapshot of a migration
group_detail  one group: members with their partitions, and the lag of each partition
stragglers    the clients that pass the routers by
lags          a lag in a cell
routers       limits of routers, and clients that are still connected
plans         plans and findings
acls          the rights that kmigrate needs, and `kafka-acls.sh` commands
bulk          a bulk copy
target_lost   what the source holds once the target is gone
rehearsals    the outcome of a rehearsal
reports       reports of promotes and rollbacks
migration     the report of a judged migration
"""
