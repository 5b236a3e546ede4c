"""What "the copy is the same" means, decided without touching a cluster.

plan says which offsets are compared and in which buckets, alignment finds the longest shared order of two
record lists, verdict names what differs, report is the value that everything else shows.
"""
