"""The witness: what a report says of each end, whoever saw the request, and what it says that it lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import FenceAck, RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    Action,
    Asked,
    ClusterRef,
    DirectRecord,
    DirectWriter,
    GroupRecord,
    LinkRecord,
    PartitionBarrier,
    PromotedUnit,
    PromoteTerms,
    ProvenTopic,
    RollbackTerms,
    RouterRecord,
    Seal,
    TopicRecord,
    VerifiedRange,
    WayBack,
)
from kmigrate.model.reports import (
    MOST_ROWS,
    Outcome,
    PartitionEvidence,
    Pause,
    ReportedKind,
    ReportRecord,
    RouterEvidence,
)
from kmigrate.model.state import State
from kmigrate.model.verified import Looked, grown
from kmigrate.workflow.promote.evidence import Witness, report_of
from kmigrate.workflow.promote.outcome import flipped, given_up
from kmigrate.workflow.promote.rollback import given_back, rolled_back

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2"), 1)
ROUTER = RouterRecord("r", "r1", "host", "host:1", 1)
ASKED = Asked(Action.PROMOTE, 1_000, "ann@desk")
PENDING = TopicRecord(
    "l",
    "t",
    TopicPhase.PROMOTE_PENDING,
    1_000,
    partitions=2,
    terms=PromoteTerms(1_000, accept_direct=True),
    asked=ASKED,
)
FENCING = replace(PENDING, phase=TopicPhase.FENCING, fence_epoch=7, fenced_ms=2_000)
BARRIER = {0: PartitionBarrier(100, 3), 1: PartitionBarrier(7, 4)}
FENCED = replace(FENCING, phase=TopicPhase.FENCED, barrier=BARRIER, barrier_ms=2_020)
FLIPPED = flipped(FENCED, 2_050, ProvenTopic(7))
GIVEN_UP = given_up(FENCED, "barrier-not-reached: too late", "look at the mirror")


class Story:
    """A state log that a witness follows; `now` is the monotonic clock."""

    def __init__(self, *records: Record) -> None:
        self.state, self.now, self.witness = State(), 0.0, Witness()
        self.routers: list[RouterPresence] = []
        self.put(LINK, ROUTER, *records)

    def put(self, *records: Record) -> None:
        for record in records:
            self.state = self.state.with_record(record.key, record, self.state.epoch + 1)

    def see(self, *records: Record) -> None:
        self.put(*records)
        self.witness.follow(self.state, self.routers, self.now)

    def says(self, in_flight: int | None = None, holds: dict[int, float] | None = None, epoch: int = 7) -> None:
        fences = {} if in_flight is None else {PENDING.key: FenceAck(epoch, in_flight)}
        held = {} if holds is None else {PENDING.key: holds}
        self.routers = [RouterPresence("r1", "r", self.state.epoch, 500, fences, held)]
        self.witness.follow(self.state, self.routers, self.now)

    def reports(self, after_s: float = 2.0) -> list[ReportRecord]:
        self.now += after_s
        return [report_of(ended, self.state, {"kmigrate": "1"}) for ended in self.witness.due(self.now)]

    def report(self) -> ReportRecord:
        [report] = self.reports()
        return report


def to_the_barrier() -> Story:
    story = Story()
    story.see(PENDING)
    story.see(FENCING)
    story.says(in_flight=3)
    story.says(in_flight=0)
    story.see(FENCED)
    return story


def test_a_promote_that_was_watched_leaves_every_figure() -> None:
    story = to_the_barrier()
    story.see(FLIPPED)
    story.says(holds={0: 21.5, 1: 4.0})
    report = story.report()
    assert (report.name, report.outcome, report.asked) == ("t", Outcome.DONE, ASKED)
    assert (report.fenced_ms, report.barrier_ms, report.ended_ms, report.fence_ms) == (2_000, 2_020, 2_050, 50)
    assert report.partitions == {0: PartitionEvidence(100, 3, 21.5), 1: PartitionEvidence(7, 4, 4.0)}
    assert report.pause == Pause(2, 4.0, 21.5, 21.5)
    assert report.routers == (RouterEvidence("r", "r1", 3, 21.5),)
    assert (report.accepted_direct, report.fence_epoch, report.gaps) == (True, 7, ())


def test_the_report_waits_two_seconds_for_the_routers_and_is_made_once() -> None:
    story = to_the_barrier()
    story.see(FLIPPED)
    assert story.reports(after_s=1.9) == []
    assert len(story.reports(after_s=0.1)) == 1
    story.see(replace(FLIPPED, unsettled=False))
    assert story.reports() == [], "the caller is writing the report"
    story.put(ReportRecord("l", ReportedKind.TOPIC, "t", ASKED, Outcome.DONE, 1))
    story.see(replace(FLIPPED, unsettled=False, paused=True))
    assert story.reports() == []


def test_holds_of_an_earlier_fence_and_from_before_the_flip_do_not_count() -> None:
    story = to_the_barrier()
    story.says(in_flight=0, holds={0: 900.0})
    story.see(FLIPPED)
    story.witness.follow(story.state, story.routers, story.now)
    report = story.report()
    assert report.pause is None
    assert report.gaps == ("router r on host has not reported how long it held requests",)


def test_a_promote_whose_end_nobody_saw_is_reported_from_its_record() -> None:
    story = Story(FLIPPED)
    story.see()
    story.says(holds={1: 6.0})
    report = story.report()
    assert (report.fenced_ms, report.barrier_ms, report.ended_ms) == (2_000, 2_020, 2_050)
    assert report.partitions[1] == PartitionEvidence(7, 4, 6.0)
    assert report.gaps == ("no controller ran when the request ended: the counts in flight are unknown",)


def test_a_promote_that_is_given_up_behind_the_fence_keeps_the_barrier_that_the_record_loses() -> None:
    story = to_the_barrier()
    story.see(GIVEN_UP)
    story.says(holds={0: 300.0})
    report = story.report()
    assert (report.outcome, report.reason) == (Outcome.GIVEN_UP, "barrier-not-reached: too late")
    assert report.way_on == "look at the mirror"
    assert report.partitions[0] == PartitionEvidence(100, 3, 300.0)
    assert report.ended_ms == GIVEN_UP.since_ms


def test_a_promote_given_up_before_its_fence_tells_nothing_of_an_earlier_fence() -> None:
    earlier = replace(PENDING, fence_epoch=4, fenced_ms=500, barrier_ms=510)
    for story in (Story(), Story(given_up(earlier, "cancelled: taken back by ann"))):
        if len(story.state.topics()) == 0:
            story.see(earlier)
            story.see(given_up(earlier, "cancelled: taken back by ann"))
        story.see()
        story.says(holds={0: 900.0})
        report = story.report()
        assert (report.fenced_ms, report.barrier_ms, report.fence_epoch, report.pause) == (0, 0, -1, None)
        assert (report.routers, report.gaps) == ((), ())


def test_a_giving_up_that_nobody_saw_says_that_the_barrier_is_unknown() -> None:
    story = Story(GIVEN_UP)
    story.see()
    story.says(holds={})
    [gap] = story.report().gaps
    assert gap == "no controller ran when the request ended: the barrier and the counts in flight are unknown"


def test_the_next_request_for_the_topic_takes_nothing_from_the_report_of_the_last() -> None:
    story = to_the_barrier()
    story.see(GIVEN_UP)
    story.says(holds={0: 300.0})
    again = replace(PENDING, asked=Asked(Action.PROMOTE, 3_000))
    story.see(again)
    story.see(replace(again, phase=TopicPhase.FENCING, fence_epoch=12, fenced_ms=4_000))
    story.says(in_flight=0, holds={0: 1.0}, epoch=12)
    assert story.report().partitions[0] == PartitionEvidence(100, 3, 300.0)
    story.see(flipped(replace(FENCED, asked=again.asked, fence_epoch=12), 4_050, ProvenTopic(12)))
    story.says(holds={0: 2.0})
    assert story.report().partitions[0].pause_ms == 2.0


def test_a_router_that_a_seal_replaced_is_named_as_silent() -> None:
    story = Story()
    sealed = replace(FENCING, seal=Seal("", {"dead1": "dead"}))
    story.see(FENCING)
    story.says(in_flight=0)
    story.see(sealed)
    story.see(replace(FLIPPED, seal=sealed.seal))
    story.says(holds={})
    assert story.report().routers == (RouterEvidence("r", "r1", 0), RouterEvidence("dead", "dead1", silent=True))


def test_stragglers_parity_and_the_unit_are_in_the_report() -> None:
    writers = tuple(DirectWriter(number, 0, 0, 1, 1, 1, number) for number in range(25))
    record = replace(FLIPPED, unit=PromotedUnit({"u": ProvenTopic(9)}))
    story = to_the_barrier()
    story.put(DirectRecord("l", "t", writers, more=2))
    story.put(grown(None, LINK, record, {0: Looked(0, 90, True)}, 5))
    story.see(record)
    report = story.report()
    assert [each.producer_id for each in report.direct[:2]] == [24, 23]
    assert (len(report.direct), report.more_direct, report.unit) == (20, 7, ("u",))
    assert [each.verified_to for each in report.partitions.values()] == [90, -1]
    assert isinstance(story.state.verified("l", "t").ranges[0], VerifiedRange)  # type: ignore[union-attr]


def test_of_very_many_partitions_those_with_the_longest_pauses_are_named() -> None:
    count = MOST_ROWS + 100
    wide = replace(FLIPPED, partitions=count, barrier=dict.fromkeys(range(count), PartitionBarrier(1, 1)))
    story = Story()
    story.see(wide)
    story.says(holds={partition: float(partition) for partition in range(count)})
    report = story.report()
    assert (len(report.partitions), report.partition_count, min(report.partitions)) == (MOST_ROWS, count, 100)
    assert report.pause == Pause(count, 299.0, 593.0, 599.0)


@pytest.mark.parametrize("done", [True, False])
def test_a_group_leaves_a_report_at_once(done: bool) -> None:
    asked = GroupRecord("l", "g", GroupPhase.PROMOTING, 1_000, asked_ms=1_000, asked=ASKED)
    end = (
        replace(
            asked,
            phase=GroupPhase.PROMOTED,
            promoted_ms=1_500,
            written={"t": {0: 5, 1: 6}},
            unread={"t": {0: 2}},
            read_again={"t": {1: 3}},
        )
        if done
        else replace(asked, phase=GroupPhase.MIRRORED, since_ms=1_600, reason="member-on-target: one", way_on="restart")
    )
    story = Story()
    story.see(asked)
    story.see(end)
    [report] = story.reports(after_s=0.0)
    if done:
        assert (report.outcome, report.ended_ms, report.partition_count) == (Outcome.DONE, 1_500, 2)
        assert (report.positions, report.unread, report.read_again) == ({"t": {0: 5, 1: 6}}, 2, 3)
    else:
        assert (report.outcome, report.ended_ms, report.reason) == (Outcome.GIVEN_UP, 1_600, "member-on-target: one")
        assert report.positions == {}


@pytest.mark.parametrize("done", [True, False])
def test_the_rollback_of_a_group_leaves_a_report(done: bool) -> None:
    asked = GroupRecord("l", "g", GroupPhase.ROLLING_BACK, 6_000, promoted_ms=1_500, asked=ASKED_BACK)
    end = (
        replace(asked, phase=GroupPhase.MIRRORED, since_ms=6_500, promoted_ms=0, written={"t": {0: 9}})
        if done
        else replace(asked, phase=GroupPhase.PROMOTED, since_ms=6_600, reason="not-drained: r1", way_on="restart r1")
    )
    story = Story()
    story.see(asked)
    story.see(replace(asked, gathering=True))
    assert story.reports(after_s=0.0) == []
    story.see(end)
    [report] = story.reports(after_s=0.0)
    assert report.action is Action.ROLLBACK
    if done:
        assert (report.outcome, report.ended_ms, report.positions) == (Outcome.DONE, 6_500, {"t": {0: 9}})
    else:
        assert (report.outcome, report.ended_ms) == (Outcome.GIVEN_UP, 6_600)
        assert (report.reason, report.way_on, report.positions) == ("not-drained: r1", "restart r1", {})


def test_a_record_without_a_request_and_a_topic_that_is_gone_leave_no_report() -> None:
    story = Story(replace(FLIPPED, asked=None))
    story.see(PENDING)
    story.state = story.state.with_record(PENDING.key, None, story.state.epoch + 1)
    story.see()
    assert story.reports() == []


ASKED_BACK = Asked(Action.ROLLBACK, 6_000, "bob@desk")
BACK = {0: PartitionBarrier(130, 9), 1: PartitionBarrier(8, 9)}
WAY = WayBack({0: 100, 1: 7}, terms=RollbackTerms(6_000))
BACK_PENDING = replace(
    FLIPPED, unsettled=False, phase=TopicPhase.ROLLBACK_PENDING, asked=ASKED_BACK, way_back=WAY, since_ms=6_000
)
BACK_FENCING = replace(
    BACK_PENDING, phase=TopicPhase.ROLLBACK_FENCING, way_back=replace(WAY, fence_epoch=20, fenced_ms=7_000)
)
BACK_FENCED = replace(
    BACK_FENCING,
    phase=TopicPhase.ROLLBACK_FENCED,
    way_back=replace(WAY, fence_epoch=20, fenced_ms=7_000, barrier=BACK, barrier_ms=7_010),
)


def rolling_back() -> Story:
    story = Story()
    story.see(BACK_PENDING)
    story.see(BACK_FENCING)
    story.says(in_flight=2, epoch=20)
    story.see(BACK_FENCED)
    return story


def test_a_rollback_leaves_the_same_figures() -> None:
    story = rolling_back()
    story.see(rolled_back(BACK_FENCED, 7_030))
    story.says(holds={0: 9.0})
    report = story.report()
    assert (report.action, report.outcome, report.asked.by) == (Action.ROLLBACK, Outcome.DONE, "bob@desk")
    assert (report.fenced_ms, report.barrier_ms, report.ended_ms, report.fence_epoch) == (7_000, 7_010, 7_030, 20)
    assert report.partitions == {0: PartitionEvidence(130, 9, 9.0), 1: PartitionEvidence(8, 9)}
    assert report.routers == (RouterEvidence("r", "r1", 2, 9.0),)


def test_a_rollback_whose_end_nobody_saw_has_the_barrier_without_leader_epochs() -> None:
    story = Story(rolled_back(BACK_FENCED, 7_030))
    story.see()
    story.says(holds={})
    report = story.report()
    assert [each.barrier for each in report.partitions.values()] == [130, 8]
    assert (report.outcome, report.fenced_ms, report.ended_ms) == (Outcome.DONE, 7_000, 7_030)


def test_a_rollback_that_is_given_up_names_its_own_reason() -> None:
    story = rolling_back()
    story.see(given_back(BACK_FENCED, "barrier-not-reached: late", "look at the mirror"))
    story.says(holds={})
    report = story.report()
    assert (report.outcome, report.reason, report.way_on) == (
        Outcome.GIVEN_UP,
        "barrier-not-reached: late",
        "look at the mirror",
    )
    assert (report.partitions[0].barrier, report.fence_epoch) == (130, 20)
