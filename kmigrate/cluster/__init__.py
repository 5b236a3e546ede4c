"""One cluster: metadata, requests to leaders and coordinators, raw fetches and appends, admin work.

Connections and metadata:
    client            connections, metadata, and most requests
    metadata          metadata as brokers report it
    request_batcher   many questions in a single request
    leader_request    a request that only a leader can answer
    broker_health     brokers that do not answer
    leadership_check  a cross-check of leaders with other brokers
    logins            pauses after a refused login
    versions          the check for a cluster that is too old
    advertised        the check of advertised addresses
    missing_rights    the name of a missing right

Logs:
    offsets                   ListOffsets
    witnesses                 log ends with proof that the leader still leads
    fetcher                   fetch sessions and single fetches
    partition_tail            a reader that follows a partition
    producer                  the tail of a writer by compare-and-set
    newest_batches            the newest batch of each producer
    batch_search, batch_peek  a look for a certain batch, and at the next batch
    gap_probe                 wide gaps between offsets
    append_refusal            the check whether a leader accepts writes
    log_dirs                  sizes of topics and volumes

Producers and transactions:
    producer_expiration  how long brokers remember producers
    producer_load        the cost of a longer memory
    transactions         open transactions
    coordinators         requests to the coordinator of a transactional id

Groups:
    committed_offsets  committed offsets
    group_kinds        the protocol type
    group_members      the members
    group_hold         a placeholder that keeps members out
    group_place        a placeholder that keeps a group in the new protocol

Admin:
    admin  topics, configs, groups and ACLs by librdkafka
    acls   ACLs as a single broker knows them
"""
