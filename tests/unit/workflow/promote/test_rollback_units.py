"""Topics that transactions couple are rolled back together or stay at the target together, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.errors import Failed
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import FenceAck, MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    CopyIdentity,
    PartitionBarrier,
    PromotedUnit,
    PromoteTerms,
    ProvenTopic,
    RollbackTerms,
    TopicRecord,
    WayBack,
)
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress, decided
from kmigrate.workflow.promote import barrier, transactions
from kmigrate.workflow.promote.rollback import TopicRollback, given_back
from tests.fakes.scripted_cluster import FakeAdmin, FakeRecent
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.base.test_unit import BOTH, SHARED, Cluster
from tests.unit.workflow.promote.test_topic import LINK, Crashed

TERMS = RollbackTerms(asked_ms=1, lag_threshold=10, pending_timeout_s=20.0, fence_timeout_s=20.0)
WAY = WayBack({0: 50}, CopyIdentity(17, 0), terms=TERMS)
ASKED = TopicRecord(
    "l",
    "t",
    TopicPhase.ROLLBACK_PENDING,
    1,
    partitions=1,
    terms=PromoteTerms(asked_ms=1, way_back=True),
    fence_epoch=3,
    barrier={0: PartitionBarrier(50, 1)},
    promoted_ms=5,
    way_back=WAY,
)
OTHER = replace(ASKED, topic="u")
FENCED = replace(OTHER, phase=TopicPhase.ROLLBACK_FENCED, way_back=replace(WAY, fence_epoch=7))
BEHIND_FENCE = (TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED)


@pytest.fixture(autouse=True)
def _none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        return {}

    monkeypatch.setattr(transactions, "open_writers", open_writers)


@dataclass
class Stage:
    """Two topics that a controller rolls back at the same time; a router and a mirror obey."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(LINK, *SHARED, ASKED, OTHER, BOTH))
    target: Cluster = field(default_factory=Cluster)
    progress: PromoteProgress = field(default_factory=PromoteProgress)
    behind: str = ""
    """Name of a topic whose copy has not caught up."""

    def rollback(self, topic: str) -> TopicRollback:
        log: Any = self.log
        admin: Any = FakeAdmin()
        source: Any = Cluster()
        target: Any = self.target
        made = TopicRollback("l", topic, LinkClusters(log, source, admin, target, admin), self.progress)
        made.table.recent = FakeRecent(())  # type: ignore[assignment]
        return made

    def record(self, topic: str) -> TopicRecord:
        found = self.log.state.topic("l", topic)
        assert found is not None
        return found

    def reason(self, topic: str) -> str:
        way = self.record(topic).way_back
        return way.reason if way is not None else ""

    @property
    def phases(self) -> set[TopicPhase]:
        return {self.record(topic).phase for topic in "tu"}

    def obey(self) -> None:
        """Announce the router and the mirror as answers to the present records."""
        records = [self.record(topic) for topic in "tu"]
        fences = {r.key: FenceAck(r.newest_fence, 0) for r in records if r.newest_fence >= 0}
        self.log.say(RouterPresence("r1", "r", self.log.state.epoch, 500, fences))
        progress = {}
        for record in records:
            barrier = record.newest_barrier.get(0) if record.phase in BEHIND_FENCE else None
            position = 50 if record.topic == self.behind else 100
            at_barrier = barrier.offset if barrier is not None else -1
            progress[record.topic] = {0: PartitionProgress(position, 100, position, at_barrier=at_barrier)}
        self.log.say(MirrorPresence("m1", "l", self.log.state.epoch, True, 500, progress))

    async def run(self) -> None:
        async def engines() -> None:
            while True:
                self.obey()
                await asyncio.sleep(0.002)

        self.obey()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            working = tasks.create_task(engines())
            done = await asyncio.gather(*(self.rollback(t).run() for t in "tu"), return_exceptions=True)
            working.cancel()
        for error in filter(None, done):
            assert isinstance(error, Crashed), error

    @property
    def flips(self) -> list[TopicRecord]:
        return [r for r in self.log.history if isinstance(r, TopicRecord) and r.phase is TopicPhase.MIRRORING]


def closing(record: TopicRecord) -> bool:
    return record.way_back is not None and record.way_back.closing


def test_the_first_flip_of_a_unit_names_the_others_and_their_fences() -> None:
    stage = Stage()
    asyncio.run(stage.run())
    first, second = stage.flips
    assert dict(first.unit.topics) == {second.topic: ProvenTopic(second.fence_epoch)}
    assert second.unit == PromotedUnit()
    assert stage.phases == {TopicPhase.MIRRORING}
    assert [stage.record(topic).generation for topic in "tu"] == [1, 1]
    assert second.turned_epoch > first.turned_epoch > second.rolled_back_epoch


def test_transactions_go_on_until_all_topics_of_a_unit_are_ready() -> None:
    stage = Stage(behind="u")

    async def catches_up() -> None:
        running = asyncio.create_task(stage.run())
        await stage.log.wait(lambda _: stage.progress.ready or None, 20.0, "t to be ready")
        assert stage.phases == {TopicPhase.ROLLBACK_PENDING}
        assert not closing(stage.record("t"))
        stage.behind = ""
        await running

    asyncio.run(catches_up())
    assert stage.phases == {TopicPhase.MIRRORING}


def test_no_topic_of_a_unit_is_fenced_while_a_transaction_is_open_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, open_on_u = Stage(), {"till"}

    async def open_writers(_: Any, topic: str, __: int) -> dict[str, frozenset[int]]:
        return dict.fromkeys(open_on_u if topic == "u" else (), frozenset({1}))

    monkeypatch.setattr(transactions, "open_writers", open_writers)

    async def ends() -> None:
        running = asyncio.create_task(stage.run())
        await stage.log.wait(lambda _: stage.progress.closed or None, 20.0, "t to be closed")
        assert closing(stage.record("t"))
        assert (stage.progress.closed, stage.phases) == ({ASKED.key}, {TopicPhase.ROLLBACK_PENDING})
        open_on_u.clear()
        await running

    asyncio.run(ends())
    assert stage.phases == {TopicPhase.MIRRORING}


def test_a_topic_whose_leader_changes_after_all_stand_at_their_barriers_keeps_its_unit_at_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "_RECENT_S", 0.0)  # no answer from before the arrival counts
    stage = Stage()
    stage.target.elects = lambda topic: topic == "u" and len(stage.progress.at_barrier) == 2
    asyncio.run(stage.run())
    assert stage.phases == {TopicPhase.PROMOTED}
    assert stage.reason("u").startswith("target-moved")
    assert stage.reason("t").startswith("coupled-topics: u, which is written together with t, is not being rolled back")


def test_a_topic_waits_for_a_coupled_topic_that_nobody_has_asked_to_roll_back() -> None:
    promoted = replace(OTHER, phase=TopicPhase.PROMOTED)
    impatient = replace(ASKED, way_back=replace(WAY, terms=replace(TERMS, pending_timeout_s=0.05)))
    stage = Stage(MemoryLog(LINK, *SHARED, impatient, promoted, BOTH))
    asyncio.run(stage.run())
    assert stage.phases == {TopicPhase.PROMOTED}
    assert "u, which is written together with t, is not being rolled back" in stage.reason("t")
    assert stage.reason("t").startswith("not-ready")


def test_a_topic_that_is_given_up_before_the_fence_keeps_its_unit_at_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, none_open = Stage(), False

    async def open_writers(_: Any, topic: str, __: int) -> dict[str, frozenset[int]]:
        return {} if none_open or topic == "t" else {"till": frozenset({1})}

    monkeypatch.setattr(transactions, "open_writers", open_writers)

    async def taken_back() -> None:
        nonlocal none_open
        running = asyncio.create_task(stage.run())
        await stage.log.wait(lambda _: stage.progress.closed or None, 20.0, "t to be closed")
        await stage.log.append(lambda _: given_back(stage.record("u"), "cancelled: taken back by ann"))
        await stage.log.wait(lambda _: stage.reason("t") or None, 20.0, "t to be given up")
        none_open = True
        await running

    asyncio.run(taken_back())
    assert stage.phases == {TopicPhase.PROMOTED}
    why = "u, which is written together with t, is not being rolled back: cancelled: taken back by ann"
    assert stage.reason("t") == f"coupled-topics: {why}"
    assert not any(isinstance(r, TopicRecord) and r.phase in BEHIND_FENCE for r in stage.log.history)


def test_a_controller_that_takes_over_between_two_flips_flips_the_rest_and_asks_nobody() -> None:
    stage = Stage()

    def die(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.MIRRORING:
            stage.log.on_append = lambda _: dead()
            dead()

    def dead() -> None:
        raise Crashed

    stage.log.on_append = die
    append = stage.log.append

    async def refuse_the_dead(decide: Callable[[Any], Any], timeout: float = 30.0) -> Any:
        if stage.log.on_append is not die:
            raise Crashed
        return await append(decide, timeout)

    stage.log.append = refuse_the_dead  # type: ignore[method-assign]
    asyncio.run(stage.run())
    assert stage.phases == {TopicPhase.ROLLBACK_FENCED, TopicPhase.MIRRORING}

    after = Stage(stage.log, Cluster(elects=lambda _: True))
    after.log.append, after.log.on_append = append, lambda _: None  # type: ignore[method-assign]
    asyncio.run(after.run())
    assert after.phases == {TopicPhase.MIRRORING}
    assert [dict(after.record(topic).resumed) for topic in "tu"] == [{0: 100}] * 2


@pytest.mark.parametrize(("fence_epoch", "phase"), [(7, TopicPhase.ROLLBACK_FENCED), (6, TopicPhase.PROMOTED)])
def test_what_a_flip_names_with_its_present_fence_is_not_given_up(fence_epoch: int, phase: TopicPhase) -> None:
    unit = PromotedUnit({"u": ProvenTopic(fence_epoch)})
    stage = Stage(MemoryLog(LINK, replace(ASKED, phase=TopicPhase.MIRRORING, unit=unit), FENCED, BOTH))
    assert decided(stage.log.state, FENCED) == (unit.topics["u"] if fence_epoch == 7 else None)
    asyncio.run(stage.rollback("u")._unfence(Failed("target-moved", "its leader changed")))
    assert stage.record("u").phase is phase
