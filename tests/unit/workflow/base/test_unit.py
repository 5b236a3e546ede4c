"""Topics that transactions couple are promoted together or go back together, whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import GroupState
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.metadata import PartitionInfo
from kmigrate.errors import Failed, Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import FenceAck, MirrorPresence, PartitionProgress, RouterPresence, Upkept
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    AssignmentRecord,
    GroupRecord,
    LeaseRecord,
    PromotedUnit,
    PromoteTerms,
    ProvenTopic,
    TopicRecord,
    TransactionRecord,
    WayBack,
)
from kmigrate.net.clock import monotonic
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress, Unit, decided, group_decided
from kmigrate.workflow.promote import barrier
from kmigrate.workflow.promote import topic as promote
from kmigrate.workflow.promote.fence_rounds import FenceRounds
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.promote.sealing import Sealer
from kmigrate.workflow.promote.topic import TopicPromotion
from tests.fakes.scripted_cluster import FakeAdmin, FakeRecent
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING, ROUTER, Crashed

BOTH = TransactionRecord("l", "till", 50, 3, 9, 8, ("t", "u"))
TERMS = PromoteTerms(asked_ms=1, lag_threshold=10, pending_timeout_s=1.0, fence_timeout_s=1.0)
ASKED = replace(PENDING, terms=TERMS, partitions=1)
OTHER = replace(ASKED, topic="u")
FENCED = replace(OTHER, phase=TopicPhase.FENCED, fence_epoch=7)
GROUP = GroupRecord("l", "g", GroupPhase.PROMOTING, 1, mode=GroupMode.FOLLOW, frozen=True, staged=True)
SHARED = (ROUTER, LeaseRecord("mirror/l", "m1", 1), AssignmentRecord("l", 2, ("m1",), {"t": (0,), "u": (0,)}))


@dataclass
class Cluster:
    """A cluster whose logs end at 100; `elects` says for which topics another leader answers."""

    elects: Callable[[str], bool] = lambda _: False
    settings: Any = field(default_factory=lambda: SimpleNamespace(name="cluster"))
    metadata: Any = field(
        default_factory=lambda: SimpleNamespace(
            topics={topic: SimpleNamespace(partitions={0: None}) for topic in "tu"},
            brokers={1: ("h", 1)},
            partition=lambda *_: PartitionInfo(1, 3, (1,), (1,)),
        )
    )

    def leader(self, *_: Any) -> int:
        return 1

    async def list_offsets_at(self, _: int, wanted: Any, **__: Any) -> dict[tuple[str, int], LogOffset]:
        return await self.log_ends(wanted)

    async def log_ends(self, keys: Any) -> dict[tuple[str, int], LogOffset]:
        await asyncio.sleep(0)
        return {key: LogOffset(0, 100, 4 if self.elects(key[0]) else 3) for key in keys}

    async def describe_producers(self, keys: Any) -> Any:
        return dict.fromkeys(keys, (0, ()))

    async def describe_groups(self, names: Any) -> dict[str, GroupState]:
        return {name: GroupState(name, "stable", "classic", ()) for name in names}

    async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
        return {key: LogOffset(0, 100, 3) for key in wanted}

    async def refresh(self, topics: Any = None) -> None: ...


@dataclass
class Stage:
    """Two topics that a controller promotes at the same time; a router and a mirror obey."""

    log: MemoryLog = field(default_factory=lambda: MemoryLog(LINK, *SHARED, ASKED, OTHER, BOTH))
    source: Cluster = field(default_factory=Cluster)
    progress: PromoteProgress = field(default_factory=PromoteProgress)
    behind: str = ""
    """Name of a topic that the mirror has not caught up with."""

    def promotion(self, topic: str) -> TopicPromotion:
        log: Any = self.log
        source: Any = self.source
        admin: Any = FakeAdmin()
        target: Any = Cluster()
        clusters = LinkClusters(log, source, admin, target, admin)
        made = TopicPromotion("l", topic, clusters, Sealer(log, source, admin, 60.0), 5.0, self.progress)
        made.table.recent = FakeRecent(())  # type: ignore[assignment]
        return made

    def record(self, topic: str) -> TopicRecord:
        found = self.log.state.topic("l", topic)
        assert found is not None
        return found

    @property
    def phases(self) -> set[TopicPhase]:
        return {self.record(topic).phase for topic in "tu"}

    def obey(self) -> None:
        """Announce the router and the mirror as answers to the present records."""
        records = [self.record(topic) for topic in "tu"]
        held = [r for r in records if r.phase in (TopicPhase.FENCING, TopicPhase.FENCED) or r.closing]
        self.log.say(
            RouterPresence("r1", "r", self.log.state.epoch, 500, {r.key: FenceAck(r.fence_epoch, 0) for r in held})
        )
        progress = {
            r.topic: {
                0: PartitionProgress(
                    50 if r.topic == self.behind else 100,
                    100,
                    100,
                    at_barrier=r.barrier[0].offset if r.barrier else -1,
                    target_position=100,
                )
            }
            for r in records
        }
        upkeep = {r.topic: Upkept(r.since_ms) for r in records}
        self.log.say(MirrorPresence("m1", "l", self.log.state.epoch, True, 500, progress, upkeep))

    async def run(self) -> None:
        async with asyncio.timeout(5):

            async def engines() -> None:
                while True:
                    self.obey()
                    await asyncio.sleep(0.002)

            self.obey()
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(engines())
                done = await asyncio.gather(*(self.promotion(t).run() for t in "tu"), return_exceptions=True)
                working.cancel()
        for error in filter(None, done):
            assert isinstance(error, Crashed)


@pytest.fixture(autouse=True)
def answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> list[str]:
        return []

    for name in ("wait_for_ends", "refuse_lost_ids", "direct_writers"):
        monkeypatch.setattr(promote, name, nothing)


def test_the_first_flip_of_a_unit_names_the_others_and_their_fences() -> None:
    stage = Stage()
    asyncio.run(stage.run())
    flips = [r for r in stage.log.history if isinstance(r, TopicRecord) and r.unsettled]
    first, second = flips
    assert dict(first.unit.topics) == {second.topic: ProvenTopic(second.fence_epoch)}
    assert second.unit == PromotedUnit()
    assert stage.phases == {TopicPhase.PROMOTED}


def test_no_topic_of_a_unit_is_fenced_before_all_are_ready() -> None:
    """No topic of a unit is fenced while the mirror lags in another topic of the unit.

    Otherwise writers of the first topic would wait for the mirror until the fence is given up.
    """
    stage = Stage(behind="u")

    async def catches_up() -> None:
        running = asyncio.create_task(stage.run())
        await asyncio.sleep(0.1)
        assert stage.phases == {TopicPhase.PROMOTE_PENDING}
        stage.behind = ""
        await running

    asyncio.run(catches_up())
    assert stage.phases == {TopicPhase.PROMOTED}


def test_who_is_left_of_a_unit_when_one_is_taken_back_says_what_it_waits_for() -> None:
    stage = Stage(behind="u")
    told: dict[str, str] = {}

    async def scene() -> None:
        stage.obey()
        stage.progress.waits = told
        works = [asyncio.create_task(stage.promotion(t).run()) for t in "tu"]
        await asyncio.sleep(0.02)
        assert told[ASKED.key] == "u, which is written together with t, is not ready"
        await stage.log.append(lambda _: given_up(OTHER, "cancelled: taken back by ann"))
        await asyncio.sleep(0.02)
        assert [work.done() for work in works] == [False, True]
        why = "u, which is written together with t, is not being promoted: cancelled: taken back by ann"
        assert told == {ASKED.key: why}
        works[0].cancel()

    asyncio.run(scene())
    assert stage.progress.ready == set()


def test_a_topic_whose_leader_changes_after_all_stand_at_their_barriers_takes_its_unit_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(barrier, "_RECENT_S", 0.0)  # no answer from before the arrival counts
    stage = Stage()
    stage.source.elects = lambda topic: topic == "u" and len(stage.progress.at_barrier) == 2
    asyncio.run(stage.run())
    assert stage.phases == {TopicPhase.MIRRORING}
    assert stage.record("u").reason.startswith("source-moved")
    assert stage.record("t").reason.startswith("coupled-topics: u, which is written together with t")


def test_a_unit_whose_group_is_given_up_a_moment_before_the_flip_goes_back() -> None:
    stage = Stage(MemoryLog(LINK, *SHARED, ASKED, OTHER, replace(BOTH, groups=("g",)), GROUP))
    given_up = replace(GROUP, phase=GroupPhase.MIRRORED, frozen=False, staged=False, reason="coupled-topics: too late")
    append = stage.log.append

    async def overtaken(decide: Callable[[Any], Any], timeout: float = 30.0) -> Any:
        wanted = decide(stage.log.state)
        if isinstance(wanted, TopicRecord) and wanted.phase is TopicPhase.PROMOTED:
            stage.log._put(GROUP.key, given_up)
        return await append(decide, timeout)

    stage.log.append = overtaken  # type: ignore[method-assign]
    asyncio.run(stage.run())
    assert stage.phases == {TopicPhase.MIRRORING}
    assert "too late" in stage.record("t").reason


def test_the_groups_of_a_unit_are_named_by_its_flip() -> None:
    stage = Stage(MemoryLog(LINK, *SHARED, ASKED, OTHER, replace(BOTH, groups=("g",)), GROUP))
    asyncio.run(stage.run())
    assert [r.unit.groups for r in stage.log.history if isinstance(r, TopicRecord) and r.unsettled] == [("g",), ()]


def test_who_takes_over_between_two_flips_flips_the_rest_and_asks_nobody() -> None:
    mapped = (replace(ASKED, mapped=True), replace(OTHER, mapped=True))
    stage = Stage(MemoryLog(LINK, *SHARED, *mapped, BOTH))

    def die(record: Record | None) -> None:
        if isinstance(record, TopicRecord) and record.unsettled:
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
    assert stage.phases == {TopicPhase.FENCED, TopicPhase.PROMOTED}

    after = Stage(stage.log, Cluster(elects=lambda _: True))
    after.log.append, after.log.on_append = append, lambda _: None  # type: ignore[method-assign]
    asyncio.run(after.run())
    assert after.phases == {TopicPhase.PROMOTED}
    assert [dict(after.record(topic).target_ends) for topic in "tu"] == [{0: 100}] * 2


@pytest.mark.parametrize(("fence_epoch", "phase"), [(7, TopicPhase.FENCED), (6, TopicPhase.MIRRORING)])
def test_what_a_flip_names_with_its_present_fence_has_no_way_back(fence_epoch: int, phase: TopicPhase) -> None:
    unit = PromotedUnit({"u": ProvenTopic(fence_epoch, {0: 100})})
    stage = Stage(MemoryLog(LINK, replace(ASKED, phase=TopicPhase.PROMOTED, unit=unit), FENCED, BOTH))
    assert decided(stage.log.state, FENCED) == (unit.topics["u"] if fence_epoch == 7 else None)
    asyncio.run(stage.promotion("u")._unfence(Failed("source-moved", "its leader changed")))
    assert stage.record("u").phase is phase


def proven(*records: TopicRecord) -> PromoteProgress:
    return PromoteProgress(proven={r.key: (r, ProvenTopic(r.fence_epoch)) for r in records})


def test_no_flip_is_written_over_a_topic_that_is_not_as_it_was_proven() -> None:
    state = MemoryLog(LINK, ASKED, replace(FENCED, fence_epoch=9), BOTH).state
    assert proven(FENCED).unit_to_flip(state, ASKED) is None


def test_no_flip_is_written_over_a_topic_that_was_coupled_meanwhile() -> None:
    late = replace(BOTH, name="late", topics=("t", "w"))
    state = MemoryLog(LINK, ASKED, FENCED, replace(FENCED, topic="w", phase=TopicPhase.MIRRORING), BOTH, late).state
    with pytest.raises(Refused, match="w, which is written together with t, is not being promoted"):
        proven(FENCED).unit_to_flip(state, ASKED)


def test_a_topic_that_was_promoted_before_it_was_coupled_is_not_waited_for() -> None:
    state = MemoryLog(LINK, ASKED, replace(FENCED, phase=TopicPhase.PROMOTED), BOTH).state
    assert PromoteProgress().unit_to_flip(state, ASKED) == PromotedUnit()


def unit(other: TopicRecord, standing: set[str], span: float = 5.0, then: TopicRecord | None = None) -> None:
    async def scene() -> None:
        log: Any = MemoryLog(LINK, BOTH, ASKED, other)
        async with asyncio.timeout(10):
            progress = PromoteProgress(at_barrier={f"topic/l/{topic}" for topic in standing})
            waiting = asyncio.ensure_future(progress.wait_for_unit(log, ASKED, monotonic() + span))
            if then is not None:
                await asyncio.sleep(0.02)
                assert not waiting.done()
                await log.append(lambda _: then)
            await waiting

    asyncio.run(scene())


def test_a_topic_waits_until_the_others_of_its_unit_stand_at_their_barriers_or_are_promoted() -> None:
    unit(FENCED, {"u"})
    unit(FENCED, set(), then=replace(OTHER, phase=TopicPhase.PROMOTED))


def test_one_topic_that_is_given_up_takes_its_unit_back() -> None:
    with pytest.raises(Refused, match="is not being promoted: not-drained"):
        unit(OTHER, set(), then=replace(OTHER, phase=TopicPhase.MIRRORING, reason="not-drained"))
    with pytest.raises(Refused, match="u did not reach its barrier in time"):
        unit(OTHER, set(), span=0.05)


def in_line(stage: Stage, topics: str, then: Callable[[], None], most: int = 100) -> FenceRounds:
    """Promote topics while another topic is fenced; call `then` before the turn of the topics."""
    turns = FenceRounds(most)

    async def scene() -> None:
        turns.go("topic/l/before")
        stage.obey()
        works = [asyncio.create_task(replace(stage.promotion(t), rounds=turns).run()) for t in topics]
        await asyncio.sleep(0.02)
        then()
        turns.over("topic/l/before")
        for _ in range(300):
            await asyncio.sleep(0.002)
            if len(stage.log.presence) > 1:
                stage.obey()
            if all(work.done() for work in works):
                return
        async with asyncio.timeout(10):  # a rest is as long as the round before, which may be long on a busy machine
            await turns.take("topic/l/after", 1)
        for work in works:
            work.cancel()

    asyncio.run(scene())
    return turns


def test_one_that_is_not_ready_when_its_turn_comes_leaves_it_to_the_next() -> None:
    """A topic that is not ready leaves its turn to the next topic, so that no topic waits for its readiness."""
    patient = replace(TERMS, pending_timeout_s=60.0)
    stage = Stage(MemoryLog(LINK, *SHARED, *(replace(each, terms=patient) for each in (ASKED, OTHER)), BOTH))
    in_line(stage, "u", lambda: stage.log.silence("mirror/l/m1"))
    assert stage.record("u").phase is TopicPhase.PROMOTE_PENDING


def test_one_that_is_forgotten_in_the_line_holds_nobody_up() -> None:
    stage = Stage()

    def forget() -> None:
        stage.log.silence("mirror/l/m1")
        stage.log._put(OTHER.key, None)

    in_line(stage, "u", forget)


def test_topics_that_are_coupled_while_they_are_in_the_line_have_one_turn() -> None:
    """Topics that are coupled while they wait in the line share a single turn.

    Otherwise a fenced topic would wait for the other topic, and the other topic for the end of that fence.
    """
    stage = Stage(MemoryLog(LINK, *SHARED, ASKED, OTHER))
    in_line(stage, "tu", lambda: stage.log._put(BOTH.key, BOTH), most=1)
    assert stage.phases == {TopicPhase.PROMOTED}


# A rollback of a unit with a group


LEAVING = replace(ASKED, phase=TopicPhase.ROLLBACK_PENDING, way_back=WayBack({0: 50}))
GOES = replace(GROUP, phase=GroupPhase.ROLLING_BACK, staged=False)
TILL = replace(BOTH, topics=("t",), groups=("g",))


def leaving(group: GroupRecord) -> Unit:
    return Unit.of(MemoryLog(LINK, LEAVING, TILL, group).state, LEAVING)


def test_a_topic_goes_back_only_with_the_groups_of_its_transactions() -> None:
    stays = replace(GOES, phase=GroupPhase.PROMOTED, reason="members-past-routers: shop")
    against = leaving(stays).not_asked_for()
    assert against == (
        "group g, whose positions its transactions commit, is not being rolled back: members-past-routers: shop"
    )
    with pytest.raises(Refused, match="the rollback of group g was given up: members-past-routers: shop"):
        leaving(stays).not_staged()
    assert leaving(GOES).not_asked_for() is None
    assert leaving(replace(GOES, phase=GroupPhase.MIRRORED)).groups == (), "the group has gone back already"


def test_a_topic_waits_for_a_group_that_can_be_frozen_and_then_for_its_positions() -> None:
    progress = PromoteProgress()
    assert progress.not_ready_with(leaving(GOES)) == ("group g, whose positions its transactions commit, is not ready")
    progress.ready.add(GOES.key)
    assert progress.not_ready_with(leaving(GOES)) is None
    assert leaving(GOES).not_staged() == (
        "the positions of group g, which its transactions commit, are not on the source yet"
    )
    assert leaving(replace(GOES, staged=True)).not_staged() is None
    promoting = MemoryLog(LINK, ASKED, TILL, GROUP).state
    assert PromoteProgress().not_ready_with(Unit.of(promoting, ASKED)) is None, "a promote waits for staged groups"


@pytest.mark.parametrize(("phase", "back"), [(TopicPhase.PROMOTED, False), (TopicPhase.MIRRORING, True)])
def test_a_flip_decides_for_a_group_in_its_own_direction(phase: TopicPhase, back: bool) -> None:
    state = MemoryLog(LINK, replace(ASKED, phase=phase, unit=PromotedUnit(groups=("g",)))).state
    assert group_decided(state, "l", "g", back=back)
    assert not group_decided(state, "l", "g", back=not back)
