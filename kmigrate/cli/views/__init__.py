"""Model values as rich renderables; nothing here contacts a cluster or decides.

tables     links, topics, groups and parity
snapshots  a snapshot of a migration
lags       a lag in a cell
routers    a router's limits
plans      plans and findings
bulk       a bulk copy
leaving    clients that are still connected to routers
migration  the report of a judged migration
"""
