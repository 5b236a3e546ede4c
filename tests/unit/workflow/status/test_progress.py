"""Rates, copied parts and times left: what two snapshots show, and nothing that they do not show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.lag import Pace
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.workflow.status.progress import WINDOW_S, GroupProgress, ProgressTracker, TopicProgress
from kmigrate.workflow.status.snapshot import GroupStatus, LinkStatus, PartitionStatus, Snapshot, TopicStatus

LINK = LinkStatus("l", "s", "t", "")


def part(end: int, lag: int, *, partition: int = 0, start: int = 0, target_end: int = 0) -> PartitionStatus:
    return PartitionStatus(partition, start, end, 0, target_end, lag, "", -1.0)


def topic(*parts: PartitionStatus, phase: TopicPhase = TopicPhase.MIRRORING, name: str = "t") -> TopicStatus:
    return TopicStatus("l", name, phase, 0, "", "identical", parts)


def shot(*topics: TopicStatus, groups: tuple[GroupStatus, ...] = (), at_ms: int = 0, pace: float = 0.0) -> Snapshot:
    progress = {0: PartitionProgress(0, pace=Pace(1, pace))}
    mirror = MirrorPresence("m", "l", 1, True, 500, {each.topic: progress for each in topics})
    return Snapshot(at_ms, 0, (LINK,), topics, groups, (), frozenset(), (mirror,), ())


def told(*looks: tuple[float, TopicStatus], pace: float = 0.0) -> TopicProgress:
    tracker = ProgressTracker()
    for at_s, status in looks:
        progress = tracker.add(shot(status, pace=pace), at_s)
    return progress.topics["l", "t"]


def test_a_single_look_shows_the_copied_part_and_no_rate() -> None:
    assert told((0.0, topic(part(100, 25)))) == TopicProgress(copied=0.75)


def test_two_looks_show_rates_and_the_time_left() -> None:
    found = told((5.0, topic(part(1_000, 900))), (7.0, topic(part(1_200, 500))), pace=10.0)
    assert (found.written_per_s, found.copied_per_s, found.copied_bytes_per_s) == (100.0, 300.0, 3_000.0)
    assert found.left_s == 2.5, "500 records, of which 300 are copied and 100 more are written each second"
    assert not found.falls_behind


def test_a_rate_is_the_mean_of_the_window_and_forgets_older_looks() -> None:
    looks = [(float(second), topic(part(1_000_000, 1_000_000 - 10 * min(second, 20)))) for second in range(40)]
    assert told(*looks[:15]).copied_per_s == 10.0
    assert told(*looks[:26]).copied_per_s == pytest.approx(5.0)
    assert told(*looks[: 22 + round(WINDOW_S)]).copied_per_s == 0.0


def test_looks_further_apart_than_the_window_still_show_a_rate() -> None:
    assert told((0.0, topic(part(100, 100))), (60.0, topic(part(700, 100)))).copied_per_s == 10.0


def test_a_copy_that_is_slower_than_its_producers_falls_behind_and_has_no_time_left() -> None:
    found = told((0.0, topic(part(1_000, 500))), (1.0, topic(part(1_200, 600))))
    assert (found.falls_behind, found.left_s) == (True, -1.0)


def test_a_copy_that_stands_still_has_no_estimate_and_does_not_fall_behind() -> None:
    found = told((0.0, topic(part(1_000, 500))), (1.0, topic(part(1_000, 500))))
    assert (found.copied_per_s, found.left_s, found.falls_behind) == (0.0, -1.0, False)


def test_records_on_their_way_are_no_backlog() -> None:
    """The producers write as fast as the mirror copies; the few records between them are copied within a second."""
    found = told((0.0, topic(part(1_000, 10))), (1.0, topic(part(1_400, 20))))
    assert (found.left_s < 0.1, found.falls_behind) == (True, False)


def test_a_counter_that_goes_back_makes_rates_unknown_until_two_looks_at_the_new_log() -> None:
    looks = ((0.0, topic(part(1_000, 0))), (1.0, topic(part(40, 40))), (2.0, topic(part(60, 40))))
    assert (told(*looks[:2]).written_per_s, told(*looks[:2]).copied_per_s) == (-1.0, -1.0)
    assert (told(*looks).written_per_s, told(*looks).copied_per_s) == (20.0, 20.0)


def test_a_new_partition_that_begins_at_a_high_offset_is_no_burst() -> None:
    both = topic(part(100, 0), part(5_000_000, 0, partition=1, start=5_000_000))
    assert told((0.0, topic(part(90, 0))), (1.0, both)).written_per_s == -1.0


def test_a_cluster_that_does_not_answer_leaves_all_unknown() -> None:
    silent = topic(part(-1, -1, start=-1))
    assert told((0.0, topic(part(90, 0))), (1.0, silent)) == TopicProgress()
    assert told((0.0, topic(part(90, 0))), (1.0, silent), (2.0, topic(part(99, 0)))).written_per_s == -1.0


@pytest.mark.parametrize("at_s", [5.0, 1.0, 0.0])
def test_a_clock_that_stands_or_goes_back_shows_no_rate(at_s: float) -> None:
    assert told((5.0, topic(part(10, 0))), (at_s, topic(part(90, 0)))).written_per_s == -1.0


def test_the_wall_clock_decides_nothing() -> None:
    tracker = ProgressTracker()
    tracker.add(shot(topic(part(10, 0)), at_ms=9_000_000), 1.0)
    assert tracker.add(shot(topic(part(30, 0)), at_ms=0), 3.0).topics["l", "t"].written_per_s == 10.0


def test_after_the_promote_the_targets_log_shows_what_is_written() -> None:
    before = (0.0, topic(part(100, 0, target_end=100)))
    done = [(float(at), topic(part(100, 0, target_end=100 + 7 * at), phase=TopicPhase.PROMOTED)) for at in range(1, 4)]
    assert told(before, done[0]).written_per_s == -1.0, "one look at the target's log"
    assert told(before, *done) == TopicProgress(1.0, 7.0, 0.0, 0.0, 0.0)


def test_all_is_copied_only_where_nothing_is_left() -> None:
    assert told((0.0, topic(part(10**9, 1)))).copied < 1
    assert told((0.0, topic(part(0, 0)))).copied == 1


def test_links_and_the_whole_add_up_their_topics() -> None:
    tracker = ProgressTracker()
    tracker.add(shot(topic(part(100, 100)), topic(part(100, 0), name="u")), 0.0)
    found = tracker.add(shot(topic(part(100, 50)), topic(part(150, 0), name="u")), 1.0)
    assert found.total == found.links["l"]
    assert (found.total.copied, found.total.copied_per_s, found.total.written_per_s) == (0.8, 100.0, 50.0)
    assert found.total.left_s == 0.5
    added = tracker.add(shot(topic(part(100, 0)), topic(part(10, 10), name="new")), 2.0).total
    assert added.copied_per_s == 50.0, "a new topic has no rate yet, and the others keep theirs"


def test_a_link_without_topics_has_no_copied_part() -> None:
    found = ProgressTracker().add(shot(), 0.0)
    assert found.links == {"l": TopicProgress(-1.0, 0, 0, 0, -1.0)}
    assert found.total == found.links["l"]


def test_forgotten_topics_are_forgotten() -> None:
    tracker = ProgressTracker()
    tracker.add(shot(topic(part(100, 0))), 0.0)
    tracker.add(shot(), 1.0)
    assert tracker.add(shot(topic(part(200, 0))), 2.0).topics["l", "t"].written_per_s == -1.0


def test_a_group_catches_up_or_falls_behind() -> None:
    group = GroupStatus("l", "g", GroupPhase.MIRRORED, "", (), 0, 1_000)

    def after(*lags: int) -> GroupProgress:
        tracker = ProgressTracker()
        for at, lag in enumerate(lags):
            progress = tracker.add(shot(groups=(replace(group, lag=lag),)), float(at))
        return progress.group(group)

    assert after(1_000) == GroupProgress()
    assert after(1_000, 600) == GroupProgress(400.0, 1.5)
    assert after(5_000, 5_300) == GroupProgress(-300.0, -1.0, falls_behind=True)
    assert after(1_000, 0) == GroupProgress(1_000.0, 0.0)
    assert after(1_000, -1, 500) == GroupProgress(), "no rate across a look that failed"


def test_a_lag_that_grows_between_two_commits_is_no_backlog() -> None:
    group = GroupStatus("l", "g", GroupPhase.MIRRORED, "", (), 0, 0)
    tracker = ProgressTracker()
    for at in range(20):
        lag = 100 * (at % 5)  # 100 records/s are written, and every fifth look sees a commit
        found = tracker.add(shot(groups=(replace(group, lag=lag),)), float(at)).group(group)
        assert not found.falls_behind
    for at in range(20, 40):
        found = tracker.add(shot(groups=(replace(group, lag=100 * (at - 20)),)), float(at)).group(group)
    assert found == GroupProgress(-100.0, -1.0, falls_behind=True), "nobody reads"


def test_the_document_names_each_figure() -> None:
    tracker = ProgressTracker()
    group = GroupStatus("l", "g", GroupPhase.MIRRORED, "", (), 0, 0)
    document = tracker.add(shot(topic(part(100, 25)), groups=(group,)), 0.0).as_json()
    assert document["copied"] == 0.75
    assert document["topics"] == [
        {
            "link": "l",
            "topic": "t",
            "copied": 0.75,
            "written_per_s": -1.0,
            "copied_per_s": -1.0,
            "copied_bytes_per_s": -1.0,
            "left_s": -1.0,
            "falls_behind": False,
        }
    ]
    assert document["groups"] == [
        {"link": "l", "group": "g", "gained_per_s": None, "left_s": 0.0, "falls_behind": False}
    ]
    assert [each["name"] for each in document["links"]] == ["l"]
