"""Translates topic ids in ConsumerGroupHeartbeat and ConsumerGroupDescribe messages of groups that follow.

Each side gets its own topic ids. Answers to heartbeats tell a member of the new protocol (KIP-848) which partitions are
its own; heartbeats say which partitions the member has. Both sides leave out what has not changed (`None`). A heartbeat
with all fields, sent at a join and after every error, gets the whole assignment as an answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from uuid import UUID

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    blank,
    change_each,
    decode_request,
    entity,
    field_type,
    frame_answer,
    read_answer,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.groups import group_error
from kmigrate.router.wire.topic_ids import TopicIds

__all__ = [
    "Partitions",
    "from_target",
    "leaving",
    "letting_go",
    "needs_regex",
    "owned",
    "says_everything",
    "sooner",
    "with_source_ids",
    "with_target_ids",
    "with_target_names",
]

Partitions = frozenset[tuple[UUID | None, int]]
"""Partitions by topic id."""
_UNCHANGED = dt.timedelta(milliseconds=-1)
_JOINS, _LEAVES = 0, -1
_OFTEN = dt.timedelta(seconds=0.5)
"""Heartbeat interval of a member while its group is promoted, and for a while after; brokers ask for five seconds."""


def owned(message: Message | None) -> Partitions | None:
    """Return the partitions that a member owns or that an assignment names; None where neither is said."""
    if message is None or message.topic_partitions is None:
        return None
    return frozenset((t.topic_id, int(index)) for t in message.topic_partitions for index in t.partitions)


def says_everything(request: Message) -> bool:
    """Return whether a heartbeat has all fields, so that the answer has the whole assignment, as Kafka decides."""
    subscribed = request.subscribed_topic_names is not None or needs_regex(request)
    return subscribed and request.rebalance_timeout != _UNCHANGED and request.topic_partitions is not None


def needs_regex(request: Message) -> bool:
    """Return whether a heartbeat subscribes to a pattern that the coordinator applies (since version 1)."""
    return bool(getattr(request, "subscribed_topic_regex", None))


def with_source_ids(request: Message, ids: TopicIds) -> Message:
    """Return a heartbeat with the source's topic ids; no partitions if the member owns a topic without an id there.

    The source would take a left-out partition as given back, and give it to another member while this one still reads.
    """
    if request.topic_partitions is None:
        return request
    if any(ids.at_source(topic.topic_id) is None for topic in request.topic_partitions):
        return replace(request, topic_partitions=None)
    return change_each(
        request, ("topic_partitions",), lambda topic: replace(topic, topic_id=ids.at_source(topic.topic_id))
    )


def with_target_ids(answer: Message, ids: TopicIds) -> tuple[Message, frozenset[UUID]]:
    """Return an answer with the target's topic ids, and the source's ids of topics withheld from the member."""
    if answer.assignment is None:
        return answer, frozenset()
    shown, withheld = [], set()
    for topic in answer.assignment.topic_partitions:
        known = ids.at_target(topic.topic_id)
        if known is not None:
            shown.append(replace(topic, topic_id=known))
        elif topic.topic_id is not None:
            withheld.add(topic.topic_id)
    assignment = replace(answer.assignment, topic_partitions=tuple(shown))
    return replace(answer, assignment=assignment), frozenset(withheld)


def letting_go(answer: Message) -> Message:
    """Return the answer to a member that shall own nothing."""
    return replace(answer, assignment=blank(field_type(type(answer), "assignment"), topic_partitions=()))


def sooner(answer: Message) -> Message:
    """Return the same answer with a short heartbeat interval."""
    return replace(answer, heartbeat_interval=_OFTEN)


def leaving(heartbeat: Message) -> Message:
    """Return the heartbeat by which a member leaves for good; a static membership is not kept, either."""
    kind = entity(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, "request")
    return blank(
        kind,
        group_id=heartbeat.group_id,
        member_id=heartbeat.member_id,
        member_epoch=_LEAVES,
        instance_id=heartbeat.instance_id,
        rebalance_timeout=_UNCHANGED,
    )


def from_target(head: RequestHead, frame: bytearray, answer: bytearray, opened: Collection[str]) -> bytes | bytearray:
    """Return the target's answer to a heartbeat as the member gets it; `opened` are groups that opened a moment ago."""
    heard = read_answer(head, answer)
    code = code_of(heard.error_code)
    if code != Code.GROUP_ID_NOT_FOUND and (not opened or code not in (Code.NONE, Code.UNKNOWN_SERVER_ERROR)):
        return answer
    request = decode_request(frame, head)
    if code == Code.GROUP_ID_NOT_FOUND:
        # A joining member gets the target's own error. A group that has only carried-over offsets has
        # no protocol, and heartbeats do not find such a group.
        instead = Code.UNKNOWN_MEMBER_ID if int(request.member_epoch) > _JOINS else code
    elif str(request.group_id) not in opened:
        return answer
    elif code == Code.NONE:
        return frame_answer(sooner(heard), head.correlation_id)
    else:
        # A joining member retries during the first rebalance of a classic group (3 s by default). Until then the
        # coordinator cannot convert the group, and answers with an error (C17) at which clients end.
        instead = Code.COORDINATOR_LOAD_IN_PROGRESS if int(request.member_epoch) == _JOINS else code
    return answer if instead == code else frame_answer(group_error(head, request, instead), head.correlation_id)


def with_target_names(answer: Message, ids: TopicIds) -> Message:
    """Return a description of groups with the topics' ids at the target; a topic that the target lacks has no id."""

    def with_id(topic: Message) -> Message:
        return replace(topic, topic_id=ids.named(str(topic.topic_name)))

    def shown(member: Message) -> Message:
        own = {
            name: change_each(getattr(member, name), ("topic_partitions",), with_id)
            for name in ("assignment", "target_assignment")
        }
        return replace(member, **own)

    return change_each(answer, ("groups", "members"), shown)
