"""One cluster: metadata, requests to leaders and coordinators, raw fetches and appends, admin work.

client         connections, metadata, and most requests
metadata       metadata as brokers report it
requests       API versions, ListOffsets, and many questions sent as one request
kafka_version  the version of Kafka that brokers tell
health         brokers that are silent, behind, or refuse our login
brokers        advertised addresses and log directories of brokers
leaders        waits for a leader's answer, and log ends with proof that the leader still leads

fetch                fetch sessions, single fetches, and a reader that follows a partition
append               the tail of a writer by compare-and-set, and the check whether a leader accepts writes
log_probes           the newest batch of each producer, a certain batch, the next batch, wide gaps
producer_expiration  how long brokers remember producers, and the cost of a longer memory

transactions       open transactions, and requests to the coordinator of a transactional id
coordinators       requests about many groups, each to the coordinator of hundreds of them
groups             protocol type, members, assignments and placeholder members of groups
committed_offsets  committed offsets

librdkafka  the configuration of a librdkafka client
admin       topics, configs, groups and ACLs by librdkafka
acls        ACLs as a single broker knows them, and the name of a missing right
rights      the operations that brokers allow to kmigrate's principal
"""
