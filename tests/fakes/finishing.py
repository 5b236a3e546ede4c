"""An estate in memory for `link finish`: a log, routers' presences, and scripted bootstrap addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from kmigrate.cluster.admin import GroupMember, GroupState
from kmigrate.cluster.client import ProducerState
from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, RouterRecord, TopicRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.groups import misplaced
from kmigrate.workflow.verbs import finish
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

T = TypeVar("T")

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
FINISHED = replace(LINK, finished_ms=5)
TOPIC = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, promoted_ms=1)
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1)
ROUTER = RouterRecord("r", "r1", "host", "router:9092", 1)
WORD = RouterPresence("r1", "r", applied=100, interval_ms=100, on_brokers=0, protocol="PLAINTEXT")
CLIENT = ConnectedClient("app", "10.0.0.7", "User:app", "librdkafka 2.8.0", brokers=2)


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(10):
            return await work

    return asyncio.run(bounded())


class Connections:
    """The parts of an estate that the verbs use. `leads` says where every bootstrap address leads."""

    def __init__(self, *records: Record, words: tuple[RouterPresence, ...] = (WORD,)) -> None:
        self.log = MemoryLog(*(records or (LINK, TOPIC, GROUP, ROUTER)))
        for word in words:
            self.log.say(word)
        self.target: Any = SimpleNamespace(
            settings=SimpleNamespace(security=SimpleNamespace(protocol="PLAINTEXT")),
            metadata=SimpleNamespace(brokers={1: ("real", 9)}, cluster_id="target-id"),
            describe_producers=self.describe_producers,
        )
        self.producers: tuple[ProducerState, ...] = ()
        self.target_admin: Any = None
        self.leads = Leads.ROUTER
        self.addresses: list[str] = []
        self.on_source: dict[str, tuple[GroupMember, ...]] = {}
        self.positions: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    async def source(self, _: LinkRecord) -> tuple[Any, Any]:
        return None, None

    async def members(self, _: Any, groups: Iterable[str]) -> dict[str, GroupState]:
        """Describe groups with their members on the source."""
        return {group: GroupState(group, "stable", "classic", self.on_source.get(group, ())) for group in groups}

    async def committed(self, _: Any, groups: Iterable[str]) -> dict[str, Committed]:
        """Return the committed offsets of groups on the source."""
        return {group: self.positions.get(group, {}) for group in groups}

    async def describe_producers(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Any]:
        return dict.fromkeys(keys, (0, self.producers))

    async def ask(self, _: Any, addresses: Any) -> list[Bootstrap]:
        self.addresses = list(addresses)
        return [Bootstrap(each, self.leads, "somebody answers") for each in addresses]

    def finish(self, *bootstraps: str, delivery_s: float = 120.0, plan: bool = False, **accepted: bool) -> Plan:
        with self.asking():
            look = verbs.finish_link(self, "l", bootstraps, delivery_s, **accepted)  # type: ignore[arg-type]
            return run(run_verb(look, plan=plan))

    @contextmanager
    def asking(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(finish, "ask_bootstraps", self.ask)
            patch.setattr(misplaced, "describe_groups", self.members)
            patch.setattr(misplaced, "read_all_positions", self.committed)
            yield

    @property
    def finished_ms(self) -> int:
        link = self.log.state.link("l")
        assert link is not None
        return link.finished_ms
