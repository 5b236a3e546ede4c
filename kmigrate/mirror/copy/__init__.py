"""The tasks that copy: readers, writers, and what a partition needs beside them.

`copier` owns the tasks. `reading` keeps one fetch session per source leader and hands each answer to its
partitions. `writing` sends one batch per partition to the target's leader. `recovery` finds where a partition
stands on the target.

    copier        which partitions are copied, and the tasks around them
    lanes         all partitions of a copier, by leader
    reading       fetch sessions with source leaders
    writing       produce requests to target leaders
    holes         offsets without records: control markers or empty transactions
    recovery      where a partition stands, its holes, its offset map
    request_size  how many bytes one request carries
    throttle      the link's limit in bytes per second
    disks         free space on the target's disks: when the copy has to wait
"""
