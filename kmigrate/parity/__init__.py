"""The meaning of "the copy is the same", decided without touching a cluster. Pure.

`spark.parity` reads both clusters and asks this package, which judges the records of buckets with differing digests.

    plan       the offsets to compare, cut into buckets
    trail      the differing buckets that are read again, step by step
    alignment  the longest shared order of two record lists
    verdict    the names of the differences
    lookups    the comparison of look-ups by time
    report     the outcome as a value, and the records over their time
"""
