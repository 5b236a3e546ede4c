"""Transactions of one client connection. A transaction meets one cluster, and the router knows which.

handler            the transaction APIs, by lettered rules
request            one transaction request on its way through the rules
identities         producer ids and epochs of a transactional id, made known at both clusters
source_identities  identities that only a source knows
locate             where a transactional id has a transaction open, and whether it has ended elsewhere
add_partitions     partitions that enter a transaction at the target
next_epoch         the error code at which a client asks for the next epoch
end_txn            how a transaction ends, and what a repeated EndTxn is answered
coordinator        the client's connections to transaction coordinators of a source
"""
