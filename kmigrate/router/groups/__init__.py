"""Consumer groups that follow: members at the router are members of the source's group until the promote.

handler      classic group requests, committed offsets, and the promote of a group
heartbeats   ConsumerGroupHeartbeat (KIP-848): topic ids of each cluster, and how a promote makes members join anew
coordinator  the client's connections to group coordinators of a source
hold         how long a request of a held group waits, before the client is told to come again
trials       trial joins: whether the target would let each member in
"""
