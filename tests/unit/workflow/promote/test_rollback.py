"""The rollback of a single topic on scripted clusters.

Every failed guard lifts the fence: the topic is promoted as before. The flip begins a new era.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import FenceAck, MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    ClusterRef,
    CopyIdentity,
    LeaseRecord,
    LinkRecord,
    PartitionBarrier,
    ProducerMark,
    PromoteTerms,
    RollbackTerms,
    RouterRecord,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
    WayBack,
)
from kmigrate.model.routes import Serve, id_shift, routing_table
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.promote.rollback import TopicRollback, rolled_back
from tests.fakes.scripted_cluster import KEYS, FakeAdmin, FakeCluster, FakeRecent
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
TERMS = RollbackTerms(asked_ms=1, lag_threshold=10, pending_timeout_s=0.3, fence_timeout_s=0.3)
ROUTER = RouterRecord("r", "r1", "host", "host:1", 1)
SHARED = (LeaseRecord("mirror/l", "m1", 1), AssignmentRecord("l", 2, ("m1",), {"t": (0, 0)}))
WAY = WayBack({0: 50, 1: 50}, CopyIdentity(17, 0), terms=TERMS)
PENDING = TopicRecord(
    "l",
    "t",
    TopicPhase.ROLLBACK_PENDING,
    1,
    partitions=2,
    terms=PromoteTerms(asked_ms=1, way_back=True),
    fence_epoch=3,
    barrier={0: PartitionBarrier(50, 1), 1: PartitionBarrier(50, 1)},
    promoted_ms=5,
    way_back=WAY,
)
PROMOTES_TABLE = BarrierRecord("l", "t", 0, 3, {0: (ProducerMark(6, 0, 8), ProducerMark(7, 0, 3))})


@dataclass
class Stage:
    """A promoted topic with a router and a mirror, which obey unless the test says otherwise."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(LINK, ROUTER, *SHARED, PROMOTES_TABLE, PENDING))
    source: FakeCluster = field(default_factory=FakeCluster)
    target: FakeCluster = field(default_factory=FakeCluster)
    router_acks: bool = True
    in_flight: int = 0
    mirror_stops_at: int | None = None
    problem: str = ""
    position: int = 100
    marks: dict[int, tuple[ProducerMark, ...]] = field(default_factory=dict)
    recent: FakeRecent = field(default_factory=lambda: FakeRecent(()))

    @property
    def record(self) -> TopicRecord:
        found = self.log.state.topic("l", "t")
        assert found is not None
        return found

    def obey(self) -> None:
        """Announce the router and the mirror as answers to the present record."""
        record = self.record
        fenced = record.phase in (TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED) and self.router_acks
        fences = {record.key: FenceAck(record.newest_fence, self.in_flight, self.marks)} if fenced else {}
        self.log.say(RouterPresence("r1", "r", self.log.state.epoch, 500, fences))
        progress = {}
        for partition in range(2):
            barrier = record.newest_barrier.get(partition) if fenced else None
            stop = -1 if barrier is None else barrier.offset if self.mirror_stops_at is None else self.mirror_stops_at
            progress[partition] = PartitionProgress(self.position, 100, self.position, self.problem, stop)
        self.log.say(MirrorPresence("m1", "l", self.log.state.epoch, True, 500, {"t": progress}))

    async def run(self) -> TopicRecord:
        clusters: Any = LinkClusters(self.log, self.source, FakeAdmin(), self.target, FakeAdmin())  # type: ignore[arg-type]
        rollback = TopicRollback("l", "t", clusters)
        rollback.table.recent = self.recent  # type: ignore[assignment]

        async def engines() -> None:
            while True:
                self.obey()
                await asyncio.sleep(0.005)

        async with asyncio.timeout(5):
            working = asyncio.get_running_loop().create_task(engines())
            try:
                await rollback.run()
            finally:
                working.cancel()
        return self.record

    @property
    def phases(self) -> list[TopicPhase]:
        return [each.phase for each in self.log.history if isinstance(each, TopicRecord)]


def ended(stage: Stage) -> TopicRecord:
    return asyncio.run(stage.run())


def test_a_topic_goes_through_all_phases_once_and_is_mirrored_in_a_new_era() -> None:
    stage = Stage()
    record = ended(stage)
    assert stage.phases == [
        TopicPhase.ROLLBACK_PENDING,
        TopicPhase.ROLLBACK_FENCING,
        TopicPhase.ROLLBACK_FENCED,
        TopicPhase.MIRRORING,
    ]
    assert (record.generation, record.resumed, record.former_copies) == (1, {0: 100, 1: 100}, (17,))
    assert record.fence_epoch == record.rolled_back_epoch > 3
    assert record.rolled_back_ms >= record.fenced_ms > 0
    left = (record.way_back, record.terms, record.barrier, record.copy, record.promoted_ms)
    assert left == (None, None, {}, None, 0)


def test_routers_send_writes_to_the_source_with_the_shift_of_the_new_generation_and_the_gate_of_the_rollback() -> None:
    stage = Stage(target=FakeCluster(producers=(ProducerState(7, 0, 41, 1, -1),)))
    ended(stage)
    route = routing_table(stage.log.state).topics["t"]
    assert route.serve is Serve.FORWARD
    assert route.shift == route.target_shift == id_shift("target-id", "u", 1)
    assert route.gate[0] == (ProducerMark(6, 0, 8), ProducerMark(7, 0, 41))
    assert route.gate[1] == (ProducerMark(7, 0, 41),)


def test_the_barrier_table_has_the_producers_of_the_target_of_routers_and_of_the_promote_before() -> None:
    """The promote's mark of a producer counts only where the target does not know the producer."""
    stage = Stage(
        target=FakeCluster(producers=(ProducerState(7, 0, 41, 1, -1), ProducerState(1 << 41, 0, 2, 1, -1))),
        marks={0: (ProducerMark(9, 0, 1),)},
    )
    ended(stage)
    (table,) = [each for each in stage.log.history if isinstance(each, BarrierRecord) and each.back]
    assert table.producers[0] == (ProducerMark(6, 0, 8), ProducerMark(7, 0, 41), ProducerMark(9, 0, 1))
    assert stage.log.state.records.get(PROMOTES_TABLE.key) == PROMOTES_TABLE


def test_in_a_later_generation_the_target_has_shifted_ids() -> None:
    shift = id_shift("target-id", "u", 2)
    stage = Stage(
        MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, generation=2)),
        target=FakeCluster(producers=(ProducerState(shift + 7, 0, 41, 1, -1), ProducerState(7, 0, 99, 1, -1))),
    )
    assert ended(stage).generation == 3
    (table,) = [each for each in stage.log.history if isinstance(each, BarrierRecord)]
    assert table.producers == dict.fromkeys((0, 1), (ProducerMark(7, 0, 41),))


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"router_acks": False}, "router r on host has not acknowledged the fence"),
        ({"in_flight": 3}, "router r still waits for 3 answer(s) of the target"),
        ({"mirror_stops_at": 99}, "waiting: mirror at 100 of barrier 100"),
        ({"problem": "diverged"}, "partition 0 has stopped: diverged"),
        ({"position": 80}, "partition 0 is 20 records behind"),
        ({"target": FakeCluster(grows=1)}, "the target log of t-0 grew"),
        ({"target": FakeCluster(partitions=3)}, "has 3 partitions on cluster and 2 of it are mirrored"),
        ({"target": FakeCluster(producers=(ProducerState(7, 0, 1, 1, 50),))}, "has a transaction open"),
        ({"target": FakeCluster(producers=(ProducerState(7, 0, 1, 1, -1, 0),))}, "at the target (producer id 7)"),
        (
            {"source": FakeCluster(ends=dict.fromkeys(KEYS, LogOffset(0, 99, 0)))},
            "the source's log of t-0 ends at 99, not 100",
        ),
    ],
)
def test_a_failed_guard_leaves_the_topic_promoted_with_the_reason(trouble: dict[str, Any], reason: str) -> None:
    stage = Stage(**trouble)
    record = ended(stage)
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back is not None
    assert reason in record.way_back.reason
    assert record.way_back.open
    assert (record.way_back.terms, record.way_back.barrier, record.barrier) == (None, {}, PENDING.barrier)
    assert (record.generation, record.promoted_ms) == (0, 5)


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        (StrayRecord("r2", "elsewhere", ("r2-1",)), "a process of router r2 has left without notice"),
        (TransactionRecord("l", "payments", 1, 0, 2, 0, ("t",)), "written in transactions (transactional id payments)"),
    ],
)
def test_a_topic_is_not_fenced_for_nothing(against: Any, reason: str) -> None:
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, against, PENDING))
    record = ended(stage)
    assert record.way_back is not None
    assert reason in record.way_back.reason
    assert stage.phases == [TopicPhase.ROLLBACK_PENDING, TopicPhase.PROMOTED]


def test_a_silent_router_gives_the_rollback_up_by_name() -> None:
    silent = RouterRecord("quiet", "r9", "elsewhere", "host:9", 1)
    record = ended(Stage(MemoryLog(LINK, ROUTER, silent, *SHARED, PENDING)))
    assert record.way_back is not None
    assert "router quiet on elsewhere is registered but silent" in record.way_back.reason


@pytest.mark.parametrize(
    "phase", [TopicPhase.ROLLBACK_PENDING, TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED]
)
def test_a_way_back_that_ends_meanwhile_ends_the_rollback(phase: TopicPhase) -> None:
    way = replace(WAY, ended="a foreign record at offset 52", fence_epoch=4)
    record = ended(Stage(MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, phase=phase, way_back=way))))
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back is not None
    assert record.way_back.reason == "no-way-back: a foreign record at offset 52"


def test_a_controller_that_takes_over_behind_the_fence_goes_on() -> None:
    way = replace(WAY, fence_epoch=4, fenced_ms=7)
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, phase=TopicPhase.ROLLBACK_FENCING, way_back=way)))
    record = ended(stage)
    assert (record.phase, record.rolled_back_epoch, record.fenced_ms) == (TopicPhase.MIRRORING, 4, 7)


def test_former_copies_are_remembered_over_several_rollbacks() -> None:
    fenced = replace(PENDING, phase=TopicPhase.ROLLBACK_FENCED, former_copies=(5,))
    assert rolled_back(fenced, 9).former_copies == (5, 17)
