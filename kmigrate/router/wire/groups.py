"""Answers requests of held groups, while a group is mirrored and not promoted.

A consumer that already moved must wait without noticing. Each coordination request is held for a moment. The router
then answers COORDINATOR_LOAD_IN_PROGRESS (14) in the shape of the request's version; clients retry after 14 in silence.

A member that joined before its group was held is answered as by a broker that loads its groups. A SyncGroup gets
REBALANCE_IN_PROGRESS (27), so that the member joins anew and its JoinGroup waits. A Heartbeat gets success. At 14 to a
SyncGroup, Java's and aiokafka's consumers end, and aiokafka's also at 14 to a Heartbeat.

LeaveGroup passes: there is no member at the target to remove, and a client that closes should not wait.

A client that deletes the group or its committed offsets is answered at once and is not held. A held request would reach
the target the moment the group opens, before the members are there. The request would delete the offsets that the
promote has just carried over, and the members would begin at an arbitrary position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from kmigrate.protocol.api import ApiKey, answer_type, blank, element_type, frame_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead

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
_WAIT = Code.COORDINATOR_LOAD_IN_PROGRESS
_OF_MEMBERS: dict[int, Code] = {ApiKey.SYNC_GROUP: Code.REBALANCE_IN_PROGRESS, ApiKey.HEARTBEAT: Code.NONE}
_FETCH_BATCHED = 8
_FETCH_FIRST_UNSTABLE = 7
"""First version in which OffsetFetch knows UNSTABLE_OFFSET_COMMIT."""
_FETCH_FIRST_OF_WHOLE = 4
"""First version at which no known client looks at partitions for an error of the whole answer."""
_ASKS_AGAIN = -1000
"""RD_KAFKA_OFFSET_STORED, at which librdkafka asks for the committed offset; other clients look at the error only."""


def groups_of(request: Any) -> list[str]:
    """Return the groups of a request: a single group, or several in a batched OffsetFetch, a describe or a delete."""
    for names in ("groups_names", "group_ids"):
        if hasattr(request, names):
            return [str(group) for group in getattr(request, names)]
    if hasattr(request, "groups"):
        return [str(getattr(group, "group_id", group)) for group in request.groups]
    return [str(request.group_id)]


def leaves_group(heartbeat: Any) -> bool:
    """Return whether a heartbeat says that its member leaves (KIP-848, KIP-932).

    A member says so once, and does not wait for the answer.
    """
    return int(getattr(heartbeat, "member_epoch", 0)) < 0


def wait_answer(head: RequestHead, request: Any, held: Collection[str]) -> bytes:
    """Return the answer of a held group, with the same code for every group of the request, held or not."""
    return frame_answer(group_error(head, request, _OF_MEMBERS.get(head.api_key, _WAIT)), head.correlation_id)


def group_error(head: RequestHead, request: Any, code: int) -> Any:
    """Return the answer that gives the same code for everything in a request."""
    kind = answer_type(head)
    return _SHAPES.get(head.api_key, _plain)(kind, request, head.version, code)


def _plain(kind: type[Any], _: Any, __: int, code: int) -> Any:
    return blank(kind, error_code=code)


def _describe(kind: type[Any], request: Any, _: int, code: int) -> Any:
    group_type = element_type(kind, "groups")
    return blank(kind, groups=tuple(blank(group_type, group_id=group, error_code=code) for group in groups_of(request)))


def _delete(kind: type[Any], request: Any, _: int, code: int) -> Any:
    result_type = element_type(kind, "results")
    return blank(kind, results=tuple(blank(result_type, group_id=g, error_code=code) for g in request.groups_names))


def _commit(kind: type[Any], request: Any, _: int, code: int) -> Any:
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    topics = []
    for topic in request.topics:
        parts = tuple(
            blank(part_type, partition_index=part.partition_index, error_code=code) for part in topic.partitions
        )
        topics.append(_named(topic_type, topic, partitions=parts))
    return blank(kind, topics=tuple(topics))


def _fetch(kind: type[Any], request: Any, version: int, code: int) -> Any:
    if version < _FETCH_BATCHED:
        return _no_positions(kind, request, version, code)
    group_type = element_type(kind, "groups")
    groups = tuple(_no_positions(group_type, g, version, code, group_id=g.group_id) for g in request.groups)
    return blank(kind, groups=groups)


def _no_positions(kind: type[Any], asked: Any, version: int, code: int, **named: Any) -> Any:
    """Return an OffsetFetch answer about a group that tells no committed offset.

    aiokafka (up to version 3) looks for errors at partitions alone, and takes an answer without partitions for "no
    committed offsets": then `auto_offset_reset` decides. So the partitions bear the error up to version 3.

    From version 4 on the partitions are left out, as brokers leave them out. librdkafka forgets a partition that
    bears an error, and nobody reads the partition before the partition is assigned anew.

    COORDINATOR_LOAD_IN_PROGRESS becomes UNSTABLE_OFFSET_COMMIT of each partition where clients know that error. All of
    them ask again in silence. If the assignment of a librdkafka consumer has changed since the request, librdkafka
    tells its application of an error of the whole answer, and never asks again.
    """
    if code == _WAIT and version >= _FETCH_FIRST_UNSTABLE and asked.topics:
        unstable = _partitions(kind, asked, Code.UNSTABLE_OFFSET_COMMIT, _ASKS_AGAIN)
        return blank(kind, topics=unstable, **named)
    topics = _partitions(kind, asked, code, -1) if version < _FETCH_FIRST_OF_WHOLE else ()
    return blank(kind, error_code=code, topics=topics, **named)


def asking_again(answer: Any) -> Any:
    """Return an OffsetFetch answer after which each client asks again for partitions with UNSTABLE_OFFSET_COMMIT.

    A broker tells offset -1 with this error. If the assignment has changed since the request, librdkafka takes -1 for
    "there is no committed offset", and applies `auto.offset.reset`.
    """
    if hasattr(answer, "groups"):
        return dataclasses.replace(answer, groups=tuple(map(asking_again, answer.groups)))
    topics = []
    for topic in answer.topics:
        parts = tuple(
            dataclasses.replace(part, committed_offset=type(part.committed_offset)(_ASKS_AGAIN))
            if code_of(part.error_code) == Code.UNSTABLE_OFFSET_COMMIT
            else part
            for part in topic.partitions
        )
        topics.append(dataclasses.replace(topic, partitions=parts))
    return dataclasses.replace(answer, topics=tuple(topics))


def _partitions(kind: type[Any], asked: Any, code: int, offset: int) -> tuple[Any, ...]:
    """Return all partitions of the request, each with this error and offset."""
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    told = {"committed_offset": offset, "committed_leader_epoch": -1, "error_code": code}
    topics = []
    for topic in asked.topics or ():
        parts = tuple(blank(part_type, partition_index=index, **told) for index in topic.partition_indexes)
        topics.append(_named(topic_type, topic, partitions=parts))
    return tuple(topics)


def _named(kind: type[Any], topic: Any, **values: Any) -> Any:
    """Return a topic of an answer, by the name or the id that the request used."""
    for name in ("name", "topic_id"):
        if hasattr(topic, name):
            values[name] = getattr(topic, name)
    return blank(kind, **values)


_Shape = Callable[[type[Any], Any, int, int], Any]
_SHAPES: dict[int, _Shape] = {
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _fetch,
    ApiKey.DESCRIBE_GROUPS: _describe,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe,
    ApiKey.TXN_OFFSET_COMMIT: _commit,
    ApiKey.DELETE_GROUPS: _delete,
}
