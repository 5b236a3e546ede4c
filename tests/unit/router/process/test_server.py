"""What a router announces, and when: the acknowledgement of a fence at once, all else behind a fence later."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import ClusterRef, LinkRecord, PartitionBarrier, TopicRecord
from kmigrate.router.process.clusters import Clusters
from kmigrate.router.process.server import Router
from kmigrate.router.settings import RouterSettings
from kmigrate.sandbox.ports import free_ports
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
FENCING = TopicRecord("l", "t", TopicPhase.FENCING, 1, partitions=1, fence_epoch=2)


async def nothing(*_: Any) -> Any:
    return SimpleNamespace(topics={}, brokers={})


class Heard(MemoryLog):
    """A state log that keeps every announcement."""

    def __init__(self, *records: Any) -> None:
        super().__init__(*records)
        self.heard: list[RouterPresence] = []

    async def announce(self, record: Any) -> None:
        self.heard.append(record)

    async def changed_or_broken(self, timeout: float) -> None:
        await asyncio.sleep(timeout)


def test_a_router_puts_announcements_off_behind_a_fence_that_it_has_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clusters, "learn_target", nothing)
    monkeypatch.setattr(Clusters, "follow", lambda *_: None)
    target = SimpleNamespace(metadata=SimpleNamespace(topics={}, brokers={}), refresh=nothing, close=nothing)

    async def scene() -> list[tuple[str, int]]:
        log, (port,) = Heard(LINK), free_ports(1)
        settings = RouterSettings(name="edge", host="127.0.0.1", port=port)
        router = Router(settings, cast("Any", target), lambda _: cast("Any", target), cast("Any", log), "i1")
        await router.start()
        told: list[tuple[str, int]] = []

        async def goes_on(name: str, record: TopicRecord) -> None:
            await asyncio.sleep(0.1)
            before = len(log.heard)
            await log.append(lambda _: record)
            router._swap()
            await asyncio.sleep(0.01)
            told.append((name, len(log.heard) - before))

        try:
            await goes_on("fencing", FENCING)
            fenced = replace(FENCING, phase=TopicPhase.FENCED, barrier={0: PartitionBarrier(5, 0)})
            await goes_on("fenced", fenced)
            before = len(log.heard)
            await asyncio.sleep(0.1)
            told.append(("later", len(log.heard) - before))
            await goes_on("promoted", replace(fenced, phase=TopicPhase.PROMOTED))
        finally:
            await router.close()
        assert log.heard[-1].applied > 0
        return told

    assert asyncio.run(scene()) == [("fencing", 1), ("fenced", 0), ("later", 1), ("promoted", 1)]
