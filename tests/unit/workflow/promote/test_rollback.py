"""The rollback of a single topic on scripted clusters.

Every failed guard lifts the fence: the topic is promoted as before. The flip begins a new era.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster import acls
from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import FenceAck, MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    ClusterRef,
    CopyIdentity,
    DeniedWriters,
    GroupRecord,
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
from kmigrate.model.rights import Operations, Rights
from kmigrate.model.routes import Serve, id_shift, routing_table
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress
from kmigrate.workflow.promote import barrier, denying, transactions
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
    is_ready: set[str] = field(default_factory=set)
    """Keys of the groups of the topic's unit that can be frozen."""
    source_admin: FakeAdmin = field(default_factory=FakeAdmin)

    @property
    def record(self) -> TopicRecord:
        found = self.log.state.topic("l", "t")
        assert found is not None
        return found

    def obey(self) -> None:
        """Announce the router and the mirror as answers to the present record."""
        record = self.record
        closing = record.way_back is not None and record.way_back.closing
        behind_fence = record.phase in (TopicPhase.ROLLBACK_FENCING, TopicPhase.ROLLBACK_FENCED)
        fenced = (behind_fence or closing) and self.router_acks
        fences = {record.key: FenceAck(record.newest_fence, self.in_flight, self.marks)} if fenced else {}
        self.log.say(RouterPresence("r1", "r", self.log.state.epoch, 500, fences))
        progress = {}
        for partition in range(2):
            barrier = record.newest_barrier.get(partition) if fenced else None
            stop = -1 if barrier is None else barrier.offset if self.mirror_stops_at is None else self.mirror_stops_at
            progress[partition] = PartitionProgress(self.position, 100, self.position, self.problem, stop)
        self.log.say(MirrorPresence("m1", "l", self.log.state.epoch, True, 500, {"t": progress}))

    async def run(self) -> TopicRecord:
        clusters: Any = LinkClusters(self.log, self.source, self.source_admin, self.target, FakeAdmin())  # type: ignore[arg-type]
        rollback = TopicRollback("l", "t", clusters, PromoteProgress(set(self.is_ready)))
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


@pytest.fixture(autouse=True)
def _none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no coordinator of the target name an open transaction, unless the test says otherwise."""

    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        return {}

    monkeypatch.setattr(transactions, "open_writers", open_writers)


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


@dataclass
class SilentCluster(FakeCluster):
    """A cluster that falls silent after some questions about log ends."""

    answers: int = 0

    async def log_ends(self, keys: Any) -> dict[tuple[str, int], LogOffset]:
        if self.asked >= self.answers:
            await asyncio.Event().wait()
        return await super().log_ends(keys)


@pytest.mark.parametrize("answers", [0, 1])
def test_a_source_that_does_not_answer_in_time_is_named_and_the_topic_stays_promoted(
    monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """The source falls silent before the fence, or at the last check behind the fence."""
    monkeypatch.setattr(barrier, "_LAST_ANSWER_S", 0.0)
    silent = SilentCluster(settings=SimpleNamespace(name="old"), answers=answers)
    stage = Stage(source=silent)
    record = ended(stage)
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back is not None
    assert record.way_back.reason == "cluster-silent: cluster old has not answered within the fence timeout"
    assert (TopicPhase.ROLLBACK_FENCED in stage.phases) is bool(answers)


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        (StrayRecord("r2", "elsewhere", ("r2-1",)), "a process of router r2 has left without notice"),
        (
            TransactionRecord("l", "till", 1, 0, 2, 0, ("t", "u")),
            "together with topic u, which link l does not mirror (transactional id till)",
        ),
        (
            TransactionRecord("l", "till", 1, 0, -1, -1, ("t",), ("g",)),
            "together with the offsets of group g, which link l does not mirror",
        ),
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
    fenced = replace(PENDING, phase=TopicPhase.ROLLBACK_FENCED, former_copies=(5,), former_copies_at_target=(3,))
    assert rolled_back(fenced, 9).former_copies == (5, 17)
    again = rolled_back(replace(fenced, copy=CopyIdentity(4, 0)), 9)
    assert (again.former_copies_at_target, again.copy) == ((3, 4), None)


WRITER = TransactionRecord("l", "till", 1, 0, 2, 0, ("t",))


def with_open(monkeypatch: pytest.MonkeyPatch, *answers: tuple[str, ...]) -> list[TopicPhase]:
    """Have the target's coordinators name open transactions, the last answer for ever; return the asking phases."""
    left, stage_of = list(answers), list[TopicPhase]()

    async def open_writers(cluster: Any, topic: str, partitions: int) -> dict[str, frozenset[int]]:
        assert (topic, partitions) == ("t", 2)
        stage_of.append(cluster.stage.record.phase)
        names = left.pop(0) if len(left) > 1 else left[0]
        return {name: frozenset({1}) for name in names}

    monkeypatch.setattr(transactions, "open_writers", open_writers)
    return stage_of


PATIENT = replace(PENDING, way_back=replace(WAY, terms=replace(TERMS, pending_timeout_s=4.0, fence_timeout_s=4.0)))


def transactional(record: TopicRecord = PENDING) -> Stage:
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, WRITER, record))
    stage.target.stage = stage  # type: ignore[attr-defined]
    return stage


def test_the_fence_of_a_topic_with_transactions_follows_the_end_of_the_open_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No transaction begins from a record before the fence on, and the target is asked again behind the fence."""
    stage = transactional(PATIENT)
    asked = with_open(monkeypatch, ("till",), ("till",), ())
    record = ended(stage)
    assert record.phase is TopicPhase.MIRRORING
    assert asked == [TopicPhase.ROLLBACK_PENDING] * 3 + [TopicPhase.ROLLBACK_FENCING]
    steps = [each for each in stage.log.history if isinstance(each, TopicRecord) and each.way_back is not None]
    closing = [(each.phase, each.way_back.closing) for each in steps if each.way_back is not None]
    assert closing == [
        (TopicPhase.ROLLBACK_PENDING, False),
        (TopicPhase.ROLLBACK_PENDING, True),
        (TopicPhase.ROLLBACK_FENCING, False),
        (TopicPhase.ROLLBACK_FENCED, False),
    ]
    assert record.turned_epoch > record.rolled_back_epoch


def test_a_transaction_that_stays_open_gives_the_rollback_up_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = transactional()
    with_open(monkeypatch, ("till",))
    record = ended(stage)
    assert (record.phase, record.turned_epoch) == (TopicPhase.PROMOTED, -1)
    assert record.way_back is not None
    assert record.way_back.reason == "open-transaction: till has a transaction open on t at the target"
    assert (record.way_back.closing, record.way_back.open) == (False, True)
    assert TopicPhase.ROLLBACK_FENCING not in stage.phases


def test_a_transaction_that_no_coordinator_knows_is_named_by_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = transactional()
    stage.target.producers = (ProducerState(7, 0, 1, 1, 50),)
    with_open(monkeypatch, ())
    record = ended(stage)
    assert record.way_back is not None
    assert record.way_back.reason == "open-transaction: producer 7 has a transaction open on t at the target"


def test_a_router_that_does_not_say_that_no_transaction_begins_gives_the_rollback_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = transactional()
    stage.in_flight = 1
    with_open(monkeypatch, ())
    record = ended(stage)
    assert record.way_back is not None
    assert "router r still waits for 1 transaction(s) that begin at the target" in record.way_back.reason


def test_a_controller_that_takes_over_while_transactions_end_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PATIENT.way_back is not None
    stage = transactional(replace(PATIENT, way_back=replace(PATIENT.way_back, closing=True, fence_epoch=4)))
    with_open(monkeypatch, ())
    assert ended(stage).phase is TopicPhase.MIRRORING


def test_routers_let_no_transaction_begin_while_a_rollback_closes_the_topic() -> None:
    closing = replace(PENDING, way_back=replace(WAY, closing=True, fence_epoch=9))
    route = routing_table(MemoryLog(LINK, closing).state).topics["t"]
    assert (route.serve, route.closing, route.fenced, route.fence_epoch) == (Serve.LOCAL, True, True, 9)


def test_a_topic_that_is_coupled_while_its_transactions_end_is_not_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = transactional(PATIENT)
    wider = [replace(WRITER, topics=("t", "u"))]

    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        if wider:
            await stage.log.append(lambda _: wider.pop())
        return {}

    monkeypatch.setattr(transactions, "open_writers", open_writers)
    record = ended(stage)
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back is not None
    assert "together with topic u" in record.way_back.reason


GROUP = GroupRecord("l", "g", GroupPhase.ROLLING_BACK, 1, mode=GroupMode.FOLLOW)
COUPLED = TransactionRecord("l", "till", 1, 0, 2, 0, ("t",), ("g",))


def of_unit(group: GroupRecord = GROUP) -> Stage:
    return Stage(MemoryLog(LINK, ROUTER, *SHARED, COUPLED, PENDING, group), is_ready={GROUP.key})


def test_the_positions_of_a_group_go_over_between_the_last_transaction_and_the_fence_and_the_flip_names_the_group() -> (
    None
):
    stage = of_unit()

    def on_append(record: Any) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.ROLLBACK_PENDING:
            stage.log._put(GROUP.key, replace(GROUP, gathering=True, frozen=True, staged=True))

    stage.log.on_append = on_append
    record = ended(stage)
    assert (record.phase, record.unit.groups) == (TopicPhase.MIRRORING, ("g",))
    staged = next(at for at, each in enumerate(stage.log.history) if isinstance(each, GroupRecord) and each.staged)
    assert TopicPhase.ROLLBACK_FENCING not in {
        each.phase for each in stage.log.history[:staged] if isinstance(each, TopicRecord)
    }


def test_a_group_whose_positions_do_not_go_over_in_time_leaves_its_topic_promoted_without_a_fence() -> None:
    stage = of_unit()
    record = ended(stage)
    assert record.way_back is not None
    assert record.way_back.reason.startswith("coupled-group: t was not fenced: the positions of group g")
    assert TopicPhase.ROLLBACK_FENCING not in stage.phases


def test_a_group_that_is_given_up_leaves_its_topic_promoted_with_the_reason() -> None:
    stage = of_unit()
    failed = replace(GROUP, phase=GroupPhase.PROMOTED, reason="not-drained: router r")

    def on_append(record: Any) -> None:
        if isinstance(record, TopicRecord) and record.way_back is not None and record.way_back.closing:
            stage.log._put(GROUP.key, failed)

    stage.log.on_append = on_append
    record = ended(stage)
    assert record.way_back is not None
    assert "is not being rolled back: not-drained: router r" in record.way_back.reason
    assert TopicPhase.ROLLBACK_FENCING not in stage.phases


ENTRY = Acl("topic", "t", "User:ann", "*", "WRITE", allow=False)
IN_FORCE = DeniedWriters((ENTRY,), in_force=True)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Return a stage; the stage's source denies another writer."""
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, PROMOTES_TABLE, replace(PENDING, denied=IN_FORCE)))
    stage.source.settings = SimpleNamespace(name="old", security=SimpleNamespace(principal="User:kmigrate"))
    stage.source_admin.rules = {ENTRY}

    async def read_acls(*_: Any) -> frozenset[Acl]:
        return frozenset(stage.source_admin.rules)

    async def read_rights(*_: Any) -> Rights:
        return Rights(Operations.exactly({"ALTER"}))

    monkeypatch.setattr(acls, "read_acls", read_acls)
    monkeypatch.setattr(denying, "read_acls", read_acls)
    monkeypatch.setattr(denying, "read_rights", read_rights)
    return stage


def test_no_broker_of_the_source_denies_a_writer_any_more_when_the_topic_is_flipped(guarded: Stage) -> None:
    at_flip: list[set[Acl]] = []

    def look(record: Any) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.MIRRORING:
            at_flip.append(set(guarded.source_admin.rules))

    guarded.log.on_append = look
    record = ended(guarded)
    assert at_flip == [set()]
    assert record.denied is not None
    assert (record.denied.entries, record.denied.may_exist) == ((ENTRY,), False)


def test_until_the_last_check_other_writers_are_kept_out(guarded: Stage) -> None:
    guarded.source.ends = dict.fromkeys(KEYS, LogOffset(0, 101, 3))
    record = ended(guarded)
    assert (record.phase, guarded.source_admin.rules) == (TopicPhase.PROMOTED, {ENTRY})


def test_an_entry_that_stays_gives_the_rollback_up_and_is_put_in_force_again(
    guarded: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stubborn(_: Any) -> None: ...

    monkeypatch.setattr(guarded.source_admin, "delete_acls", stubborn)
    record = ended(guarded)
    assert record.phase is TopicPhase.PROMOTED
    assert record.way_back is not None
    assert "writers-still-denied" in record.way_back.reason
    assert record.denied == DeniedWriters((ENTRY,))


def test_a_rollback_waits_for_entries_that_are_on_their_way(guarded: Stage) -> None:
    guarded.log = MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, denied=DeniedWriters((ENTRY,))))
    record = ended(guarded)
    assert guarded.phases == [TopicPhase.ROLLBACK_PENDING, TopicPhase.PROMOTED]
    assert record.way_back is not None
    assert "keep User:ann out of the source are not in force yet" in record.way_back.reason


def test_a_source_that_lets_nobody_delete_the_entries_refuses_the_rollback_before_its_fence(
    guarded: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read_rights(*_: Any) -> Rights:
        return Rights(Operations.exactly({"DESCRIBE"}))

    monkeypatch.setattr(denying, "read_rights", read_rights)
    record = ended(guarded)
    assert guarded.phases == [TopicPhase.ROLLBACK_PENDING, TopicPhase.PROMOTED]
    assert record.way_back is not None
    assert "User:ann may not write t at old" in record.way_back.reason


@dataclass
class MortalAdmin(FakeAdmin):
    """An admin client of a controller that dies once, before or after the deletion of the entries."""

    after: bool = False
    died: bool = False

    async def delete_acls(self, acls: Any) -> None:
        if self.died or self.after:
            await super().delete_acls(acls)
        if not self.died:
            self.died = True
            raise RuntimeError("killed")


@pytest.mark.parametrize("after", [False, True])
def test_a_controller_that_dies_at_the_deletion_is_followed_by_one_that_flips_the_topic(
    guarded: Stage, after: bool
) -> None:
    guarded.source_admin = MortalAdmin(rules={ENTRY}, after=after)
    with pytest.raises(RuntimeError, match="killed"):
        ended(guarded)
    assert guarded.record.phase is TopicPhase.ROLLBACK_FENCED
    assert ended(guarded).phase is TopicPhase.MIRRORING
    assert guarded.source_admin.rules == set()
