"""Consumer groups: their readers and members, and the way of committed offsets to the target.

readers           what groups read, and the groups that a topic has to wait for
membership        members of a source group: through routers or direct
admission         the check that the target would admit a group's members
uncopied          records that a group has read and that the target does not hold yet
handover          committed offsets, carried from the source to the target
following         the promote of a group that follows
former            members that have moved, taken out of the group that they have left
rollback          the way of a promoted group back to the source
coupled_topics    the topics that a rollback takes back with a group
returning         positions that a rollback takes back, and what the source lacks
misplaced         members at the wrong cluster
watch             the watch on mirrored and promoted groups until `link finish`
withheld          topics that nobody reads although the source assigns them
audit             current positions of promoted groups, compared with the handed-over positions
external_offsets  positions that are kept outside Kafka
"""
