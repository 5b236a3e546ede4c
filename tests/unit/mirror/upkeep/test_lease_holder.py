"""The holder of the lease shares partitions out among the live processes that ask for partitions.

A process that has lost the lease writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from kmigrate.errors import BrokerRefused, Diverged, StateLogBroken, Unreachable, WaitTimedOut
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.sharing.assignment import next_assignment
from kmigrate.mirror.sharing.lease import Lease
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.mirror.upkeep import lease_holder as leading
from kmigrate.mirror.upkeep.align import Aligner
from kmigrate.mirror.upkeep.configs import Configs
from kmigrate.mirror.upkeep.lease_holder import LeaseHolder
from kmigrate.mirror.upkeep.topics import Prepared, TopicMaker
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import (
    AssignmentRecord,
    Claim,
    ClusterRef,
    CopyEngine,
    CopyIdentity,
    LeaseRecord,
    LinkRecord,
    TopicRecord,
    WayBack,
)
from kmigrate.net.clock import monotonic
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
LEASE = LeaseRecord("mirror/l", "me", 4)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=4, starts=dict.fromkeys(range(4), 0))


class _NothingForgotten:
    async def recheck(self, record: TopicRecord, before: Mapping[int, int]) -> Mapping[int, int]:
        return before


class Stage:
    """A leader, named `me`, and other processes whose presence the test sets."""

    def __init__(self, *topics: TopicRecord) -> None:
        self.log = MemoryLog(LINK, LEASE, *topics)
        log = cast("StateLog", self.log)
        members = self.members = Membership(log, "l", "me", 60.0)
        aligner = cast("Aligner", _NothingForgotten())
        lease = Lease(members)
        maker = cast("TopicMaker", None)
        nobody = cast("Any", None)
        link = MirroredLink(nobody, nobody, nobody, nobody, "l", log, "me", MirrorSettings())
        self.leader = LeaseHolder(link, lease, members, maker, aligner, on_change=lambda: None)

    @property
    def made(self) -> AssignmentRecord | None:
        return self.log.state.assignment("l")

    def say(self, instance: str, *partitions: int, shares: bool = True) -> None:
        """Announce a process that has acted on the newest assignment and copies these partitions."""
        generation = self.made.generation if self.made is not None else -1
        topics = {"t": dict.fromkeys(partitions, PartitionProgress(5))} if partitions else {}
        word = MirrorPresence(instance, "l", 1, False, 500, topics, shares=shares, generation=generation)
        self.log.presence[word.key] = (word, monotonic())
        self.log._wake()

    async def until(self, holds: Callable[[AssignmentRecord], bool]) -> AssignmentRecord:
        return await self.log.wait(lambda _: self.made if self.made and holds(self.made) else None, 10, "a decision")

    def play(self, scene: Callable[[Stage], object]) -> None:
        async def both() -> None:
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                leading = group.create_task(self.leader.run())
                await scene(self)  # type: ignore[misc]
                leading.cancel()

        asyncio.run(both())


def test_one_process_alone_is_given_everything_as_soon_as_it_hears_itself() -> None:
    async def scene(stage: Stage) -> None:
        await asyncio.sleep(0.05)
        assert stage.made is None, "it cannot tell who else is there"
        stage.say("me")
        made = await stage.until(lambda _: True)
        assert (made.members, made.owners) == (("me",), {"t": (0, 0, 0, 0)})
        assert made.generation > LEASE.term

    Stage(TOPIC).play(scene)


def test_a_process_gets_its_share_when_it_asks_and_gives_it_back_when_it_leaves() -> None:
    async def scene(stage: Stage) -> None:
        stage.say("me")
        await stage.until(lambda made: made.owners == {"t": (0, 0, 0, 0)})
        stage.say("me", 0, 1, 2, 3)
        stage.say("starting", shares=False)
        stage.say("you")
        asked = await stage.until(lambda made: made.members == ("me", "you"))
        kept = [p for p, place in enumerate(asked.owners["t"]) if place == 0]
        assert len(kept) == 2
        stage.say("me", *kept)
        given = await stage.until(lambda made: min(made.owners["t"]) == 0)
        assert sorted(given.owners["t"]) == [0, 0, 1, 1]
        stage.say("you", shares=False)
        left = await stage.until(lambda made: made.members == ("me",))
        assert left.owners == {"t": (0, 0, 0, 0)}

    Stage(TOPIC).play(scene)


def test_topics_that_come_up_one_after_another_are_shared_out_together() -> None:
    class NeverReady:
        async def prepare(self, record: TopicRecord, note: object) -> None:
            await asyncio.Event().wait()

    async def scene(stage: Stage) -> None:
        stage.leader._maker = cast("TopicMaker", NeverReady())
        stage.say("me")
        first = (await stage.until(lambda _: True)).generation
        for number in range(30):
            came_up = replace(TOPIC, topic=f"t-{number}")
            stage.log._put(came_up.key, came_up)
            await asyncio.sleep(0.01)
        made = await stage.until(lambda made: len(made.owners) == 31)
        assert made.generation - first <= 8, "an assignment names everything: one for each topic is quadratic"

    Stage(TOPIC, replace(TOPIC, topic="slow", phase=TopicPhase.INITIALISING)).play(scene)


def test_mapped_topics_and_such_as_are_not_copied_are_not_shared_out() -> None:
    mapped = replace(TOPIC, topic="mapped", mapped=True)
    done = replace(TOPIC, topic="done", phase=TopicPhase.PROMOTED)

    async def scene(stage: Stage) -> None:
        stage.say("me")
        made = await stage.until(lambda _: True)
        assert set(made.owners) == {"t"}

    Stage(TOPIC, mapped, done).play(scene)


def test_a_topic_that_spark_copies_is_shared_out_once_its_tasks_have_let_go_and_its_terms_are_counted_on() -> None:
    bulk = replace(TOPIC, topic="bulk", engine=CopyEngine.SPARK, claims={1: Claim("spark-1", 30)}, claimed_term=30)

    async def scene(stage: Stage) -> None:
        stage.say("me")
        assert set((await stage.until(lambda _: True)).owners) == {"t"}
        handed_over = replace(bulk, engine=CopyEngine.DAEMON)
        stage.log._put(bulk.key, handed_over)
        stage.say("me", 0, 1, 2, 3)
        await asyncio.sleep(0.6)
        assert stage.made is not None
        assert set(stage.made.owners) == {"t"}, "a task holds a partition still"
        stage.log._put(bulk.key, replace(handed_over, claims={}))
        made = await stage.until(lambda made: "bulk" in made.owners)
        assert made.generation > bulk.claimed_term

    Stage(TOPIC, bulk).play(scene)


def test_a_topic_is_shared_out_once_the_tasks_that_have_not_let_go_are_silent() -> None:
    died = replace(TOPIC, topic="died", claims={0: Claim("spark-1", 30)}, claimed_term=30)

    async def scene(stage: Stage) -> None:
        stage.say("me")
        assert set((await stage.until(lambda _: True)).owners) == {"t"}
        stage.members._began -= 61.0
        assert "died" in (await stage.until(lambda made: "died" in made.owners)).owners

    Stage(TOPIC, died).play(scene)


def test_a_topic_that_is_forgotten_while_it_is_made_is_not_made_on_and_may_be_mirrored_again() -> None:
    new = replace(TOPIC, topic="new", phase=TopicPhase.INITIALISING)
    tries: list[str] = []

    class Making:
        async def prepare(self, record: TopicRecord, note: object) -> None:
            tries.append("begun")
            try:
                await asyncio.sleep(60)
            finally:
                tries.append("ended")

    async def scene(stage: Stage) -> None:
        stage.leader._maker = cast("TopicMaker", Making())
        stage.leader.problems["new"] = "no-leader: the target's brokers are away"
        for known in (new, None, new):
            stage.log._put(new.key, known)
            await asyncio.sleep(0.02)
            assert ("new" in stage.leader.problems) == (tries == ["begun"])

    Stage().play(scene)
    assert tries == ["begun", "ended", "begun", "ended"]


def test_what_is_being_made_when_it_is_forgotten_is_made_to_its_end_so_that_its_record_tells_what_to_put_back() -> None:
    new = replace(TOPIC, topic="new", phase=TopicPhase.INITIALISING)
    gate = asyncio.Event()

    class Making:
        async def prepare(self, record: TopicRecord, note: object) -> Prepared:
            await gate.wait()
            configs = Configs(now={}, restore={"retention.ms": "5"}, drop=())
            return Prepared(1, "", "id", {0: 0}, configs, compacted=False, target_starts=None)

    async def scene(stage: Stage) -> None:
        stage.leader._maker = cast("TopicMaker", Making())
        stage.log._put(new.key, new)
        await asyncio.sleep(0.02)
        stage.log._put(new.key, replace(new, forgotten_ms=7))
        await asyncio.sleep(0.02)
        assert stage.leader.working == {new.key}
        gate.set()
        await asyncio.sleep(0.02)
        told = stage.log.state.topic("l", "new", forgotten=True)
        assert told is not None
        assert (told.forgotten_ms, told.target_topic_id, told.restore_configs) == (7, "id", {"retention.ms": "5"})
        assert not stage.leader.working, "it is not aligned"

    Stage().play(scene)


class Starts:
    """An aligner whose first looks raise the given errors in order; every later look succeeds."""

    def __init__(self, *ends: Exception) -> None:
        self.ends = list(ends)
        self.looks = 0

    async def recheck(self, record: TopicRecord, before: Mapping[int, int]) -> Mapping[int, int]:
        self.looks += 1
        if self.ends:
            raise self.ends.pop(0)
        return before


def looked_at(stage: Stage, starts: Starts, monkeypatch: pytest.MonkeyPatch, looks: int) -> list[dict[str, str]]:
    """Return the leader's problems of topics before each wait for the next look at log starts.

    The waits are cut short.
    """
    told: list[dict[str, str]] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        told.append(dict(stage.leader.problems))
        if len(told) == looks:
            enough.set()
        await asyncio.sleep(0 if len(told) < looks and seconds < stage.leader._link.settings.follow_s else 60)

    monkeypatch.setattr(leading, "sleep", sleep)
    stage.leader._aligner = cast("Aligner", starts)

    async def scene(stage: Stage) -> None:
        await enough.wait()

    stage.play(scene)
    return told


def test_a_log_start_that_a_moved_leader_does_not_tell_is_looked_at_again_soon_and_is_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log start that cannot be read during a change of leader is read again soon, and is not reported.

    A reported problem would keep a promote waiting after the producers are fenced.
    """
    away = Unreachable("no-log-start", "t-3: NOT_LEADER_OR_FOLLOWER")
    starts = Starts(away, away)
    assert looked_at(Stage(TOPIC), starts, monkeypatch, 3) == [{}, {}, {}]
    assert starts.looks == 3


def test_a_look_at_log_starts_that_fails_otherwise_is_told_whatever_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for failure, problem in (
        (Diverged("log-start-too-high", "t-0 begins at 9"), "log-start-too-high: t-0 begins at 9"),
        (WaitTimedOut("controller-late", "no answer"), "controller-late: no answer"),
        (KeyError("t"), "internal-error: KeyError('t')"),
    ):
        assert looked_at(Stage(TOPIC), Starts(failure), monkeypatch, 1) == [{"t": problem}]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [failure], "with where it happened"


def test_what_nobody_foresaw_of_a_topic_that_is_made_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new = replace(TOPIC, topic="new", phase=TopicPhase.INITIALISING)
    told: list[dict[str, str]] = []
    tried_again = asyncio.Event()

    class Making:
        async def prepare(self, record: TopicRecord, note: object) -> None:
            told.append(dict(stage.leader.problems))
            if len(told) == 2:
                tried_again.set()
                await asyncio.sleep(60)
            raise KeyError("id")

    async def scene(stage: Stage) -> None:
        await tried_again.wait()

    stage = Stage(new)
    monkeypatch.setattr(leading, "_RETRY_S", 0.0)
    stage.leader._maker = cast("TopicMaker", Making())
    stage.play(scene)
    assert told == [{}, {"new": "internal-error: KeyError('id')"}]


def test_a_leader_whose_task_finds_the_state_log_broken_ends_with_that() -> None:
    stage = Stage(TOPIC)
    broken = StateLogBroken("state-log-newer", "it was written by a newer kmigrate")
    stage.leader._aligner = cast("Aligner", Starts(broken))
    with pytest.raises(StateLogBroken) as raised:
        asyncio.run(asyncio.wait_for(stage.leader.run(), 10))
    assert raised.value is broken


def test_a_leader_whose_lease_is_anothers_ends_and_writes_nothing() -> None:
    async def scene() -> None:
        stage = Stage(TOPIC)
        stage.log._put(LEASE.key, replace(LEASE, holder="you", term=5))
        stage.say("me")
        await asyncio.wait_for(stage.leader.run(), 10)
        assert stage.made is None

    asyncio.run(scene())


def test_a_decision_that_a_new_holder_overtakes_is_not_written() -> None:
    async def scene() -> None:
        stage = Stage(TOPIC)
        stage.say("me")
        append = stage.log.append

        async def overtaken(decide: Callable[..., object], timeout: float = 30.0) -> object:
            stage.log._put(LEASE.key, replace(LEASE, holder="you", term=5))
            return await append(decide, timeout)

        stage.log.append = overtaken  # type: ignore[method-assign, assignment]
        await asyncio.wait_for(stage.leader.run(), 10)
        assert stage.made is None

    asyncio.run(scene())


def test_a_new_term_of_the_lease_is_above_the_newest_generation() -> None:
    log = MemoryLog(LINK, LeaseRecord("mirror/l", "", 4), AssignmentRecord("l", 9, ("gone",), {"t": (0,)}))
    lease = Lease(Membership(cast("StateLog", log), "l", "me", 60.0))
    assert asyncio.run(lease.take_if_vacant())
    assert lease.term == 10


class _Giving:
    """A cluster that gives producer ids."""

    def __init__(self, first: int, *refusals: Exception) -> None:
        self.next, self.refusals = first, list(refusals)

    async def init_producer_id(self) -> tuple[int, int]:
        if self.refusals:
            raise self.refusals.pop(0)
        self.next += 1
        return self.next - 1, 0


BACK = replace(TOPIC, topic="back", phase=TopicPhase.PROMOTED, way_back=WayBack(dict.fromkeys(range(4), 7)))
RESUMED = replace(TOPIC, topic="resumed", generation=1, resumed=dict.fromkeys(range(4), 9))


def _with_clusters(stage: Stage, source: _Giving, target: _Giving) -> None:
    stage.leader._link = replace(stage.leader._link, source=cast("Any", source), target=cast("Any", target))


def test_each_change_of_direction_gets_a_producer_id_of_the_cluster_that_is_written() -> None:
    def identities(stage: Stage) -> tuple[CopyIdentity | None, CopyIdentity | None]:
        back, resumed = (stage.log.state.topic("l", topic) for topic in ("back", "resumed"))
        assert back is not None and back.way_back is not None and resumed is not None
        return back.way_back.copy, resumed.copy

    async def scene(stage: Stage) -> None:
        _with_clusters(stage, _Giving(500), _Giving(900))
        found = await stage.log.wait(lambda _: ids if all(ids := identities(stage)) else None, 10, "producer ids")
        assert found == (CopyIdentity(500, 0), CopyIdentity(900, 0))
        stage.log._put(TOPIC.key, replace(TOPIC, since_ms=2))
        await asyncio.sleep(0.05)
        assert identities(stage) == found, "one producer id for the whole era"

    Stage(TOPIC, BACK, RESUMED).play(scene)


def test_a_cluster_that_gives_no_producer_id_is_named_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = BrokerRefused("init-producer-id-refused", "the source gives no producer id", code=31)
    told: list[str] = []

    async def scene(stage: Stage) -> None:
        _with_clusters(stage, _Giving(500, refused), _Giving(900))
        stage.leader._on_change = lambda: told.append(stage.leader.problems.get("back", ""))
        record = await stage.log.wait(lambda state: _with_id(state.topic("l", "back")), 10, "the second try")
        assert (record.reason, record.phase) == ("", TopicPhase.PROMOTED), "no phase waits for the copy back"
        await asyncio.sleep(0.05)

    def _with_id(record: TopicRecord | None) -> TopicRecord | None:
        return record if record is not None and record.way_back is not None and record.way_back.copy else None

    monkeypatch.setattr(leading, "_RETRY_S", 0.05)
    Stage(BACK).play(scene)
    assert "init-producer-id-refused: the source gives no producer id" in told


def test_a_topic_that_is_copied_back_is_shared_out_and_stays_where_it_is_during_its_rollback() -> None:
    pending = replace(BACK, topic="pending", phase=TopicPhase.ROLLBACK_PENDING)
    ended = replace(BACK, topic="ended", way_back=WayBack({0: 7}, ended="somebody else wrote"))

    async def scene(stage: Stage) -> None:
        _with_clusters(stage, _Giving(500), _Giving(900))
        stage.say("me")
        made = await stage.until(lambda _: True)
        assert set(made.owners) == {"back", "pending"}
        stage.say("you")
        moved = await stage.until(lambda made: made.members == ("me", "you"))
        assert moved.owners == {"back": (~0, ~0, ~0, ~0), "pending": (0, 0, 0, 0)}

    Stage(BACK, pending, ended).play(scene)


def _noting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the number of topics noted at each decision about the assignment."""
    decided: list[int] = []
    decide = next_assignment

    def note(link: str, before: AssignmentRecord | None, members: Any, wanted: Any, *more: Any, **facts: Any) -> Any:
        decided.append(len(wanted))
        return decide(link, before, members, wanted, *more, **facts)

    monkeypatch.setattr(leading, "next_assignment", note)
    return decided


async def _decide(stage: Stage) -> AssignmentRecord | None:
    """Have the leader act on the newest state until the leader has nothing to decide."""
    for _ in range(3):
        stage.leader._apply(stage.log.state)
        await stage.leader._share_out()
    return stage.made


def test_records_from_which_no_assignment_follows_cost_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision looks at all partitions of a link, and the steps of a fence come while writers wait."""
    topics = [replace(TOPIC, topic=f"t{number}") for number in range(20)]
    decided = _noting(monkeypatch)

    async def scene() -> None:
        stage = Stage(*topics)
        stage.say("me")
        assert await _decide(stage) is not None
        pending = replace(topics[0], phase=TopicPhase.PROMOTE_PENDING)
        stage.log._put(pending.key, pending)
        await _decide(stage)
        decided.clear()
        for phase in (TopicPhase.FENCING, TopicPhase.FENCED):
            stage.log._put(pending.key, replace(pending, phase=phase))
            await _decide(stage)
        assert decided == []
        stage.log._put("topic/l/new", replace(TOPIC, topic="new"))
        made = await _decide(stage)
        assert made is not None and len(made.owners) == 21
        await stage.leader._work.close()

    asyncio.run(scene())


def test_topics_that_leave_one_after_another_are_left_out_of_the_assignment_together() -> None:
    topics = [replace(TOPIC, topic=f"t{number}") for number in range(4)]

    async def scene() -> None:
        stage = Stage(*topics)
        stage.say("me")
        first = await _decide(stage)
        assert first is not None
        for record in topics[1:]:
            stage.log._put(record.key, replace(record, phase=TopicPhase.PROMOTED))
            assert await _decide(stage) == first, "an assignment names everything: one for each topic is quadratic"
        stage.leader._shared_at -= leading._TIDY_S
        made = await _decide(stage)
        assert made is not None and set(made.owners) == {"t0"}
        await stage.leader._work.close()

    asyncio.run(scene())


def test_log_starts_are_rechecked_for_as_long_as_a_topic_is_copied() -> None:
    async def scene() -> None:
        stage = Stage(TOPIC, replace(TOPIC, topic="mapped", mapped=True))
        stage.log._put(LINK.key, replace(LINK, settings=LinkSettings(follow_log_start=False)))
        stage.leader._apply(stage.log.state)
        assert set(stage.leader._rechecking) == {"t"}, "a mapped copy has log starts of its own"
        stage.log._put(LINK.key, LINK)
        stage.leader._apply(stage.log.state)
        assert set(stage.leader._rechecking) == {"t", "mapped"}
        stage.log._put(TOPIC.key, replace(TOPIC, phase=TopicPhase.PROMOTED))
        stage.leader._apply(stage.log.state)
        assert set(stage.leader._rechecking) == {"mapped"}
        await stage.leader._work.close()

    asyncio.run(scene())
