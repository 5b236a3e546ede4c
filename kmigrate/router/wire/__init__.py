"""Kafka requests and responses as the router reads, refuses, splits and rewrites them. One file per family of APIs.

Hot messages (Produce, Fetch, Metadata) are walked by hand and changed in place; kio reads and writes all others.

    apis            the table of APIs: versions and treatment
    api_versions    ApiVersions answers
    answer_errors   error codes in answers
    refusals        elements of answers that refuse elements of requests
    node_ids        target brokers as clients see them
    topic_ids       topic ids of each cluster
    addresses       node ids and addresses in responses, and node ids in requests
    metadata        the topics of a Metadata response
    old_metadata    Metadata requests before version 4
    config_resources  configuration resources: brokers that are named by node id, values of mirrored topics
    own_topics      kmigrate's own topics, hidden from clients
    produce         Produce requests and responses
    old_produce     Produce requests before version 3, whose message sets become batches
    fetch           Fetch responses, changed in place
    fetch_session   fetch sessions (KIP-227): requests, and how far a response brings its reader
    aligning        responses about partitions that the mirror still aligns
    transactions    transaction requests and responses, producer ids
    groups          requests of held groups
    followed        requests of groups that follow
    heartbeats      ConsumerGroupHeartbeat and ConsumerGroupDescribe
    trials          trial joins
    listed          ListGroups
    share           share groups (KIP-932)
    admin           admin requests on mirrored topics
"""
