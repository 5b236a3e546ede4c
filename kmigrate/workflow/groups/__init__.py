"""Consumer groups: who reads, who is a member where, and how committed offsets reach the target.

`following` promotes a group that follows, `handover` carries committed offsets over. `watch` looks at promoted
groups until `link finish`.

    readers           what groups read, and which of them a topic waits for
    membership        members of a source group, by router or direct
    lag               how far a group is behind
    admission         whether the target would let a group's members in
    handover          committed offsets from the source to the target, exactly
    following         the promote of one group that follows
    misplaced         members at the wrong cluster
    watch             the watch on groups until `link finish`
    withheld          topics that nobody reads although the source assigns them
    audit             handed-over positions as they stand now
    external_offsets  positions that are kept outside Kafka
"""
