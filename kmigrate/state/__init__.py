"""The state log, the only place where the engines meet.

topics       the topics: names, creation, configs, checks
log          the state log and the presence log on their cluster
fold         the state out of the log's batches
codec        the bytes of records and presences, and records that kmigrate did not write
parts        large presences in parts: changes, and all entries bit by bit
read         a single read of the whole state log
offset_maps  the topic of offset maps
checks       other principals that may write, stray records, two clusters with the same cluster id
"""
