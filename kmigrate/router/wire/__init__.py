"""Kafka requests and responses as the router reads, refuses, splits and rewrites them. One file per family of APIs.

`apis` is the table of APIs: versions and treatment. Hot messages (Produce, Fetch, Metadata) are walked by
hand and changed in place; all others are read and written by kio.

    apis            the table of APIs
    api_versions    ApiVersions answers
    node_ids        target brokers as clients see them
    topic_ids       topic ids of each cluster
    addresses       node ids and addresses in responses
    metadata        the topics of a Metadata response
    broker_names    brokers that are named by node id in configuration resources
    quorum          node ids in partition layouts, reassignments and the quorum
    own_topics      kmigrate's own topics, hidden from clients
    produce         Produce requests and responses
    producer_ids    producer ids for clients that may write at the source only
    fetch           Fetch responses, changed in place
    fetch_requests  Fetch requests and fetch sessions (KIP-227)
    fetch_ends      how far a Fetch response brings its reader
    not_ready       responses about partitions that the mirror still aligns
    transactions    transaction requests and responses
    groups          requests of held groups
    followed        requests of groups that follow
    heartbeats      ConsumerGroupHeartbeat and ConsumerGroupDescribe
    trials          trial joins
    listed          ListGroups
    share           share groups (KIP-932)
    admin           admin requests on mirrored topics
    configs         DescribeConfigs of mirrored topics
"""
