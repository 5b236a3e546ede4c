"""Scripted clusters for the promote and the rollback of one topic, `t`, with two partitions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.cluster.metadata import PartitionInfo
from kmigrate.errors import Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.records import ProducerMark

__all__ = ["KEYS", "FakeAdmin", "FakeCluster", "FakeRecent"]

KEYS = [("t", 0), ("t", 1)]


@dataclass
class FakeCluster:
    """A cluster with scripted log ends and producers; `grows` moves the log end at every request."""

    ends: dict[tuple[str, int], LogOffset] = field(default_factory=lambda: dict.fromkeys(KEYS, LogOffset(0, 100, 3)))
    producers: tuple[ProducerState, ...] = ()
    grows: int = 0
    asked: int = 0
    partitions: int = 2
    follower: LogOffset = field(default_factory=lambda: LogOffset(0, 100, 3))
    """Answer of broker 2, which leads no partition."""
    in_sync: tuple[int, ...] = (1, 2)
    settings: Any = field(default_factory=lambda: SimpleNamespace(name="cluster"))
    assigned: frozenset[str] = frozenset()
    """Topics that are assigned to the members of every group."""

    async def describe_groups(self, groups: Any) -> dict[str, GroupState]:
        return {group: GroupState(group, "stable", "classic", (), self.assigned) for group in groups}

    async def call(self, *_: Any, **__: Any) -> Any:
        raise Unreachable("away", "no broker is asked which transactions are open")

    @property
    def metadata(self) -> Any:
        parts = dict.fromkeys(range(self.partitions))
        return SimpleNamespace(
            topics={"t": SimpleNamespace(partitions=parts)},
            brokers={1: ("h", 1), 2: ("h", 2)},
            partition=lambda *_: PartitionInfo(1, 3, (1, 2), self.in_sync),
        )

    def leader(self, *_: Any) -> int:
        return 1

    async def list_offsets_at(self, node: int, wanted: Any, **_: Any) -> dict[tuple[str, int], LogOffset]:
        if node == 2:
            return dict.fromkeys(wanted, self.follower)
        return await self.log_ends(wanted)

    async def topic_at(self, node: int, _: str) -> None:
        assert node == 2

    async def log_ends(self, keys: Any) -> dict[tuple[str, int], LogOffset]:
        self.asked += 1
        self.ends = {k: replace(e, offset=e.offset + self.grows) for k, e in self.ends.items()}
        return dict(self.ends)

    async def describe_producers(self, keys: Any) -> Any:
        return dict.fromkeys(keys, (0, self.producers))

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return {key: self.ends[key] for key in wanted}

    async def refresh(self, topics: Any = None) -> None: ...


@dataclass
class FakeRecent:
    """A log end with fixed producers; the offsets of each read are noted."""

    marks: tuple[ProducerMark, ...]
    asked: list[int] = field(default_factory=list)

    async def read_to(self, ends: Any, _: float) -> dict[tuple[str, int], tuple[ProducerMark, ...]]:
        self.asked += [end.offset for end in ends.values()]
        return dict.fromkeys(ends, self.marks)


@dataclass
class FakeAdmin:
    altered: list[Any] = field(default_factory=list)
    rules: set[Acl] = field(default_factory=set)

    async def alter_topic_configs(self, *given: Any) -> None:
        self.altered.append(given)

    async def create_acls(self, acls: Any) -> None:
        self.rules |= set(acls)

    async def delete_acls(self, acls: Any) -> None:
        self.rules -= set(acls)
