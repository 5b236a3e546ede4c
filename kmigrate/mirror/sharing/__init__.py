"""The distribution of a link's partitions over its processes, which judge each other by their presences.

membership  the live processes of a link
lease       the choice of the process that maintains the link, and assigns the partitions
assignment  PURE: a balanced and sticky assignment of partitions
"""
