"""The copier inside tasks of Spark, up to the hand-over to the mirror.

ranges     PURE: which offsets of which partitions, by which tasks
remaining  how much is left to copy
claims     how one try of a task comes to own partitions
task       one try of a task: the mirror's copier over its partitions
"""
