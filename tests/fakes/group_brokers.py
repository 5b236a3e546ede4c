"""Brokers that coordinate groups, with counted requests: FindCoordinator, OffsetFetch and both describes."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import Committed
from kmigrate.errors import Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.api import ApiKey, Message, answer_type, blank, element_type, field_type
from kmigrate.protocol.codes import Code
from kmigrate.protocol.primitives import write_string

MODERN = {ApiKey.FIND_COORDINATOR: 6, ApiKey.OFFSET_FETCH: 9, ApiKey.CONSUMER_GROUP_DESCRIBE: 1}
"""Newest versions of Kafka 4."""
OLD = {ApiKey.FIND_COORDINATOR: 3, ApiKey.OFFSET_FETCH: 7}
"""Newest versions of Kafka 2.8."""


@dataclass
class GroupBrokers(ClusterClient):
    """Brokers that share the coordination of some groups, by the last digit of each group's name."""

    groups: dict[str, GroupState] = field(default_factory=dict)
    positions: dict[str, Committed] = field(default_factory=dict)
    versions: dict[ApiKey, int] = field(default_factory=lambda: dict(MODERN))
    brokers: int = 3
    silent: int = -1
    """A broker that does not answer."""
    codes: dict[str, list[int]] = field(default_factory=dict)
    """Errors of the next answers about a group, whatever is asked of its coordinator."""
    malformed: bool = False
    """True if the leaders of classic groups write no assignments that anybody can read."""
    requests: Counter[str] = field(default_factory=Counter)
    """Number of requests by the name of the message."""

    def __post_init__(self) -> None:
        super().__init__(ClusterSettings("blue", (), request_timeout_s=1.0))

    def coordinator(self, group: str) -> int:
        return int(group[-1]) % self.brokers

    async def call(self, request: Any, node: int | None = None, *, purpose: str = "control") -> Any:
        key, kind = ApiKey(request.__api_key__), answer_type(type(request))
        self.requests[key.name] += 1
        if node is not None and node == self.silent:
            raise Unreachable("broker-unreachable", f"broker {node} is silent")
        if key is ApiKey.API_VERSIONS:
            made = element_type(kind, "api_keys")
            keys = (blank(made, api_key=key, min_version=0, max_version=most) for key, most in self.versions.items())
            return blank(kind, api_keys=tuple(keys))
        assert request.__version__ <= self.versions.get(key, 1), "a broker closes the connection on such a request"
        return getattr(self, f"_{key.name.lower()}")(request, kind, node)

    def _code(self, group: str) -> int:
        return self.codes[group].pop(0) if self.codes.get(group) else 0

    def _find_coordinator(self, request: Any, kind: type[Message], _: object) -> Message:
        if request.__version__ < 4:
            return blank(kind, node_id=self.coordinator(request.key))
        made = element_type(kind, "coordinators")
        found = (blank(made, key=key, node_id=self.coordinator(key)) for key in request.coordinator_keys)
        return blank(kind, coordinators=tuple(found))

    def _offset_fetch(self, request: Any, kind: type[Message], node: int) -> Message:
        if request.__version__ < 8:
            return blank(kind, **self._committed(str(request.group_id), kind, node))
        made = element_type(kind, "groups")
        named = [str(group.group_id) for group in request.groups]
        return blank(
            kind, groups=tuple(blank(made, group_id=name, **self._committed(name, made, node)) for name in named)
        )

    def _committed(self, group: str, kind: type[Message], node: int) -> dict[str, Any]:
        assert node == self.coordinator(group)
        if code := self._code(group):
            return {"error_code": code, "topics": ()}
        topic_type = element_type(kind, "topics")
        part_type = element_type(topic_type, "partitions")
        topics = [
            blank(
                topic_type,
                name=topic,
                partitions=(
                    blank(part_type, partition_index=number, committed_offset=at.offset, metadata=at.metadata),
                ),
            )
            for (topic, number), at in self.positions.get(group, {}).items()
        ]
        return {"topics": tuple(topics)}

    def _describe_groups(self, request: Any, kind: type[Message], node: int) -> Message:
        made = element_type(kind, "groups")
        answers = []
        for name in map(str, request.groups):
            assert node == self.coordinator(name)
            state = self.groups.get(name)
            if state is None or state.kind == "consumer":
                answers.append(blank(made, group_id=name, group_state="Dead", error_code=self._code(name)))
                continue
            members = tuple(_member(made, each, member_assignment=self._bytes(state, each)) for each in state.members)
            fields = {"group_state": "Stable", "protocol_type": "consumer", "members": members}
            answers.append(blank(made, group_id=name, error_code=self._code(name), **fields))
        return blank(kind, groups=tuple(answers))

    def _bytes(self, state: GroupState, member: GroupMember) -> bytes:
        """Return a member's assignment as the leader of a classic group writes it."""
        parts = state.assignments.get(member.member_id, ())
        if self.malformed:
            return struct.pack(">hi", 1, len(parts))
        topics = b"".join(write_string(topic) + struct.pack(">ii", 1, number) for topic, number in parts)
        return struct.pack(">hi", 1, len(parts)) + topics + struct.pack(">i", -1)

    def _consumer_group_describe(self, request: Any, kind: type[Message], node: int) -> Message:
        made = element_type(kind, "groups")
        answers = []
        for name in map(str, request.group_ids):
            assert node == self.coordinator(name)
            state = self.groups.get(name)
            if state is None:
                answers.append(blank(made, group_id=name, error_code=Code.GROUP_ID_NOT_FOUND))
                continue
            members = tuple(
                _member(made, each, **dict.fromkeys(("assignment", "target_assignment"), _modern(made, state, each)))
                for each in state.members
            )
            answers.append(blank(made, group_id=name, group_state="Stable", members=members))
        return blank(kind, groups=tuple(answers))


def _member(group_type: type[Message], member: GroupMember, **fields: Any) -> Message:
    named = {"member_id": member.member_id, "client_id": member.client_id, "client_host": member.host}
    return blank(element_type(group_type, "members"), **named, **fields)


def _modern(group_type: type[Message], state: GroupState, member: GroupMember) -> Message:
    kind = field_type(element_type(group_type, "members"), "assignment")
    made = element_type(kind, "topic_partitions")
    parts = state.assignments.get(member.member_id, ())
    return blank(
        kind,
        topic_partitions=tuple(blank(made, topic_name=topic, partitions=(number,)) for topic, number in parts),
    )
