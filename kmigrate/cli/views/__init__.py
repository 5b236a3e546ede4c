"""Model values as rich renderables; nothing here contacts a cluster or decides.

    tables     links, topics, groups and parity
    snapshots  `status`
    lags       a lag in a cell
    routers    a router's limits
    plans      changes and findings of a plan
    leaving    clients that are still at routers
    bulk       copies by Spark
    migration  the demo's report

A view gets values and returns text or a table; `cli.words` makes names from outside harmless.
"""
