"""Splits, merges and recasts messages of groups that follow, and removes leader epochs.

The messages go to the source in the source's versions. A leader epoch means something else on the other cluster: a
client that gets a foreign epoch rewinds or reads nothing (C1, V5). So no leader epoch passes in either direction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    blank,
    change_each,
    decode_request,
    element_type,
    entity,
    frame_request,
    read_answer,
    recast,
    replace,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.groups import groups_of

__all__ = [
    "FIRST_OF_MEMBERS",
    "Asked",
    "as_no_member",
    "codes_in",
    "committed_in",
    "leave_request",
    "merged",
    "named_groups",
    "of_groups",
    "positions_of",
    "question_for",
    "returned_and_left_out",
    "source_request",
    "topics_of",
    "without_epochs",
    "without_members",
]

_EPOCH = "committed_leader_epoch"
_FIRST_BATCHED = 8
_LAST_OF_ONE_GROUP = 7
FIRST_OF_MEMBERS = 9
"""OffsetFetch version from which a request names the member."""
_LEAVE_VERSION = 4


def named_groups(request: Message) -> dict[str, Message]:
    """Return what a request says of each of several groups; the first element counts where a group is named twice."""
    named: dict[str, Message] = {}
    for name, group in zip(groups_of(request), getattr(request, _asked_as(request)), strict=True):
        named.setdefault(name, group)
    return named


def of_groups(request: Message, groups: Iterable[Message]) -> Message:
    """Return a request for several groups, cut down to some of its groups."""
    return replace(request, **{_asked_as(request): tuple(groups)})


def _asked_as(request: Message) -> str:
    return next(name for name in ("groups_names", "group_ids", "groups") if hasattr(request, name))


def merged(request: Message, answers: Iterable[Message], kind: type[Message]) -> Message:
    """Return several answers as a single answer, groups in the request's order."""
    merged = {str(group.group_id): group for answer in answers for group in _groups(answer)}
    groups = tuple(merged[name] for name in groups_of(request) if name in merged)
    return blank(kind, groups=groups, results=groups)


def _groups(answer: Message) -> tuple[Message, ...]:
    """Return the groups of an answer about several groups; nothing where the answer is about a single group."""
    return tuple(getattr(answer, "groups", ())) + tuple(getattr(answer, "results", ()))


def without_epochs(message: Message) -> Message:
    """Return a commit, or an answer with committed offsets, without leader epochs."""
    if hasattr(message, "groups"):
        return change_each(message, ("groups",), without_epochs)
    return change_each(
        message, ("topics", "partitions"), lambda part: replace(part, **{_EPOCH: -1}) if hasattr(part, _EPOCH) else part
    )


def _positions(message: Message) -> Iterable[Message]:
    """Return the parts that have topics: the groups of a batched OffsetFetch message, or the message itself."""
    return message.groups if hasattr(message, "groups") else (message,)


def positions_of(answer: Message) -> dict[tuple[str, int], int]:
    """Return the committed offsets of an OffsetFetch answer."""
    return {
        (str(topic.name), int(part.partition_index)): int(part.committed_offset)
        for each in _positions(answer)
        for topic in each.topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def committed_in(request: Message) -> dict[tuple[str, int], int]:
    """Return the offsets that an OffsetCommit or TxnOffsetCommit request commits."""
    return {
        (str(topic.name), int(part.partition_index)): int(part.committed_offset)
        for topic in request.topics
        for part in topic.partitions
    }


def returned_and_left_out(request: Message, answer: Message) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return the partitions that a group's OffsetFetch answer returns (also without offset), and those left out."""
    (asked,), (returned,) = _positions(request), _positions(answer)
    named = {(str(topic.name), int(index)) for topic in asked.topics or () for index in topic.partition_indexes}
    found = {
        (str(topic.name), int(part.partition_index))
        for topic in returned.topics
        for part in topic.partitions
        if not code_of(part.error_code)
    }
    if code_of(getattr(returned, "error_code", 0)):
        found.clear()
    return found, named - found


def question_for(
    group: str, partitions: Iterable[tuple[str, int]], client_id: str | None
) -> tuple[RequestHead, Message]:
    """Return an OffsetFetch request about partitions of a group, and its head."""
    kind = entity(ApiKey.OFFSET_FETCH, _LAST_OF_ONE_GROUP, "request")
    topic_type = element_type(kind, "topics")
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    topics = tuple(blank(topic_type, name=name, partition_indexes=tuple(parts)) for name, parts in by_topic.items())
    head = RequestHead(ApiKey.OFFSET_FETCH, _LAST_OF_ONE_GROUP, 0, client_id, 0)
    return head, blank(kind, group_id=group, topics=topics)


def topics_of(message: Message) -> set[str]:
    """Return the topics of a message on committed offsets."""
    return {str(topic.name) for each in _positions(message) for topic in each.topics or ()}


def codes_in(answer: Message) -> set[int]:
    """Return every error code of an answer, for a whole group or for partitions."""
    found: set[int] = set()
    for each in (answer, *_groups(answer)):
        if hasattr(each, "error_code"):
            found.add(code_of(each.error_code))
        for topic in getattr(each, "topics", None) or ():
            found.update(code_of(part.error_code) for part in topic.partitions)
    return found


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in a form that the source understands."""

    message: Message
    answer_kind: type[Message]
    """The class of the client's answer."""
    unbatched: str = ""
    """Group of a batched OffsetFetch that the source must be asked for without a batch; '' otherwise."""

    def in_client_version(self, answer: Message) -> Message:
        """Return the source's answer in the client's version."""
        if self.unbatched:
            group_type = element_type(self.answer_kind, "groups")
            group = replace(recast(answer, group_type), group_id=self.unbatched)
            return blank(self.answer_kind, groups=(group,))
        return recast(answer, self.answer_kind)


def source_request(head: RequestHead, request: Message, newest: int) -> Asked:
    """Return a request about a group in a version that the source speaks; `newest` is the source's highest version."""
    answer_kind = answer_type(head)
    if head.version <= newest:
        return Asked(request, answer_kind)
    kind = entity(head.api_key, newest, "request")
    if head.api_key == ApiKey.OFFSET_FETCH and head.version >= _FIRST_BATCHED > newest:
        (group,) = request.groups
        message = recast(group, kind)
        if hasattr(message, "require_stable"):
            message = replace(message, require_stable=request.require_stable)
        return Asked(message, answer_kind, str(group.group_id))
    return Asked(recast(request, kind), answer_kind)


def as_no_member(head: RequestHead, frame: bytearray, answer: bytearray, opened: Collection[str]) -> bytes | None:
    """Return an OffsetFetch request without member ids for groups whose members the target does not know.

    None where the target knows all members, or a rejected member's group is not in `opened` (a moment ago).
    """
    if head.api_key != ApiKey.OFFSET_FETCH or head.version < FIRST_OF_MEMBERS:
        return None
    groups = read_answer(head, answer).groups
    unknown = {str(g.group_id) for g in groups if code_of(g.error_code) == Code.UNKNOWN_MEMBER_ID} & set(opened)
    if not unknown:
        return None

    request = without_members(decode_request(frame, head), unknown)
    return frame_request(request, head.correlation_id, head.client_id)


def without_members(request: Message, groups: Collection[str]) -> Message:
    """Return an OffsetFetch request of version 9 or later without the member ids of some groups."""

    def no_member(group: Message) -> Message:
        if str(group.group_id) not in groups:
            return group
        return replace(group, member_id=None, member_epoch=type(group.member_epoch)(-1))

    return change_each(request, ("groups",), no_member)


def leave_request(group: str, member_id: str, newest: int) -> Message:
    """Return a LeaveGroup request for a member, in a version that the source speaks."""
    if newest < _LEAVE_VERSION:
        return blank(entity(ApiKey.LEAVE_GROUP, 0, "request"), group_id=group, member_id=member_id)
    kind = entity(ApiKey.LEAVE_GROUP, _LEAVE_VERSION, "request")
    return blank(kind, group_id=group, members=(blank(element_type(kind, "members"), member_id=member_id),))
