"""A link's mirror in one process: which copies the process makes, in either direction.

engine   follows the state log, and copies this process's share of the partitions
reverse  the copy from the target back to the source
"""
