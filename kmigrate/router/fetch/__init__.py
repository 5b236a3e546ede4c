"""Reads of one client connection.

`handler` passes Fetch requests to the target and shows each client the partitions that it may read. `out_of_range`
tells a reader beyond the copy to come again. `list_offsets` answers log ends and look-ups by time.

    handler       Fetch requests: passed, or answered by what was read ahead
    out_of_range  readers whose position the copy has not reached
    list_offsets  ListOffsets: log ends that never fall below what was acknowledged
"""
