"""The full screen of `kmigrate status --watch`; only `app`, `details` and `grid` import textual.

fitting  which columns of a table fit into a width
columns  the columns of topics, groups, partitions and members
rows     topics and groups as rows; order and filter
head     the lines above the tables: clock, processes, totals, alarms
grid     a table that changes only the cells that differ
details  the screens of one topic, of one group, and of everything
app      the application: keys, looks at the clusters, and the end
"""
