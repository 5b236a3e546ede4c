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
from kmigrate.net.retry import until
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

    async def changed_or_broken(self, timeout: float, *, state_only: bool = False) -> None:
        await asyncio.sleep(timeout)


def alone(monkeypatch: pytest.MonkeyPatch, log: Heard) -> Router:
    """Return a router; the router's target has no topic and no broker."""
    monkeypatch.setattr(Clusters, "learn_target", nothing)
    monkeypatch.setattr(Clusters, "follow", lambda *_: None)
    target = SimpleNamespace(metadata=SimpleNamespace(topics={}, brokers={}), refresh=nothing, close=nothing)
    settings = RouterSettings(name="edge", host="127.0.0.1", port=free_ports(1)[0])
    return Router(settings, cast("Any", target), lambda _: cast("Any", target), cast("Any", log), "i1")


async def next_of(log: Heard, count: int) -> RouterPresence:
    """Wait until so many announcements were made, and return the last announcement."""
    assert await until(lambda: len(log.heard) >= count, every_s=0.001, within_s=30)
    return log.heard[count - 1]


def test_a_router_puts_announcements_off_behind_a_fence_that_it_has_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> list[tuple[str, int]]:
        log = Heard(LINK)
        router = alone(monkeypatch, log)
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
            before = len(log.heard)
            await goes_on("fenced", fenced)
            router._announce_soon()  # as after any other record of the state log
            await next_of(log, before + 1)
            await asyncio.sleep(0.1)
            told.append(("later", len(log.heard) - before))
            await goes_on("promoted", replace(fenced, phase=TopicPhase.PROMOTED))
        finally:
            await router.close()
        assert log.heard[-1].applied > 0
        return told

    assert asyncio.run(scene()) == [("fencing", 1), ("fenced", 0), ("later", 1), ("promoted", 1)]


def test_a_router_announces_many_newer_states_together_and_a_fence_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmigrate.router.process.server._ROUTINE_GAP_S", 3600.0)

    async def scene() -> None:
        log = Heard(LINK)
        router = alone(monkeypatch, log)
        router.settings = replace(router.settings, presence_interval_ms=3_600_000)
        await router.start()

        async def follow(record: TopicRecord) -> None:
            await log.append(lambda _: record)
            router._swap()

        try:
            first = await next_of(log, 1)
            for number in range(3):
                await follow(replace(FENCING, phase=TopicPhase.MIRRORING, since_ms=number))
            await asyncio.sleep(0)
            assert log.heard == [first]
            await follow(FENCING)
            fenced = await next_of(log, 2)
            assert (fenced.applied, set(fenced.fences)) == (log.state.epoch, {FENCING.key})
        finally:
            await router.close()

    asyncio.run(scene())


def test_a_router_announces_at_once_that_nothing_is_in_flight_behind_a_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmigrate.router.process.server._LONGEST_GAP_S", 3600.0)

    async def scene() -> None:
        log = Heard(LINK)
        router = alone(monkeypatch, log)
        await router.start()
        try:
            router._shared.forwards.sent(FENCING.key, 2)
            await log.append(lambda _: FENCING)
            router._announced_s = 0.0
            router._swap()
            fenced = await next_of(log, len(log.heard) + 1)
            assert fenced.fences[FENCING.key].in_flight == 2
            router._announced_s = 3600.0  # the next announcement would wait for an hour
            assert router._shared.forwards.resolved(FENCING.key, 2)
            router._clusters.drained()
            drained = await next_of(log, len(log.heard) + 1)
            assert drained.fences[FENCING.key].in_flight == 0
        finally:
            await router.close()

    asyncio.run(scene())
