"""The copier inside Spark tasks, up to the hand-over to the mirror processes.

ranges     PURE: the offset ranges of partitions, and their distribution to tasks
remaining  the offsets and bytes that are left to copy
claims     the claims by which a try of a task owns partitions
task       a try of a task: the mirror's copier over the task's partitions
"""
