"""The promote of a single topic on scripted clusters.

Every failed guard lifts the fence. A controller that crashes after any write is succeeded by the next controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster import acls
from kmigrate.cluster.client import LogOffset, ProducerState
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.acls import Acl
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import FenceAck, MirrorPresence, PartitionProgress, RouterPresence, Upkept
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    ClusterRef,
    GroupRecord,
    LeaseRecord,
    LinkRecord,
    ProducerMark,
    PromoteTerms,
    RouterRecord,
    TopicRecord,
    TransactionRecord,
)
from kmigrate.model.routes import id_shift
from kmigrate.model.stops import OWNER_UNSURE
from kmigrate.protocol.codes import Code
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress
from kmigrate.workflow.promote import outcome
from kmigrate.workflow.promote import topic as promote
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.promote.sealing import Sealer
from kmigrate.workflow.promote.topic import TopicPromotion
from tests.fakes.scripted_cluster import KEYS, FakeAdmin, FakeCluster, FakeRecent
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
SHIFT = id_shift("target-id", "u", 0)
TERMS = PromoteTerms(asked_ms=1, lag_threshold=10, pending_timeout_s=0.3, fence_timeout_s=0.3)
ROUTER = RouterRecord("r", "r1", "host", "host:1", 1)
PENDING = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 1, partitions=2, terms=TERMS, restore_configs={"a": "b"})
SHARED = (LeaseRecord("mirror/l", "m1", 1), AssignmentRecord("l", 2, ("m1",), {"t": (0, 0)}))


@dataclass
class Stage:
    """A topic with a router and a mirror, which obey unless the test says otherwise."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(LINK, ROUTER, *SHARED, PENDING))
    source: FakeCluster = field(default_factory=FakeCluster)
    target: FakeCluster = field(default_factory=FakeCluster)
    admin: FakeAdmin = field(default_factory=FakeAdmin)
    router_acks: bool = True
    in_flight: int = 0
    source_admin: FakeAdmin = field(default_factory=FakeAdmin)
    silent_s: float = 60.0
    mirror_stops_at: int | None = None
    problem: str = ""
    trouble: str = ""
    source_end: int = 100
    """Log end of each partition at the source, of which the mirror has copied 100 offsets."""
    upkeep: str | None = ""
    speaks: str = "m1"
    """Name of the mirror process that speaks; m1 owns the partitions."""
    reads_fences: bool = True
    mapped_to: int = -1
    """Target offset of the barrier that the mirror reports for a mapped topic."""
    marks: dict[int, tuple[ProducerMark, ...]] = field(default_factory=dict)
    recent: FakeRecent = field(default_factory=lambda: FakeRecent(()))

    def promotion(self) -> TopicPromotion:
        sealer = Sealer(self.log, self.source, self.source_admin, self.silent_s)  # type: ignore[arg-type]
        clusters: Any = LinkClusters(self.log, self.source, self.source_admin, self.target, self.admin)  # type: ignore[arg-type]
        made = TopicPromotion("l", "t", clusters, sealer)
        made.table.recent = self.recent  # type: ignore[assignment]
        return made

    @property
    def record(self) -> TopicRecord:
        found = self.log.state.topic("l", "t")
        assert found is not None
        return found

    def obey(self) -> None:
        """Announce the router and the mirror as answers to the present record."""
        record = self.record
        fences = {}
        if (record.phase in (TopicPhase.FENCING, TopicPhase.FENCED) or record.closing) and self.router_acks:
            fences = {record.key: FenceAck(record.fence_epoch, self.in_flight, self.marks)}
        self.log.say(RouterPresence("r1", "r", self.log.state.epoch, 500, fences))
        progress = {}
        for partition in range(2):
            barrier = record.barrier.get(partition)
            stop = -1 if barrier is None else barrier.offset if self.mirror_stops_at is None else self.mirror_stops_at
            progress[partition] = PartitionProgress(
                100, self.source_end, 100, self.problem, stop, trouble=self.trouble, target_position=self.mapped_to
            )
        upkeep = {"t": Upkept(record.since_ms, self.upkeep)} if self.upkeep is not None else {}
        applied = self.log.state.epoch if self.reads_fences else max(-1, record.fence_epoch - 1)
        self.log.say(MirrorPresence(self.speaks, "l", applied, True, 500, {"t": progress}, upkeep))

    async def run(self) -> TopicRecord:
        async with asyncio.timeout(5):

            async def engines() -> None:
                while True:
                    self.obey()
                    await asyncio.sleep(0.005)

            working = asyncio.get_running_loop().create_task(engines())
            try:
                await self.promotion().run()
            finally:
                working.cancel()
        return self.record


def promoted(stage: Stage) -> TopicRecord:
    return asyncio.run(stage.run())


def test_a_topic_goes_through_all_phases_once_and_gets_its_configs_back() -> None:
    stage = Stage()
    record = promoted(stage)
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [
        TopicPhase.PROMOTE_PENDING,
        TopicPhase.FENCING,
        TopicPhase.FENCED,
        TopicPhase.PROMOTED,
        TopicPhase.PROMOTED,
    ]
    assert not record.unsettled
    assert {p: b.offset for p, b in record.barrier.items()} == {0: 100, 1: 100}
    assert stage.admin.altered == [("t", {"a": "b"}, ())]


def test_a_barrier_that_an_owner_tells_of_without_having_read_of_this_fence_is_not_believed() -> None:
    record = promoted(Stage(reads_fences=False))
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason.startswith("barrier-not-reached")


def test_a_group_that_has_come_to_read_the_topic_since_the_promote_was_asked_for_keeps_it_from_being_fenced() -> None:
    """A topic is not fenced when a mirrored group has begun to read the topic since the request.

    Members of the group would commit on the source what they read on the target.
    """
    group = GroupRecord("l", "g", GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, PENDING, group))
    stage.source.assigned = frozenset({"t"})
    record = promoted(stage)
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [TopicPhase.PROMOTE_PENDING, TopicPhase.MIRRORING]
    assert record.reason == "group-not-promoted: group g reads t and is mirrored"


def test_what_a_promote_waits_for_is_told_until_it_is_over() -> None:
    stage = Stage(upkeep=None)
    told: dict[str, str] = {}

    async def scenario() -> None:
        stage.obey()
        work = asyncio.create_task(replace(stage.promotion(), progress=PromoteProgress(waits=told)).run())
        await asyncio.sleep(0.05)
        assert told[stage.record.key].startswith("the mirror has not compared")
        stage.router_acks, stage.upkeep = False, ""
        while stage.record.phase is not TopicPhase.FENCING:
            stage.obey()
            await asyncio.sleep(0.005)
        stage.obey()
        await asyncio.sleep(0.05)
        assert told[stage.record.key] == "router r on host has not acknowledged the fence"
        await work

    asyncio.run(scenario())
    assert stage.record.phase is TopicPhase.MIRRORING
    assert told == {}


def test_the_promote_of_a_topic_that_is_forgotten_is_over_at_once() -> None:
    stage = Stage(upkeep=None)
    old = replace(PENDING, terms=replace(TERMS, pending_timeout_s=60))
    stage.log = MemoryLog(LINK, ROUTER, *SHARED, old)

    async def forget() -> None:
        promotion = stage.promotion()
        running = asyncio.create_task(promotion.run())
        await asyncio.sleep(0.02)
        await stage.log.append(lambda _: (old.key, None))
        async with asyncio.timeout(20):
            await running

    asyncio.run(forget())


def test_a_promote_that_waits_for_a_forgotten_topic_does_not_give_up_the_next_one_of_that_name() -> None:
    stage = Stage(upkeep=None)
    stage.log = MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, terms=replace(TERMS, pending_timeout_s=0.2)))
    again = replace(PENDING, since_ms=2, terms=replace(TERMS, pending_timeout_s=9.0))

    async def forget_and_promote_again() -> None:
        running = asyncio.create_task(stage.promotion().run())
        await asyncio.sleep(0.02)
        await stage.log.append(lambda _: (again.key, None))
        await stage.log.append(lambda _: again)
        await asyncio.sleep(0.4)
        running.cancel()

    asyncio.run(forget_and_promote_again())
    assert stage.log.state.topic("l", "t") == again


def test_a_topic_whose_record_is_changed_a_moment_before_its_fence_is_fenced_all_the_same() -> None:
    """A record that changes just before the fence does not stop the promote.

    Otherwise the topic would keep its turn without a fence, and every later promote would wait.
    """
    stage = Stage()
    log_ends = stage.source.log_ends

    async def overtaken(keys: Any) -> Any:
        if stage.record.drop_configs != ("x",):
            stage.log._put(stage.record.key, replace(stage.record, drop_configs=("x",)))
        return await log_ends(keys)

    stage.source.log_ends = overtaken  # type: ignore[method-assign]
    assert promoted(stage).phase is TopicPhase.PROMOTED


def test_a_promote_that_is_taken_back_a_moment_before_its_fence_is_not_fenced() -> None:
    """A promote that is cancelled just before the fence is not fenced, although the last look found all ready."""
    stage = Stage()
    taken_back = given_up(PENDING, "cancelled: taken back by ann")
    stage.log.meanwhile(lambda _: taken_back)
    assert promoted(stage) == taken_back
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [TopicPhase.PROMOTE_PENDING, TopicPhase.MIRRORING]


def test_the_word_of_a_mirror_that_does_not_own_the_partitions_is_not_believed() -> None:
    record = promoted(Stage(speaks="m2"))
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason.startswith("not-ready: t was not ready to be fenced: no running mirror reports partition 0")


def test_a_topic_whose_copy_waits_for_room_on_the_target_is_not_fenced_and_says_so() -> None:
    reason = promoted(Stage(trouble="target-disk-low: waits for room on broker 2")).reason
    assert "partition 0 is not copied on: target-disk-low: waits for room on broker 2" in reason


def test_a_topic_is_not_fenced_while_its_mirror_writes_no_markers_because_its_presence_is_late() -> None:
    trouble = f"source: slow; {OWNER_UNSURE}"
    reason = promoted(Stage(trouble=trouble, source_end=101)).reason
    assert reason.endswith(f"partition 0 is not copied on: {trouble}")
    assert promoted(Stage(trouble=trouble, source_end=100)).phase is TopicPhase.PROMOTED


def test_a_mirror_that_misses_the_barrier_says_why() -> None:
    reason = promoted(Stage(mirror_stops_at=99, trouble="target: slow")).reason
    assert "waiting: mirror at 100 of barrier 100, partition 0: target: slow" in reason


def test_a_topic_whose_source_has_no_batch_up_to_its_end_is_not_fenced_for_nothing() -> None:
    """A topic whose source has no batch up to its log end is not fenced (KAFKA-17076).

    No copy reaches that log end, so writers would wait until the fence is given up.
    """
    stage = Stage(trouble="source-without-batch: the source has no batch from offset 98 to its end 100")
    reason = promoted(stage).reason
    assert "partition 0 does not come to the source's end: source-without-batch: the source has no batch" in reason
    assert {r.phase for r in stage.log.history if isinstance(r, TopicRecord)} == {
        TopicPhase.PROMOTE_PENDING,
        TopicPhase.MIRRORING,
    }


def test_the_barrier_table_joins_what_routers_and_the_broker_know_in_the_clients_ids() -> None:
    stage = Stage(
        source=FakeCluster(
            producers=(
                ProducerState(SHIFT + 7, 0, 41, 1, -1),
                ProducerState(SHIFT + 8, 2, 5, 1, -1),
                ProducerState(12, 0, 9, 1, -1),
            )
        ),
        marks={0: (ProducerMark(7, 0, 44), ProducerMark(9, 0, 1))},
    )
    promoted(stage)
    (barrier,) = [r for r in stage.log.history if isinstance(r, BarrierRecord)]
    assert barrier.producers == {
        0: (ProducerMark(7, 0, 41), ProducerMark(8, 2, 5), ProducerMark(9, 0, 1)),
        1: (ProducerMark(7, 0, 41), ProducerMark(8, 2, 5)),
    }
    flip = next(i for i, r in enumerate(stage.log.history) if isinstance(r, TopicRecord) and r.promoted_ms)
    assert stage.log.history.index(barrier) < flip, "routers read the table before the flip"


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_a_router_saw_long_ago_is_not_taken_for_newer_than_what_the_source_holds(forgotten: bool) -> None:
    """An old sequence that a router reports does not replace the newer sequence of the source.

    The producer has written 1.5 billion records through another router since, and sequences wrap at two billion.
    """
    held = 44 + 3 * (1 << 29)
    stage = Stage(
        source=FakeCluster(producers=() if forgotten else (ProducerState(SHIFT + 7, 0, held, 1, -1),)),
        marks={0: (ProducerMark(7, 0, 44),)},
        recent=FakeRecent((ProducerMark(SHIFT + 7, 0, held),)),
    )
    promoted(stage)
    (barrier,) = [r for r in stage.log.history if isinstance(r, BarrierRecord)]
    assert barrier.producers == dict.fromkeys((0, 1), (ProducerMark(7, 0, held),))


def test_what_only_the_end_of_the_sources_log_remembers_is_in_the_barrier_table() -> None:
    marks = (ProducerMark(SHIFT + 7, 0, 44), ProducerMark(SHIFT + 8, 0, 3), ProducerMark(12, 0, 9))
    recent = FakeRecent(marks)
    stage = Stage(source=FakeCluster(producers=(ProducerState(SHIFT + 8, 0, 5, 1, -1),)), recent=recent)
    promoted(stage)
    (barrier,) = [r for r in stage.log.history if isinstance(r, BarrierRecord)]
    assert barrier.producers == dict.fromkeys((0, 1), (ProducerMark(7, 0, 44), ProducerMark(8, 0, 5)))
    assert recent.asked == [100, 100] * 2, "once before the fence, and to the barrier behind it"


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"router_acks": False}, "has not acknowledged the fence"),
        ({"in_flight": 3}, "still waits for 3 answer(s)"),
        ({"mirror_stops_at": 99}, "waiting: mirror at 100 of barrier 100"),
        ({"problem": "disk full"}, "disk full"),
        ({"upkeep": None}, "has not compared its partitions, configs and ACLs"),
        ({"upkeep": "source-topic-gone: deleted"}, "does not follow the source: source-topic-gone"),
        ({"source": FakeCluster(partitions=3)}, "has 3 partitions on cluster and 2 of it are mirrored"),
        ({"target": FakeCluster(partitions=1)}, "has 1 partitions on cluster and 2 of it are mirrored"),
        ({"source": FakeCluster(grows=1)}, "somebody writes directly"),
        ({"source": FakeCluster(producers=(ProducerState(SHIFT + 1, 0, 1, 1, 50),))}, "a transaction open"),
        ({"target": FakeCluster(ends=dict.fromkeys(KEYS, LogOffset(0, 99, 0)))}, "ends at 99, not 100"),
    ],
)
def test_whatever_goes_wrong_before_the_flip_unfences_and_says_why(trouble: dict[str, Any], reason: str) -> None:
    record = promoted(Stage(**trouble))
    assert record.phase is TopicPhase.MIRRORING
    assert reason in record.reason
    assert record.barrier == {}


READ, WRITE = (Acl("topic", "t", "User:ann", "*", operation) for operation in ("READ", "WRITE"))
HAND = Acl("topic", "t", "User:hand", "*", "WRITE")


def guarded(monkeypatch: pytest.MonkeyPatch, **trouble: Any) -> Stage:
    """Return a stage whose target has an authorizer, with the readers' ACL and an ACL of a writer set by hand."""
    record = replace(PENDING, granted_acls=(READ,), promote_acls=(WRITE, HAND))
    stage = Stage(log=MemoryLog(LINK, ROUTER, *SHARED, record), **trouble)
    stage.admin.rules = {READ, HAND}
    asked: list[int | None] = []

    async def told(_: Any, node: int | None = None) -> frozenset[Acl]:
        asked.append(node)
        return frozenset(stage.admin.rules) - ({WRITE} if asked.count(node) < 3 else set())

    monkeypatch.setattr(outcome, "read_acls", told)
    monkeypatch.setattr(acls, "read_acls", told)
    return stage


def test_writers_rules_are_known_to_every_broker_before_the_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = guarded(monkeypatch)
    at_flip: list[set[Acl]] = []

    def look(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.unsettled:
            at_flip.append(set(stage.admin.rules))

    stage.log.on_append = look
    record = promoted(stage)
    assert record.phase is TopicPhase.PROMOTED
    assert at_flip == [{READ, WRITE, HAND}]
    assert stage.admin.rules == {WRITE, HAND}, "the source has no rule for the reader any more"


def test_rules_of_a_promote_that_is_given_up_are_left_to_the_mirror_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    record = promoted(guarded(monkeypatch, mirror_stops_at=99))
    assert record.phase is TopicPhase.MIRRORING
    assert record.granted_acls == (READ, WRITE), "the rule that was set by hand is not kmigrate's to take back"


@pytest.mark.parametrize("accepted", [False, True])
def test_a_source_that_grows_after_the_barrier_is_not_flipped_unless_a_person_accepts_its_writers(
    accepted: bool,
) -> None:
    pending = replace(PENDING, terms=replace(TERMS, accept_direct=accepted))
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, pending))

    def grow(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.FENCED:
            stage.source.ends = dict.fromkeys(KEYS, LogOffset(0, 101, 3))

    stage.log.on_append = grow
    record = promoted(stage)
    expected = (TopicPhase.PROMOTED, "") if accepted else (TopicPhase.MIRRORING, "source-moved")
    assert (record.phase, record.reason.split(":")[0]) == expected


def test_a_new_leader_epoch_after_the_barrier_is_not_flipped() -> None:
    stage = Stage()

    def elect(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.phase is TopicPhase.FENCED:
            stage.source.ends = dict.fromkeys(KEYS, LogOffset(0, 100, 4))

    stage.log.on_append = elect
    assert promoted(stage).phase is TopicPhase.MIRRORING


def test_a_silent_router_keeps_the_topic_from_being_fenced_at_all() -> None:
    stage = Stage(log=MemoryLog(LINK, ROUTER, *SHARED, RouterRecord("dead", "d1", "far", "far:1", 1), PENDING))
    record = promoted(stage)
    assert record.phase is TopicPhase.MIRRORING
    assert "router dead on far is registered but silent" in record.reason
    assert record.fence_epoch == -1


def test_a_second_fence_has_a_higher_epoch_so_old_acknowledgements_do_not_count() -> None:
    stage = Stage(in_flight=1)
    first = promoted(stage).fence_epoch
    stage.in_flight = 0
    asyncio.run(stage.log.append(lambda state: replace(PENDING, fence_epoch=first)))
    assert promoted(stage).phase is TopicPhase.PROMOTED
    assert stage.record.fence_epoch > first


def test_a_mapped_topic_is_flipped_where_the_target_ends_as_its_map_puts_the_barrier() -> None:
    log = MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, mapped=True))
    stage = Stage(log=log, mapped_to=907, target=FakeCluster(ends=dict.fromkeys(KEYS, LogOffset(0, 907, 0))))
    record = promoted(stage)
    assert (record.phase, dict(record.target_ends)) == (TopicPhase.PROMOTED, {0: 907, 1: 907})


def test_a_mapped_topic_whose_target_ends_elsewhere_is_not_flipped() -> None:
    log = MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, mapped=True))
    record = promoted(Stage(log=log, mapped_to=907))
    assert record.phase is TopicPhase.MIRRORING
    assert "ends at 100, not 907" in record.reason
    assert record.target_ends == {}


class Crashed(Exception):
    """A stand-in for kill -9 right after a durable write."""


@pytest.mark.parametrize("write", range(5))
def test_a_controller_that_dies_after_any_write_is_picked_up_by_the_next(write: int) -> None:
    stage = Stage(marks={0: (ProducerMark(7, 0, 44),)})
    left = [write]

    def crash(_: Record | None) -> None:
        if left[0] == 0:
            left[0] = -1
            raise Crashed
        left[0] -= 1

    stage.log.on_append = crash
    with pytest.raises(Crashed):
        promoted(stage)
    record = promoted(stage)
    assert record.phase is TopicPhase.PROMOTED
    flips = [r for r in stage.log.history if isinstance(r, TopicRecord) and r.unsettled]
    assert len(flips) == 1
    assert not record.unsettled
    assert ("t", {"a": "b"}, ()) in stage.admin.altered


def test_two_controllers_at_once_flip_once() -> None:
    stage = Stage()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            group.create_task(stage.promotion().run())

    asyncio.run(both())
    assert [r.unsettled for r in stage.log.history if isinstance(r, TopicRecord)].count(True) == 1
    assert stage.record.phase is TopicPhase.PROMOTED


def test_a_leader_of_the_source_that_another_replica_knows_to_be_replaced_is_not_believed_behind_the_fence() -> None:
    """A leader that was replaced gives no valid log end, so the promote is given up.

    The new leader has acknowledged records that the former leader lacks, so the copy is not complete.
    """
    stage = Stage()
    log_ends = stage.source.log_ends

    async def replaced(keys: Any) -> Any:
        if stage.record.phase is TopicPhase.FENCED:
            stage.source.follower = LogOffset(Code.FENCED_LEADER_EPOCH, -1, -1)
        return await log_ends(keys)

    stage.source.log_ends = replaced  # type: ignore[method-assign]
    record = promoted(stage)
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason.startswith("source-moved: the source's leader of t-0 changed after the barrier")


async def lives_on(*_: Any) -> None:
    """Find every transactional id at the target."""


def transactional(**given: Any) -> Stage:
    """Return the stage of a topic that is written in transactions."""
    till = TransactionRecord("l", "till", 7, 0, 8, 0, ("t",))
    return Stage(MemoryLog(LINK, ROUTER, *SHARED, PENDING, till), **given)


def test_a_topic_is_fenced_only_once_its_open_transactions_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers without transactions do not wait for a transaction's end."""
    stage, seen = transactional(), list[TopicRecord]()

    async def ends_later(*_: Any) -> bool:
        seen.append(stage.record)
        await asyncio.sleep(0.05)
        seen.append(stage.record)
        return True

    monkeypatch.setattr(promote, "wait_for_ends", ends_later)
    monkeypatch.setattr(promote, "refuse_lost_ids", lives_on)
    record = promoted(stage)
    assert (record.phase, record.closing) == (TopicPhase.PROMOTED, False)
    assert [(each.phase, each.closing) for each in seen[:2]] == [(TopicPhase.PROMOTE_PENDING, True)] * 2
    assert seen[2].phase is TopicPhase.FENCING
    assert 0 <= seen[0].fence_epoch < seen[2].fence_epoch


def test_a_transaction_that_lasts_longer_than_a_fence_may_keeps_its_topic_from_being_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lasts(*_: Any) -> None:
        raise Refused("open-transaction", "till has a transaction open on t at the source")

    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        return {"till": frozenset({7})}

    stage = transactional()
    monkeypatch.setattr(promote, "wait_for_ends", lasts)
    monkeypatch.setattr(promote, "open_writers", open_writers)
    monkeypatch.setattr(promote, "refuse_lost_ids", lives_on)
    record = promoted(stage)
    assert record.reason.startswith("open-transaction: till has a transaction open on t at the source for longer than")
    assert "transaction.timeout.ms" in record.way_on
    assert (record.phase, record.closing) == (TopicPhase.MIRRORING, False)
    assert not any(isinstance(r, TopicRecord) and r.phase is TopicPhase.FENCING for r in stage.log.history)


def test_a_router_that_lets_transactions_begin_keeps_their_topic_from_being_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(promote, "refuse_lost_ids", lives_on)
    record = promoted(transactional(in_flight=1))
    assert record.reason.startswith("not-drained: router r still waits for 1 transaction(s) that begin at the source")
    assert (record.phase, record.closing) == (TopicPhase.MIRRORING, False)


@pytest.mark.parametrize("markers", [False, True])
def test_the_last_sequences_are_read_again_if_a_marker_was_written_after_the_first_log_end(
    monkeypatch: pytest.MonkeyPatch, markers: bool
) -> None:
    """The marks are read while the controller asks for the log ends again: only the same ends make the marks valid."""
    stage = transactional()
    end = 101 if markers else 100
    stage.target.ends = dict.fromkeys(KEYS, LogOffset(0, end, 3))

    async def markers_arrive(*_: Any) -> bool:
        if stage.record.phase is not TopicPhase.FENCING:
            return False  # the question before the fence
        await asyncio.sleep(0.01)
        stage.source.ends = dict.fromkeys(KEYS, LogOffset(0, end, 3))
        return markers

    monkeypatch.setattr(promote, "wait_for_ends", markers_arrive)
    monkeypatch.setattr(promote, "refuse_lost_ids", lives_on)
    record = promoted(stage)
    assert not record.reason
    assert record.phase is TopicPhase.PROMOTED
    assert {p: barrier.offset for p, barrier in record.barrier.items()} == {0: end, 1: end}
    before, early, *again = zip(*[iter(stage.recent.asked)] * 2, strict=True)
    assert (before, early, again) == ((100, 100), (100, 100), [(101, 101)] if markers else [])


def test_a_log_end_that_cannot_be_read_before_the_mirror_arrives_is_asked_for_again() -> None:
    stage = Stage()
    log_ends, failed = stage.target.log_ends, list[bool]()

    async def once_away(keys: Any) -> Any:
        if stage.record.phase is TopicPhase.FENCED and not failed:
            failed.append(True)
            raise Unreachable("away", "the leader is elected")
        return await log_ends(keys)

    stage.target.log_ends = once_away  # type: ignore[method-assign]
    assert promoted(stage).phase is TopicPhase.PROMOTED
    assert failed


def test_log_ends_from_long_before_the_mirrors_arrival_do_not_count() -> None:
    """A leader that changes between an early answer and the late arrival of the mirror is noticed."""
    stage = Stage(mirror_stops_at=99)

    async def late(keys: Any) -> Any:
        if stage.record.phase is TopicPhase.FENCED and not arriving:
            arriving.append(asyncio.get_running_loop().call_later(0.15, arrive))
        return await log_ends(keys)

    def arrive() -> None:
        stage.source.ends = dict.fromkeys(KEYS, LogOffset(0, 100, 4))
        stage.mirror_stops_at = None

    log_ends, arriving = stage.source.log_ends, list[Any]()
    stage.source.log_ends = late  # type: ignore[method-assign]
    record = promoted(stage)
    assert record.reason.startswith("source-moved: the source's leader of t-0 changed after the barrier")


def test_a_topic_is_not_fenced_while_a_replica_in_sync_on_the_source_is_silent() -> None:
    """A silent replica in sync may be the new leader, with producers that already know the new leader."""
    stage = Stage()
    stage.source.in_sync = (1, 2, 3)
    record = promoted(stage)
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [TopicPhase.PROMOTE_PENDING, TopicPhase.MIRRORING]
    assert record.reason.startswith("leader-unproven: of the brokers of cluster that are in sync for t-0 (1, 2, 3)")


def test_a_transaction_that_outlasts_the_fence_is_named_in_place_of_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        return {"till": frozenset({7})}

    monkeypatch.setattr(promote, "open_writers", open_writers)
    record = promoted(Stage(in_flight=1))
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason.startswith("open-transaction: till has a transaction open on t at the source")
    assert "transaction.timeout.ms" in record.way_on


@pytest.mark.parametrize("told", [{}, Unreachable("away", "the source is away")])
def test_a_router_that_does_not_drain_is_named_where_the_source_tells_of_no_transaction(
    monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        if isinstance(told, Unreachable):
            raise told
        return {}

    monkeypatch.setattr(promote, "open_writers", open_writers)
    record = promoted(Stage(in_flight=1))
    assert record.reason.startswith("not-drained: router r still waits for 1 answer(s)")


def test_a_router_that_cannot_say_its_word_keeps_a_topic_from_being_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    speechless(monkeypatch, stage, lambda: True)
    record = promoted(stage)
    assert "presence-too-large: what router r says is not told" in record.reason
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [TopicPhase.PROMOTE_PENDING, TopicPhase.MIRRORING]


def test_a_router_that_cannot_say_its_word_on_a_fence_ends_the_fence_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = replace(TERMS, fence_timeout_s=60.0)
    stage = Stage(MemoryLog(LINK, ROUTER, *SHARED, replace(PENDING, terms=terms)))
    speechless(monkeypatch, stage, lambda: stage.record.phase is TopicPhase.FENCING)
    record = promoted(stage)
    assert record.phase is TopicPhase.MIRRORING
    assert record.reason.startswith("not-drained: presence-too-large: what router r says is not told")


def speechless(monkeypatch: pytest.MonkeyPatch, stage: Stage, when: Callable[[], bool]) -> None:
    """Let the router report only that its presence is too large."""
    say = stage.log.say

    def bare(word: Any) -> None:
        if isinstance(word, RouterPresence) and when():
            word = replace(word, fences={}, trouble="presence-too-large: what router r says is not told")
        say(word)

    monkeypatch.setattr(stage.log, "say", bare)
