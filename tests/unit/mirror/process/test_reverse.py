"""A process copies topics with an open way back by a second copier, which exists only while there are such topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

from kmigrate.cluster.admin import Admin, ConfigValue
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION
from kmigrate.errors import Unreachable
from kmigrate.mirror.copy.copier import Copier
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.process import engine as module
from kmigrate.mirror.process import reverse
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.mirror.settings import OLD_MS, MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import (
    AssignmentRecord,
    ClusterRef,
    CopyIdentity,
    LinkRecord,
    PartitionBarrier,
    TopicRecord,
    WayBack,
)
from kmigrate.model.settings import ClusterSettings
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

OURS, BACK_ID = CopyIdentity(1, 0), CopyIdentity(500, 0)
LINK = LinkRecord("l", "u", ClusterRef("s", ""), ClusterRef("t", ""), 1, copy=OURS, throttle=1_000)
FORWARD = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 0}, source_topic_id="")
WAY_BACK = WayBack({0: 70, 1: 80}, copy=BACK_ID)
BACK = replace(FORWARD, phase=TopicPhase.PROMOTED, way_back=WAY_BACK)
SHARED = AssignmentRecord("l", 5, ("me", "you"), {"t": (0, 1), "other": (0, 0)})


class Stage:
    """An engine, named `me`, whose copiers have no brokers; the test writes the records."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *topics: TopicRecord) -> None:
        self.log = MemoryLog(LINK, SHARED, *topics)
        nowhere = ClusterClient(ClusterSettings("nowhere", (("127.0.0.1", 1),)))
        elsewhere = ClusterClient(ClusterSettings("elsewhere", (("127.0.0.1", 2),)))
        admin = cast("Admin", None)
        own = cast("StateLog", self.log), "me", MirrorSettings()
        self.engine = MirrorEngine(MirroredLink(nowhere, elsewhere, admin, admin, "l", *own))
        self.memory: ConfigValue | None = ConfigValue("86400000", False)
        self.failures: list[Exception] = []
        monkeypatch.setattr(module, "activate", self._activate)
        for each in (module, reverse):
            monkeypatch.setattr(each, "request_limit", self._limit)
        monkeypatch.setattr(reverse, "producer_memory", self._memory)
        monkeypatch.setattr(reverse, "_RETRY_S", 0.01)
        monkeypatch.setattr(reverse, "_LOOK_S", 0.01)
        monkeypatch.setattr(Copier, "run", self._run)

    async def _activate(self, *_: object) -> str:
        return ""

    async def _limit(self, *_: object) -> int:
        return 1 << 20

    async def _memory(self, *_: object) -> ConfigValue | None:
        if self.failures:
            raise self.failures.pop(0)
        return self.memory

    async def _run(self, *_: object) -> None:
        await asyncio.Event().wait()

    @property
    def back(self) -> Copier:
        copier = self.engine._reverse.copier
        assert copier is not None
        return copier

    @property
    def forward(self) -> Copier:
        assert self.engine._copier is not None
        return self.engine._copier

    async def write(self, record: TopicRecord) -> None:
        self.log._put(record.key, record)
        await asyncio.sleep(0.05)

    def play(self, scene: Callable[[], Awaitable[None]]) -> None:
        async def both() -> None:
            self.log._wake()  # an event belongs to a single loop
            serving = asyncio.create_task(self.engine._serve())
            await asyncio.sleep(0.05)
            try:
                await scene()
                await asyncio.sleep(0.05)
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving

        asyncio.run(both())


def test_a_link_without_a_way_back_has_one_copier(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, FORWARD, replace(BACK, topic="other", way_back=None))

    async def scene() -> None:
        assert stage.engine._reverse.copier is None
        assert set(stage.forward.lanes) == {("t", 0)}

    stage.play(scene)


def test_a_promoted_topic_goes_back_under_its_own_producer_id_from_its_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, BACK, replace(FORWARD, topic="other"))

    async def scene() -> None:
        assert set(stage.forward.lanes) == {("other", 0), ("other", 1)}
        (lane,) = stage.back.lanes.values()
        assert (lane.key, lane.target.producer_id, lane.log_start, lane.since) == (("t", 0), 500, 70, 70)
        context = stage.back._context
        names = context.source.settings.name, context.target.settings.name
        assert names == ("elsewhere", "nowhere"), "the link's target and source"
        assert context.pipelining
        assert set(stage.engine._presence().topics) == {"t", "other"}, "one report for both directions"

    stage.play(scene)


def test_nothing_is_copied_back_before_the_copy_has_its_producer_id(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, replace(BACK, way_back=replace(WAY_BACK, copy=None)))

    async def scene() -> None:
        assert not stage.back.lanes
        await stage.write(BACK)
        assert set(stage.back.lanes) == {("t", 0)}

    stage.play(scene)


@pytest.mark.parametrize(
    ("memory_ms", "pipelining", "old_ms"),
    [("86400000", True, 69_120_000), (RAISED_EXPIRATION, True, 1_717_986_917), (None, False, OLD_MS)],
)
def test_records_that_outlive_the_sources_memory_of_producers_go_alone(
    monkeypatch: pytest.MonkeyPatch, memory_ms: str | None, pipelining: bool, old_ms: int
) -> None:
    """The source's own expiration decides, because kmigrate changes no config of the source's brokers."""
    stage = Stage(monkeypatch, BACK)
    stage.memory = ConfigValue(memory_ms, False) if memory_ms is not None else None

    async def scene() -> None:
        context = stage.back._context
        assert (context.pipelining, context.old_ms) == (pipelining, old_ms)

    stage.play(scene)


def test_a_source_that_cannot_be_asked_is_named_and_the_other_topics_are_copied_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, BACK, replace(FORWARD, topic="other"))
    away = Unreachable("no-answer", "the source is away")
    stage.failures = [away] * 1_000

    async def scene() -> None:
        assert set(stage.forward.lanes) == {("other", 0), ("other", 1)}
        assert "way-back: no-answer: the source is away" in stage.engine._notes()
        stage.failures.clear()
        await asyncio.sleep(0.1)
        assert set(stage.back.lanes) == {("t", 0)}
        assert not [note for note in stage.engine._notes() if note.startswith("way-back")]

    stage.play(scene)


def test_a_rollback_fence_is_told_at_once_as_a_promotes_fence_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, BACK)

    async def scene() -> None:
        (lane,) = stage.back.lanes.values()

        def told() -> tuple[bool, bool, int | None]:
            return lane.promoting, lane.urgent, lane.barrier

        assert told() == (False, False, None)
        await stage.write(replace(BACK, phase=TopicPhase.ROLLBACK_PENDING))
        assert told() == (True, False, None), "the throttle does not delay the lane"
        barrier = {0: PartitionBarrier(90, 3), 1: PartitionBarrier(99, 3)}
        fenced = replace(BACK, phase=TopicPhase.ROLLBACK_FENCED, way_back=replace(WAY_BACK, barrier=barrier))
        await stage.write(replace(fenced, phase=TopicPhase.ROLLBACK_FENCING))
        assert told() == (True, True, None), "the barrier of an earlier fence does not count"
        await stage.write(fenced)
        assert told() == (True, True, 90)
        lane.recovered(90, 0, 90)
        assert stage.engine._fenced().topics["t"][0].at_barrier == 90
        await stage.write(BACK)
        assert told() == (False, False, None)

    stage.play(scene)


def test_a_topic_is_in_one_direction_at_a_time_and_the_copier_ends_with_the_last_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, FORWARD)

    async def scene() -> None:
        first = stage.forward.lanes["t", 0]
        await stage.write(BACK)
        assert first.stopped
        assert not stage.forward.lanes
        second = stage.back.lanes["t", 0]
        resumed = replace(FORWARD, generation=1, resumed={0: 90, 1: 99}, copy=CopyIdentity(900, 0))
        await stage.write(resumed)
        assert second.stopped
        third = stage.forward.lanes["t", 0]
        assert (third.target.producer_id, third.log_start, third.since) == (900, 90, 90)
        assert stage.engine._reverse.copier is None

    stage.play(scene)


def test_the_copy_to_the_target_waits_for_the_last_write_to_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, BACK)

    async def scene() -> None:
        writing = stage.back.lanes["t", 0]
        writing.begin_work()
        resumed = replace(FORWARD, generation=1, resumed={0: 90, 1: 99}, copy=CopyIdentity(900, 0))
        await stage.write(resumed)
        assert not stage.forward.lanes
        assert stage.back.leaving == {"t"}, "the copier stays until its last answer"
        writing.end_work()
        await stage.write(replace(resumed, since_ms=2))
        assert set(stage.forward.lanes) == {("t", 0)}
        assert stage.engine._reverse.copier is None

    stage.play(scene)


def test_a_process_that_ends_in_the_middle_of_a_hole_at_the_source_keeps_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, BACK)

    async def scene() -> None:
        stage.back.lanes["t", 0].fill()

    stage.play(scene)
    assert stage.engine._reverse.late_writes == {("t", 0)}
    asyncio.run(stage.engine._leave())
    assert not stage.log.presence

    unsettled: list[bool] = []

    async def again() -> None:
        unsettled.append(stage.back.lanes["t", 0].target.unknown)

    stage.play(again)
    assert unsettled == [True], "the next copy lets the source's log rest"


def test_both_directions_together_keep_the_links_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, BACK, replace(FORWARD, topic="other"))

    async def scene() -> None:
        assert (stage.forward._throttle.rate, stage.back._throttle.rate) == (500, 250), "2 and 1 of 4 partitions"

    stage.play(scene)


def test_the_batches_of_clients_at_the_target_are_no_direct_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, BACK)

    async def scene() -> None:
        lane: Lane = stage.back.lanes["t", 0]
        assert lane.source.live_from > 1 << 60

    stage.play(scene)
