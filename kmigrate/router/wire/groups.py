"""Answers requests of held groups, while a group is mirrored and not promoted.

A consumer that already moved must wait without noticing. Each coordination request is held (`groups.hold`). The router
then answers COORDINATOR_LOAD_IN_PROGRESS (14) in the shape of the request's version; most clients retry after 14 in
silence.

A JoinGroup gets an answer after which every client joins anew in silence: the answer of a coordinator to a member that
the coordinator does not know. A join without a member id gets MEMBER_ID_REQUIRED (79) and an id. A join with an id, a
join below version 4 and a join of a static member get UNKNOWN_MEMBER_ID (25). At 14 sarama reports an error to its
application after five joins, and kafkajs restarts its consumer.

A member that joined before its group was held is answered as by a broker that loads its groups. A SyncGroup gets
REBALANCE_IN_PROGRESS (27), so that the member joins anew and its JoinGroup waits; a Heartbeat gets success. At 14 to a
SyncGroup, Java's and aiokafka's consumers end, and aiokafka's also at 14 to a Heartbeat.

LeaveGroup passes: the target has no member to remove, and a client that closes should not wait. A delete of the group
or of committed offsets is answered at once. If held, the delete would reach the target before the members, the moment
the group opens. The offsets that the promote carried over would go; members would begin at an arbitrary position.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    blank,
    change_each,
    element_type,
    frame_answer,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.refusals import refusal, refusals

__all__ = [
    "DELETES",
    "HEARTBEATS",
    "asking_again",
    "group_error",
    "groups_of",
    "leaves_group",
    "wait_answer",
]


HEARTBEATS = frozenset({ApiKey.HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT})
"""Requests of members that ask for nothing: a client repeats them at another coordinator."""
DELETES = frozenset({ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE})
"""Held APIs that delete committed offsets."""
_Shape = Callable[[RequestHead, Message, int], Message]
_WAIT = Code.COORDINATOR_LOAD_IN_PROGRESS
_WAITING_MEMBER = "kmigrate-waits-for-the-promote"
"""Member id given to a join without an id; no coordinator ever sees the id, but logs of clients do."""
_JOIN_FIRST_WITH_ID = 4
"""First JoinGroup version in which a coordinator may ask a new member to join again with an id (KIP-394)."""
_OF_MEMBERS: dict[int, Code] = {ApiKey.SYNC_GROUP: Code.REBALANCE_IN_PROGRESS, ApiKey.HEARTBEAT: Code.NONE}
_FETCH_BATCHED = 8
_FETCH_FIRST_UNSTABLE = 7
"""First version in which OffsetFetch knows UNSTABLE_OFFSET_COMMIT."""
_FETCH_FIRST_OF_WHOLE = 4
"""First version at which no known client looks at partitions for an error of the whole answer."""
_ASKS_AGAIN = -1000
"""RD_KAFKA_OFFSET_STORED, at which librdkafka asks for the committed offset; other clients look at the error only."""


def groups_of(request: Message) -> list[str]:
    """Return the groups of a request: a single group, or several in a batched OffsetFetch, a describe or a delete."""
    for names in ("groups_names", "group_ids"):
        if hasattr(request, names):
            return [str(group) for group in getattr(request, names)]
    if hasattr(request, "groups"):
        return [str(getattr(group, "group_id", group)) for group in request.groups]
    return [str(request.group_id)]


def leaves_group(heartbeat: Message) -> bool:
    """Return whether a heartbeat says that its member leaves (KIP-848, KIP-932), once and without awaiting answers."""
    return int(getattr(heartbeat, "member_epoch", 0)) < 0


def wait_answer(head: RequestHead, request: Message, held: Collection[str]) -> bytes:
    """Return the answer of a held group, with the same code for every group of the request, held or not."""
    if head.api_key == ApiKey.JOIN_GROUP:
        return frame_answer(_join_again(head, request), head.correlation_id)
    return frame_answer(group_error(head, request, _OF_MEMBERS.get(head.api_key, _WAIT)), head.correlation_id)


def _join_again(head: RequestHead, request: Message) -> Message:
    """Return the answer to a join after which the member joins anew."""
    static = getattr(request, "group_instance_id", None) is not None
    if request.member_id or static or head.version < _JOIN_FIRST_WITH_ID:
        return group_error(head, request, Code.UNKNOWN_MEMBER_ID)
    return blank(answer_type(head), error_code=Code.MEMBER_ID_REQUIRED, member_id=_WAITING_MEMBER)


def group_error(head: RequestHead, request: Message, code: int) -> Message:
    """Return the answer that gives the same code for everything in a request."""
    shape = _SHAPES.get(head.api_key)
    return blank(answer_type(head), error_code=code) if shape is None else shape(head, request, code)


def _per_group(array: str) -> _Shape:
    """Return the shape of an answer with an element for each group of the request, in the array of this name."""

    def shape(head: RequestHead, request: Message, code: int) -> Message:
        kind = answer_type(head)
        each = element_type(kind, array)
        return blank(kind, **{array: tuple(blank(each, group_id=name, error_code=code) for name in groups_of(request))})

    return shape


def _commit(head: RequestHead, request: Message, code: int) -> Message:
    return refusals(answer_type(head), "topics", request.topics, code)


def _fetch(head: RequestHead, request: Message, code: int) -> Message:
    kind = answer_type(head)
    if head.version < _FETCH_BATCHED:
        return _no_positions(kind, request, head.version, code)
    group_type = element_type(kind, "groups")
    groups = (_no_positions(group_type, each, head.version, code, group_id=each.group_id) for each in request.groups)
    return blank(kind, groups=tuple(groups))


def _no_positions(kind: type[Message], asked: Message, version: int, code: int, **named: object) -> Message:
    """Return an OffsetFetch answer about a group that tells no committed offset.

    Up to version 3 the partitions bear the error: aiokafka looks for errors there alone, and without partitions applies
    `auto_offset_reset`. From version 4 on the partitions are left out, as brokers do: librdkafka forgets a partition
    that bears an error, and nobody reads the partition before the partition is assigned anew.

    COORDINATOR_LOAD_IN_PROGRESS becomes UNSTABLE_OFFSET_COMMIT of each partition where clients know that error. All of
    them ask again in silence. At an error of the whole answer, a librdkafka consumer whose assignment has changed since
    the request tells its application, and never asks again.
    """
    topic_type = element_type(kind, "topics")

    def topics(code: int, offset: int) -> tuple[Message, ...]:
        return tuple(refusal(topic_type, topic, code, committed_offset=offset) for topic in asked.topics or ())

    if code == _WAIT and version >= _FETCH_FIRST_UNSTABLE and asked.topics:
        return blank(kind, topics=topics(Code.UNSTABLE_OFFSET_COMMIT, _ASKS_AGAIN), **named)
    return blank(kind, error_code=code, topics=topics(code, -1) if version < _FETCH_FIRST_OF_WHOLE else (), **named)


def asking_again(answer: Message) -> Message:
    """Return an OffsetFetch answer after which each client asks again for partitions with UNSTABLE_OFFSET_COMMIT.

    A broker's −1 with this error makes librdkafka apply `auto.offset.reset` if the assignment has changed meanwhile.
    """
    if hasattr(answer, "groups"):
        return change_each(answer, ("groups",), asking_again)

    def again(part: Message) -> Message:
        unstable = code_of(part.error_code) == Code.UNSTABLE_OFFSET_COMMIT
        return replace(part, committed_offset=type(part.committed_offset)(_ASKS_AGAIN)) if unstable else part

    return change_each(answer, ("topics", "partitions"), again)


_SHAPES: dict[int, _Shape] = {
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _fetch,
    ApiKey.DESCRIBE_GROUPS: _per_group("groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _per_group("groups"),
    ApiKey.TXN_OFFSET_COMMIT: _commit,
    ApiKey.DELETE_GROUPS: _per_group("results"),
}
