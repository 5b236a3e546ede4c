"""The Kafka protocol without I/O: frames, the large messages by hand, and all others by kio.

frames       the header of a request or response
primitives   varints, lengths and strings
reader       a cursor over a message's fields
hot          Produce and Fetch
metadata     Metadata responses
offsets      ListOffsets
markers      WriteTxnMarkers and the log ends behind the markers
api          all other messages, encoded and decoded by kio
lengths      checks before kio reads a message
described    DescribeTransactions responses, which kio cannot read
codes        error codes and their meaning
sasl         SASL of a client
sasl_server  SASL of a server
"""
