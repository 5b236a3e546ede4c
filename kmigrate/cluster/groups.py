"""Groups over the wire: protocol type, members and assignments, and two placeholder members.

librdkafka neither lists nor describes a group with another protocol type than `consumer`, such as a held group, and
sends a request per group.

`GroupHold` keeps every other member out of a promoted group at its source:
A  The placeholder's protocol type is not `consumer`. While the placeholder is a member, the coordinator refuses all
   others: JoinGroup with INCONSISTENT_GROUP_PROTOCOL (23), ConsumerGroupHeartbeat with GROUP_ID_NOT_FOUND (69), and
   commits without a generation with UNKNOWN_MEMBER_ID (25). Measured on 3.9.1 and 4.3.1.
B  The placeholder is a static member with the longest session timeout that the broker accepts. Any process of kmigrate
   takes the placeholder over by `group.instance.id`, so the hold outlives a controller that restarts in time.
C  A coordinator accepts the placeholder only if the group has no other member. The placeholder drives nobody out.
D  Committed offsets stay, and do not expire while the placeholder is a member.

`PlaceholderMember` keeps a group in the new protocol (KIP-848). If a member of the new protocol joins during the first
rebalance of a classic group, the coordinator fails. The member gets UNKNOWN_SERVER_ERROR, at which librdkafka and Java
end (C17); the classic members join again, maybe with an error. A group that already uses the new protocol takes members
of both protocols without an error.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

from kmigrate.cluster.admin import HOLD_TYPE, GroupMember, GroupState
from kmigrate.cluster.client import ClusterClient, api_versions, until_answered
from kmigrate.cluster.coordinators import Answers, all_answered, ask_coordinators
from kmigrate.errors import Failed, KmigrateError, ProtocolViolation
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey, Message, element_type, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.reader import Reader

__all__ = [
    "CONSUMERS",
    "GroupHold",
    "PlaceholderMember",
    "describe_groups",
    "group_members",
    "held_groups",
    "is_mixed",
    "placeholder_id",
    "protocol_type",
    "remove_members",
    "without_hold",
]

CONSUMERS = "consumer"
_DESCRIBE_GROUP = entity(ApiKey.DESCRIBE_GROUPS, 0, "request")
_DESCRIBE_GROUPS = entity(ApiKey.DESCRIBE_GROUPS, 1, "request")
_DESCRIBE_MODERN = entity(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, "request")
_LIST_GROUPS = entity(ApiKey.LIST_GROUPS, 0, "request")


async def protocol_type(client: ClusterClient, group: str) -> str:
    """Return a group's protocol type ('': unknown); `connect` and `sr` (Schema Registry) share work, commit nothing."""

    async def ask() -> Message:
        answer = await client.call(_DESCRIBE_GROUP(groups=(group,)), await client.find_coordinator(group))
        return cast("Message", answer.groups[0])

    return str((await until_answered(client, f"DescribeGroups of group {group}", ask, _unless_unknown)).protocol_type)


async def held_groups(client: ClusterClient) -> dict[str, bool]:
    """Return the groups with the placeholder's protocol type, each with whether the placeholder is a member.

    A group keeps that type until a consumer joins. So a group that was rolled back may be among these groups.
    """
    await client.refresh([])
    answers = await together(*(client.call(_LIST_GROUPS(), node) for node in sorted(client.metadata.brokers)))
    kept = [str(each.group_id) for found in answers for each in found.groups if each.protocol_type == HOLD_TYPE]
    described = all_answered(await describe_groups(client, kept)) if kept else {}
    return {name: bool(state.members) for name, state in described.items()}


_DEAD = "Dead"


async def group_members(client: ClusterClient, group: str) -> tuple[GroupMember, ...]:
    """Return the live members of a group of either protocol, none if unknown; raise BrokerRefused or Unreachable."""
    describe = _DESCRIBE_GROUPS(groups=(group,))
    describe_modern = _DESCRIBE_MODERN(group_ids=(group,), include_authorized_operations=False)

    async def ask() -> Message:
        node = await client.find_coordinator(group)
        found: Message = (await client.call(describe, node)).groups[0]
        dead = not code_of(found.error_code) and found.group_state == _DEAD
        if dead and ApiKey.CONSUMER_GROUP_DESCRIBE in await api_versions(client, node):
            found = (await client.call(describe_modern, node)).groups[0]
        return found

    found = await until_answered(client, f"DescribeGroups of group {group}", ask, _unless_unknown)
    return () if code_of(found.error_code) else tuple(map(_member, found.members))


def _unless_unknown(described: Message) -> int:
    """Return the error of a described group; an unknown group is no error."""
    return 0 if described.error_code == Code.GROUP_ID_NOT_FOUND else code_of(described.error_code)


async def describe_groups(client: ClusterClient, groups: Iterable[str]) -> dict[str, GroupState | Failed]:
    """Describe groups of both protocols, hundreds with a request; an unknown group is `dead` and has no members."""
    modern: dict[int, bool] = {}

    async def ask(node: int, asked: Sequence[str]) -> Answers[GroupState]:
        answer = await client.call(_DESCRIBE_GROUPS(groups=tuple(asked)), node)
        found = {str(each.group_id): _described(each, _classic(each)) for each in answer.groups}
        dead = [group for group, (_, state) in found.items() if state is not None and state.state == _DEAD.lower()]
        if dead and node not in modern:
            modern[node] = ApiKey.CONSUMER_GROUP_DESCRIBE in await api_versions(client, node)
        if dead and modern[node]:
            request = _DESCRIBE_MODERN(group_ids=tuple(dead), include_authorized_operations=False)
            answer = await client.call(request, node)
            found |= {str(each.group_id): _described(each, _modern(each)) for each in answer.groups}
        return found

    return await ask_coordinators(client, groups, ask, what="DescribeGroups")


_STATES = {"PreparingRebalance": "preparing_rebalancing", "CompletingRebalance": "completing_rebalancing"}
"""Names of states that librdkafka spells in another way than brokers."""
_Assignments = dict[str, tuple[tuple[str, int], ...]]


def _described(answer: Message, state: GroupState) -> tuple[int, GroupState | None]:
    """Return the error and the state of a group; the new protocol has an error for a group that is unknown."""
    if answer.error_code == Code.GROUP_ID_NOT_FOUND:
        return 0, GroupState(state.group, _DEAD.lower(), "unknown", ())
    code = code_of(answer.error_code)
    return code, None if code else state


def _classic(answer: Message) -> GroupState:
    reads = answer.protocol_type == CONSUMERS
    assigned = {str(m.member_id): _assignment(m.member_assignment) for m in answer.members} if reads else {}
    return _state(answer, "classic", assigned, assigned)


def _modern(answer: Message) -> GroupState:
    assigned = {str(m.member_id): _partitions(m.assignment) for m in answer.members}
    wanted = {str(m.member_id): _partitions(m.target_assignment) for m in answer.members}
    return _state(answer, "consumer", assigned, wanted)


def _state(answer: Message, kind: str, assigned: _Assignments, wanted: _Assignments) -> GroupState:
    """Return the state of a group; `wanted` are the assignments that the coordinator is about to make (KIP-848)."""
    name = str(answer.group_state)
    return GroupState(
        str(answer.group_id),
        _STATES.get(name, name.lower()),
        kind,
        tuple(map(_member, answer.members)),
        frozenset(topic for of in (assigned, wanted) for parts in of.values() for topic, _ in parts),
        assigned,
    )


def _assignment(data: bytes) -> tuple[tuple[str, int], ...]:
    """Return the partitions of a classic consumer's assignment, which its group's leader wrote; nothing if malformed.

    version i16 | [ topic, [ partition i32 ] ] | user data
    """
    if not data:
        return ()
    read = Reader(data, 2, flexible=False)
    parts: list[tuple[str, int]] = []
    try:
        for _ in range(read.length()):
            topic = read.string() or ""
            parts += [(topic, number) for number in read.unpack(struct.Struct(f">{read.length()}i"))]
    except (struct.error, IndexError, ValueError, ProtocolViolation):
        return ()
    return tuple(sorted(parts))


def _partitions(assignment: Message) -> tuple[tuple[str, int], ...]:
    each = ((str(topic.topic_name), topic.partitions) for topic in assignment.topic_partitions)
    return tuple(sorted((topic, int(number)) for topic, numbers in each for number in numbers))


def _member(described: Any) -> GroupMember:
    return GroupMember(str(described.member_id), str(described.client_id), str(described.client_host))


_INSTANCE = "kmigrate-hold"
_JOIN = entity(ApiKey.JOIN_GROUP, 5, "request")
_SYNC = entity(ApiKey.SYNC_GROUP, 3, "request")
_LEAVE = entity(ApiKey.LEAVE_GROUP, 3, "request")
_ANY_MEMBER = ""
_SESSION_TIMEOUTS_S = (1800, 300, 60, 30, 10)
"""Session timeouts to try, longest first: brokers refuse (26) more than their maximum, by default 30 minutes."""
_REBALANCE_TIMEOUT = dt.timedelta(seconds=10)


def without_hold(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
    """Return the members without the placeholder: brokers derive a static member's id from its instance id."""
    return tuple(member for member in members if not member.member_id.startswith(f"{_INSTANCE}-"))


class GroupHold:
    """The placeholder member of a group at its source."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self.session_s = 0
        """The session timeout that the broker has accepted; 0 while the group is not held."""

    async def take(self) -> int:
        """Join, or renew the session; return the error code. Raise BrokerRefused or Unreachable."""
        code = 0
        for seconds in _SESSION_TIMEOUTS_S:
            code = await self._join(seconds)
            if code != Code.INVALID_SESSION_TIMEOUT:
                self.session_s = 0 if code else seconds
                return code
        self.session_s = 0
        return code

    async def release(self) -> None:
        """Remove the placeholder from the group, whichever process has joined. Raise Unreachable."""
        self.session_s = 0
        identity = element_type(_LEAVE, "members")(member_id=_ANY_MEMBER, group_instance_id=_INSTANCE)
        node = await self._client.find_coordinator(self._group)
        await self._client.call(_LEAVE(group_id=self._group, members=(identity,)), node)

    async def _join(self, session_s: int) -> int:
        """Join and, as the group's leader, sync; return the error code."""
        node = await self._client.find_coordinator(self._group)
        protocol = element_type(_JOIN, "protocols")(name=HOLD_TYPE, metadata=b"")
        joined = await self._client.call(
            _JOIN(
                group_id=self._group,
                session_timeout=dt.timedelta(seconds=session_s),
                rebalance_timeout=_REBALANCE_TIMEOUT,
                member_id=_ANY_MEMBER,
                group_instance_id=_INSTANCE,
                protocol_type=HOLD_TYPE,
                protocols=(protocol,),
            ),
            node,
        )
        if code := code_of(joined.error_code):
            return code
        assignment = element_type(_SYNC, "assignments")(member_id=joined.member_id, assignment=b"")
        synced = await self._client.call(
            _SYNC(
                group_id=self._group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=_INSTANCE,
                assignments=(assignment,),
            ),
            node,
        )
        return code_of(synced.error_code)


async def remove_members(client: ClusterClient, group: str, members: Iterable[str]) -> None:
    """Remove members of the classic protocol by member id; others stay. Raise BrokerRefused or Unreachable."""
    identity = element_type(_LEAVE, "members")
    leaving = _LEAVE(
        group_id=group, members=tuple(identity(member_id=member, group_instance_id=None) for member in members)
    )

    async def ask() -> Message:
        return await client.call(leaving, await client.find_coordinator(group))

    await until_answered(client, f"LeaveGroup of group {group}", ask, lambda answer: code_of(answer.error_code))


_JOINS, _LEAVES = 0, -1
_CLASSIC = 0
_OWNS_NOTHING = dt.timedelta(seconds=1)
"""Rebalance timeout of the placeholder, which never has partitions to give back."""


async def is_mixed(client: ClusterClient, group: str) -> bool:
    """Return whether a group of the new protocol also has classic members. Raise Unreachable.

    Before 4.0, brokers do not report a member's protocol, so any member counts; old brokers have no such group.
    """
    node = await client.find_coordinator(group)
    version = (await api_versions(client, node)).get(ApiKey.CONSUMER_GROUP_DESCRIBE)
    if version is None:
        return False
    request = entity(ApiKey.CONSUMER_GROUP_DESCRIBE, min(version, 1), "request")
    answer = await client.call(request(group_ids=(group,), include_authorized_operations=False), node)
    members = (member for described in answer.groups for member in described.members)
    return any(int(getattr(member, "member_type", _CLASSIC)) == _CLASSIC for member in members)


def placeholder_id(group: str) -> str:
    """Return the member id of the placeholder in a group, which no reading client has."""
    return str(uuid5(NAMESPACE_URL, f"kmigrate:{group}"))


class PlaceholderMember:
    """A member that reads nothing and sends no heartbeat: it is removed after a session timeout, 45 s by default.

    All processes use the same member id. A failure to join is ignored: members that then join too early try again.
    """

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._member = placeholder_id(group)

    async def take(self) -> None:
        """Join, so that the group uses the new protocol; meanwhile nobody outside can commit offsets to the group."""
        await self._say(_JOINS, rebalance_timeout=_OWNS_NOTHING, subscribed_topic_names=(), topic_partitions=())

    async def leave(self) -> None:
        await self._say(_LEAVES, topic_partitions=None)

    async def _say(self, epoch: int, **fields: Any) -> None:
        with suppress(KmigrateError):
            node = await self._client.find_coordinator(self._group)
            if ApiKey.CONSUMER_GROUP_HEARTBEAT in await api_versions(self._client, node):
                request = entity(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, "request")
                await self._client.call(
                    request(group_id=self._group, member_id=self._member, member_epoch=epoch, **fields), node
                )
