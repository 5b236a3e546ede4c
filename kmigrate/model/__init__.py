"""Pure domain model: records of the state log, lifecycles of topics and groups, and the routes that follow.

Processes write records by decisions on the newest state. Each process folds the records into a `State`, and a router
derives its routing table from the state.

    ids, words, digits, moments
                          names and numbers of Kafka, and texts for people
    settings, security    how a cluster is reached
    records, presences    records of the state log, and reports of running processes
    record_json           the JSON of both
    lifecycle             phases of topics and groups
    state                 the folded state
    routes                the routing table
    door                  clients that a router admits
    registered            the refusal of a second router under a name
    sharing, stops        who copies a partition, and why a partition stands still
    lag                   how far a copy is behind
    offsetmap, mapledger  the offset map of a partition, and its stored chunks
    barrier               marks of producers at a barrier
    coupling              topics and groups that transactions couple
    members               marks of group members
    acls, grants          ACLs of mirrored topics and groups, and rights that kmigrate needs
    patterns, backtracking
                          names by regular expression
    verified              verified ranges
"""
