"""Pause, resume and accepted losses: the records that are written, and the refusals by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
from rich.console import Console

from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.metadata import TopicInfo
from kmigrate.errors import KmigrateError, Refused, Unreachable, UsageError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.model.stops import AcceptedLoss, PartitionStop, Remedy
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.status.snapshot import LinkStatus, PartitionStatus, Snapshot, TopicStatus
from kmigrate.workflow.verbs.links import throttle_link
from kmigrate.workflow.verbs.pause_resume import pause_topics, resume_topics
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1", "S"), ClusterRef("t", "h:2", "T"), 1)
REFUSED = PartitionStop("target-refused", "offset 5 was refused with MESSAGE_TOO_LARGE (10)", Remedy.AGAIN)
LOST = PartitionStop("source-range-lost", "offsets 5 to 9 were deleted", Remedy.ACCEPT_LOSS, 5, 9)
WRONG = PartitionStop("diverged", "the batch for offset 5 was found at 8 on the target", Remedy.ANEW)


def topic(**changed: Any) -> TopicRecord:
    return replace(TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=4, starts={0: 3}), **changed)


@dataclass
class Cluster:
    """A cluster with a single topic, given by log start and log end; the cluster may also not answer."""

    start: int = 0
    end: int = 7
    there: bool = True
    silent: bool = False

    async def topic(self, name: str) -> TopicInfo | None:
        return TopicInfo(name, None, {0: cast("Any", None)}) if self.there else None

    async def list_offsets(self, wanted: Any, **_: Any) -> Any:
        if self.silent:
            raise Unreachable("cluster-unreachable", "nobody answers")
        return {key: LogOffset(0, self.start if what == -2 else self.end, 0) for key, what in wanted.items()}


@dataclass
class World:
    log: MemoryLog
    target: Cluster = field(default_factory=Cluster)
    from_: Cluster = field(default_factory=Cluster)

    async def source(self, _: LinkRecord) -> Any:
        return self.from_, None

    @property
    def record(self) -> TopicRecord:
        found = self.log.state.topic("l", "t")
        assert found is not None
        return found


def world(record: TopicRecord, **clusters: Cluster) -> World:
    log = MemoryLog(LINK, record)
    log.say(MirrorPresence("m", "l", 1, True, 500))
    return World(log, **clusters)


def done(it: World, **given: Any) -> Plan:
    return asyncio.run(_resumed(it, **given))


def _resumed(it: World, *, plan: bool = False, **given: Any) -> Coroutine[Any, Any, Plan]:
    return run_verb(resume_topics(cast("Connections", it), None, ["t"], who="me@here", **given), plan=plan)


def refusal(it: World, **given: Any) -> KmigrateError:
    before = it.log.state
    with pytest.raises(Refused) as caught:
        done(it, **given)
    assert it.log.state == before
    return caught.value


def pause(it: World) -> Plan:
    return asyncio.run(run_verb(pause_topics(cast("Connections", it), None, ["t"])))


def test_a_topic_is_paused_once_and_resumed_once() -> None:
    it = world(topic())
    assert pause(it).changes == ("pause t",)
    assert it.record.paused
    assert [f.ref for f in pause(it).findings] == ["already-paused"]
    assert done(it).changes == ("resume t",)
    assert not it.record.paused
    assert [f.ref for f in done(it).findings] == ["not-paused"]


def test_what_is_being_promoted_or_is_promoted_is_not_paused() -> None:
    it = world(topic(phase=TopicPhase.FENCED))
    with pytest.raises(Refused) as caught:
        pause(it)
    assert caught.value.ref == "promote-under-way"
    it = world(topic(phase=TopicPhase.PROMOTED))
    made = pause(it)
    assert (made.changes, [finding.ref for finding in made.findings]) == ((), ["already-promoted"])
    assert not it.record.paused


def test_what_was_mended_is_resumed_alone_or_with_the_topic() -> None:
    it = world(topic(stops={1: REFUSED, 2: REFUSED}))
    assert done(it, partition=1).changes == ("resume partition 1 of t",)
    assert it.record.stops == {2: REFUSED}
    assert [f.ref for f in done(it, partition=1).findings] == ["not-stopped"]
    assert done(it).changes == ("resume partition 2 of t",)
    assert not it.record.stops


def test_a_plan_changes_nothing() -> None:
    it = world(topic(stops={1: REFUSED}, paused=True))
    made = done(it, plan=True)
    assert made.changes == ("resume t", "resume partition 1 of t")
    assert not made.applied
    assert it.record.paused and it.record.stops


def test_a_loss_is_accepted_by_its_exact_range_only_and_stays_in_the_record() -> None:
    it = world(topic(stops={1: LOST}))
    assert refusal(it).ref == "loss-not-accepted"
    assert refusal(it, partition=1).next_step == "kmigrate topic resume --partition 1 --accept-loss 5..9 --link l t"
    for wrong in ((5, 8), (4, 9), (5, 10)):
        error = refusal(it, partition=1, accept_loss=wrong)
        assert (error.ref, "--accept-loss 5..9 " in error.next_step) == ("other-range", True)
    done(it, partition=1, accept_loss=(5, 9))
    (loss,) = it.record.losses[1]
    assert replace(loss, at_ms=0) == AcceptedLoss(5, 9, "source-range-lost", 0, "me@here")
    assert not it.record.stops
    assert done(it, partition=1, accept_loss=(5, 9)).changes == ()


def test_how_long_the_markers_of_a_great_loss_will_take_is_told() -> None:
    great = replace(LOST, last=1_000_000_004)
    told = done(world(topic(stops={1: great})), partition=1, accept_loss=(5, 1_000_000_004)).findings
    assert [(finding.level, finding.ref) for finding in told] == [("warn", "long-hole")]
    assert "1,000,000,000 lost offsets of partition 1 of t " in told[0].what and "some 556 min" in told[0].what
    for small in (topic(stops={1: LOST}), topic(stops={1: great}, mapped=True)):
        last = small.stops[1].last
        assert done(world(small), partition=1, accept_loss=(5, last)).findings == ()


def test_what_the_source_deleted_since_belongs_to_the_range() -> None:
    it = world(topic(stops={1: LOST}), from_=Cluster(start=30))
    assert "--accept-loss 5..29 " in refusal(it, partition=1, accept_loss=(5, 9)).next_step
    done(it, partition=1, accept_loss=(5, 29))
    assert it.record.losses[1][0].last == 29
    silent = world(topic(stops={1: LOST}), from_=Cluster(silent=True))
    assert done(silent, partition=1, accept_loss=(5, 9)).applied, "a silent source: what is known"


def test_a_loss_needs_a_partition_and_something_that_is_lost() -> None:
    it = world(topic(stops={1: REFUSED}))
    with pytest.raises(UsageError) as caught:
        done(it, accept_loss=(5, 9))
    assert caught.value.ref == "loss-of-what"
    assert refusal(it, partition=1, accept_loss=(5, 9)).ref == "nothing-lost"
    assert refusal(it, partition=9).ref == "unknown-partition"


def test_a_paused_topic_goes_on_though_one_of_its_partitions_cannot() -> None:
    it = world(topic(paused=True, stops={1: LOST, 2: REFUSED}))
    made = done(it)
    assert made.changes == ("resume t", "resume partition 2 of t")
    assert [(f.level, f.ref) for f in made.findings] == [("warn", "loss-not-accepted")]
    assert it.record.stops == {1: LOST}


def test_a_wrong_target_is_copied_anew_only_once_it_is_gone_or_empty() -> None:
    stops = {1: WRONG, 2: LOST}
    losses = {0: (AcceptedLoss(0, 1, "source-range-lost", 1, "x"),)}
    it = world(topic(stops=stops, losses=losses))
    assert refusal(it).ref == "resume-unsafe"
    assert refusal(it, partition=1).next_step == (
        "if no client and no other link needs topic t on the target, delete the topic there, "
        "then: kmigrate topic resume --link l t"
    )
    for target in (Cluster(there=False), Cluster(end=0)):
        it = world(topic(stops=stops, losses=losses), target=target)
        assert done(it).changes == ("mirror t anew from earliest",)
        now = it.record
        assert now.phase is TopicPhase.INITIALISING
        assert (now.stops, now.losses, now.starts) == ({}, {}, {})


def test_what_changed_while_it_was_looked_at_is_not_written_over() -> None:
    it = world(topic(stops={1: REFUSED}))
    look = it.from_.list_offsets

    async def meanwhile(*given: Any) -> Any:
        await it.log.append(lambda state: replace(it.record, stops={**it.record.stops, 3: WRONG}))
        return await look(*given)

    it.from_.list_offsets = meanwhile  # type: ignore[method-assign, assignment]
    it.log._put("topic/l/t", topic(stops={1: LOST}))
    with pytest.raises(Refused) as caught:
        done(it, partition=1, accept_loss=(5, 9))
    assert caught.value.ref == "changed-meanwhile"
    assert it.record.stops == {1: LOST, 3: WRONG}


def test_who_stopped_at_a_gap_is_told_which_limit_to_raise() -> None:
    gap = PartitionStop("large-gap", "the source has no offsets 1 to 101 (compaction)", Remedy.AGAIN)
    again = "kmigrate topic resume --partition 3 --link l t"
    assert gap.way_on("l", "t", 3) == f"raise the limit: kmigrate link alter l --set hole_limit=N, then: {again}"
    assert REFUSED.way_on("l", "t", 3) == f"mend the cause, then: {again}"


@pytest.mark.parametrize("phase", [TopicPhase.PROMOTE_PENDING, TopicPhase.FENCED])
def test_a_topic_in_a_promote_is_not_copied_anew_and_says_what_comes_first(phase: TopicPhase) -> None:
    """A topic in a promote is not copied anew, although its target topic was deleted; the promote ends first."""
    it = world(topic(stops={0: WRONG}, phase=phase), target=Cluster(there=False))
    with pytest.raises(Refused) as caught:
        done(it)
    assert caught.value.ref == "promote-under-way"
    assert "kmigrate promote --cancel --link l t, then repeat" in caught.value.next_step


def test_a_limit_is_written_once() -> None:
    it = world(topic())
    assert asyncio.run(run_verb(throttle_link(cast("Connections", it), None, 5_000))).changes
    link = it.log.state.link("l")
    assert link is not None and link.throttle == 5_000
    assert not asyncio.run(run_verb(throttle_link(cast("Connections", it), None, 5_000))).changes
    asyncio.run(run_verb(throttle_link(cast("Connections", it), None, 0)))
    link = it.log.state.link("l")
    assert link is not None and link.throttle == 0


def test_status_names_range_cause_and_the_way_on_for_people_and_for_programs() -> None:
    parts = (
        PartitionStatus(0, 0, 9, 0, 5, 4, LOST.text, -1.0, "", LOST),
        PartitionStatus(1, 0, 9, 0, 5, 4, "", -1.0, "target-denied: offset 5 was refused"),
    )
    kept = PartitionStatus(0, 0, 9, 0, 9, 0, "", -1.0, losses=(AcceptedLoss(2, 3, "source-range-lost", 1, "me@here"),))
    topics = (
        TopicStatus("l", "t", TopicPhase.MIRRORING, 0, "", "identical", parts, paused=True),
        TopicStatus("l", "u", TopicPhase.MIRRORING, 0, "", "identical", parts[1:]),
        TopicStatus("l", "v", TopicPhase.MIRRORING, 0, "", "identical", (kept,)),
        TopicStatus("l", "w", TopicPhase.FENCING, 0, "", "identical", (), promote_waits_for="a router is silent"),
    )
    shot = Snapshot(0, 0, (LinkStatus("l", "s", "t", "", 5_000_000),), topics, (), (), frozenset(), (), ())
    console = Console(width=400, record=True, force_terminal=False)
    with console.capture() as shown:
        console.print(snapshot_view(shot))
    text = shown.get()
    resume = "kmigrate topic resume --partition 0 --accept-loss 5..9 --link l t"
    for words in (
        "at most 5,000,000 bytes/s",
        "mirroring, paused",
        f"source-range-lost: offsets 5 to 9 were deleted; {resume}",
        "partition 1: target-denied: offset 5 was refused",
        "its promote waits: a router is silent",
        "accepted as lost: 2..3 (source-range-lost, by me@here)",
        "nothing is copied: no mirror of it runs",
    ):
        assert words in text
    told = json.loads(json.dumps(shot.as_json()))
    assert told["links"][0]["throttle"] == 5_000_000
    assert told["topics"][0]["paused"]
    assert told["topics"][0]["partitions"][0]["stop"] == {
        "ref": "source-range-lost",
        "what": "offsets 5 to 9 were deleted",
        "remedy": "accept-loss",
        "first": 5,
        "last": 9,
        "at_ms": 0,
    }
    assert told["topics"][2]["partitions"][0]["losses"][0]["who"] == "me@here"
