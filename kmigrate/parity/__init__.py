"""The meaning of "the copy is the same", decided without touching a cluster. Pure.

`spark.parity` reads both clusters and asks this package. Digests of buckets show which buckets differ. The records of
differing buckets are read again, aligned and judged, and the report holds the named differences.

    plan       the offsets to compare, cut into buckets
    trail      the differing buckets that are read again, step by step
    alignment  the longest shared order of two record lists
    verdict    the names of the differences
    lookups    the comparison of look-ups by time
    report     the outcome as a value, and the records over their time
"""
