"""Pure domain model: records of the state log, lifecycles of topics and groups, and the routes that follow.

Nothing here reads a clock or performs I/O. A decision is a function of the state that returns a record.

State:
    records      records of the state log: the decisions
    presences    records of the presence log: reports of running processes
    reports      the report of a promote or rollback
    record_json  the JSON of all three
    state        a snapshot of all decisions, folded record by record
    lifecycle    the state machines of a mirrored topic and a mirrored group
    routes       the routing table that follows from the state
    registered   a router that is registered in the state log
    members      marks of group members
    rehearsals   names of a rehearsal's link, shadow topics and group
    way_back_notes  notes about a copy back, kept at the source
    eras         the direction of a topic's copy, its producer id and its first offsets
    coupling     topics and groups that transactions couple
    barrier      marks of producers at a barrier
    stops        why a partition stands still

Offsets and figures:
    offset_map         the offset map of one partition
    offset_map_ledger  which runs of an offset map are stored
    sharing            which process copies which partition
    lag                how far a copy is behind
    verified           ranges that earlier checks found equal

Access and settings:
    acls             ACLs of the target from the source's ACLs
    grants           the least rights that kmigrate needs
    rights           which of these rights a principal has
    acl_commands     `kafka-acls.sh` commands that give rights
    listener_access  which clients a router admits
    security         TLS and SASL of a cluster
    settings         how a cluster is reached
    link_settings    what a link makes of its target, and the limits of its promotes
    patterns         topics and groups by regular expression
    backtracking     whether an expression matches in bounded time
    ids              names and numbers of Kafka's protocol
    digits           whole numbers as people type them
    moments          moments and spans for people
    nearest          the hint for a misspelt word
    countdown        how long until a falling number reaches nothing
    amounts          sizes, rates and spans in cells
    words            names quoted for a shell
"""
