"""The distribution of a link's partitions over its processes.

Processes judge each other by their presences. One process holds the lease and assigns the partitions.

    membership  the live processes of a link
    lease       the choice of the process that maintains the link
    assignment  PURE: a balanced and sticky assignment of partitions
"""
