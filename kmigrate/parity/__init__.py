"""The meaning of "the copy is the same", decided without touching a cluster.

- `plan` says which offsets are compared, and in which buckets.
- `alignment` finds the longest shared order of two record lists.
- `verdict` names the differences, and `trail` decides which differing buckets are read again.
- `lookups` compares look-ups by time, and `timeline` lays the differences over the records' time.
- `report` is the value that everything else shows.
"""
