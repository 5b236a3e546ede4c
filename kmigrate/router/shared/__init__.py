"""What all client connections of one router share.

`state` holds everything in one place; the other files are its parts. Each part is pure: nothing here sends or waits.

    state                all shared state, and the interfaces through which handlers act
    conversation         generators that ask a cluster and go on with the response
    forwards             writes in flight to the source, and the last acknowledged sequence of each producer
    gate                 the first write of each producer at the target after a promote
    open_transactions    transactions that are open, at the source or at the target
    deferred_partitions  partitions that enter a transaction at the target with their first batch
    followers            members of groups that follow, by group
    pending_positions    committed offsets that a client has asked for and was not told
    waiting_groups       held groups whose members wait at this router
    session_timeouts     the session timeouts that members ask for
    missing_credentials  clients as whom the router cannot log in to a source
    trial_results        results of trial joins, and members that the target refuses
    served               latencies, held time and errors of the answers to clients
    share_members        members of share groups
    aligning_partitions  partitions that no client may read while the mirror writes fillers
    time_lookups         look-ups by time in mirrored logs
    read_ahead           fetches that are sent before the client asks
    sequencer            answers in the order of their requests
    limits               connections, memory and idle time per router
    kept_out             clients with a request that the router does not take
    fallback_routers     other routers that a client can fall back to
    client_handoff       how clients leave a router after `link finish`
"""
