"""Reads of one client connection.

handler       Fetch requests: passed, or answered by what was read ahead, with the partitions that a client may read
out_of_range  readers whose position the copy has not reached: they come again
list_offsets  ListOffsets: log ends that never fall below what was acknowledged, look-ups by time
"""
