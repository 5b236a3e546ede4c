"""Which process of a link copies which partition.

Processes judge each other by their words in the presence log. One process holds the lease and assigns partitions.

    membership  the living processes of a link
    lease       the one process that looks after the link
    assignment  PURE: a balanced and sticky assignment of partitions
"""
