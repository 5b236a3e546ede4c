"""The state log, the only place where the engines meet.

log          the state log and the presence log on their cluster
fold         the state out of the log's batches
codec        the bytes of records and presences
whole, look  a read of the whole log, and a single read of all topics
create       the topics, created or checked
topics       the metadata of a state topic
strays       records that kmigrate did not write
access       other principals that may write
identity     two clusters with the same cluster id
offset_maps  the topic of offset maps
"""
