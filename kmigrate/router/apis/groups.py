"""Requests of held groups: what they are told while the group is mirrored and not promoted (AL-30).

A consumer that already moved must wait without noticing: each of its coordination requests is held for a
moment and then answered COORDINATOR_LOAD_IN_PROGRESS (14), which clients retry in silence, in the shape of the
request's own version. LeaveGroup passes: there is no member at the target to remove, and a client that closes
should not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.apis.blank import blank, element, frame_answer

__all__ = ["HELD_APIS", "groups_of", "wait_answer"]

OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP = 8, 9, 11, 12, 14
CONSUMER_GROUP_HEARTBEAT = 68

HELD_APIS = frozenset({OFFSET_COMMIT, OFFSET_FETCH, JOIN_GROUP, HEARTBEAT, SYNC_GROUP, CONSUMER_GROUP_HEARTBEAT})
_WAIT = Code.COORDINATOR_LOAD_IN_PROGRESS
_FETCH_TOP_ERROR, _FETCH_BATCHED = 2, 8


def groups_of(request: Any) -> list[str]:
    """The groups that a request is about: one, or several in a batched OffsetFetch."""
    if hasattr(request, "groups"):
        return [str(group.group_id) for group in request.groups]
    return [str(request.group_id)]


def wait_answer(head: RequestHead, request: Any, held: Collection[str]) -> bytes:
    """Code 14 for the whole request; in a batched OffsetFetch for every group, held or not, to keep it one answer."""
    kind = entity(head.api_key, head.version, "response")
    shape = _SHAPES.get(head.api_key, _plain)
    return frame_answer(shape(kind, request, head.version), head.correlation_id)


def _plain(kind: type[Any], _: Any, __: int) -> Any:
    return blank(kind, error_code=_WAIT)


def _commit(kind: type[Any], request: Any, _: int) -> Any:
    topic_type = element(kind, "topics")
    part_type = element(topic_type, "partitions")
    topics = []
    for topic in request.topics:
        parts = tuple(
            blank(part_type, partition_index=part.partition_index, error_code=_WAIT) for part in topic.partitions
        )
        topics.append(_named(topic_type, topic, partitions=parts))
    return blank(kind, topics=tuple(topics))


def _fetch(kind: type[Any], request: Any, version: int) -> Any:
    if version >= _FETCH_BATCHED:
        group_type = element(kind, "groups")
        groups = tuple(blank(group_type, group_id=g.group_id, error_code=_WAIT) for g in request.groups)
        return blank(kind, groups=groups)
    if version >= _FETCH_TOP_ERROR:
        return blank(kind, error_code=_WAIT)
    topic_type = element(kind, "topics")
    part_type = element(topic_type, "partitions")
    topics = []
    for topic in request.topics or ():
        parts = tuple(
            blank(part_type, partition_index=index, committed_offset=-1, error_code=_WAIT)
            for index in topic.partition_indexes
        )
        topics.append(_named(topic_type, topic, partitions=parts))
    return blank(kind, topics=tuple(topics))


def _named(kind: type[Any], topic: Any, **values: Any) -> Any:
    """A topic of an answer, by the name or the id that the request used."""
    for name in ("name", "topic_id"):
        if hasattr(topic, name):
            values[name] = getattr(topic, name)
    return blank(kind, **values)


_Shape = Callable[[type[Any], Any, int], Any]
_SHAPES: dict[int, _Shape] = {OFFSET_COMMIT: _commit, OFFSET_FETCH: _fetch}
