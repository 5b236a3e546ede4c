"""The lag of a topic comes from the freshest presence of a mirror; without a source of truth the lag is unknown."""

from __future__ import annotations

import asyncio

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.model.lag import Lag, Pace
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import TopicRecord
from kmigrate.workflow.status import lags as lags_module
from kmigrate.workflow.status.lags import lags_of, way_back_seconds
from kmigrate.workflow.status.snapshot import PartitionStatus, Snapshot, TopicStatus

NOW = 1_000_000


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags_module, "now_ms", lambda: NOW)


def word(position: int, pace: Pace, *, link: str = "l", instance: str = "i", active: bool = True) -> MirrorPresence:
    return MirrorPresence(instance, link, 1, active, 500, {"t": {0: PartitionProgress(position, pace=pace)}})


def lag(*words: MirrorPresence, source_end: int = 20, target_end: int = 10, phase: str = "mirroring") -> Lag:
    record = TopicRecord("l", "t", TopicPhase(phase), 0, partitions=1)
    ends = {("t", 0): LogOffset(0, source_end, 0)}, {("t", 0): LogOffset(0, target_end, 0)}
    return asyncio.run(lags_of([record], *ends, words, None))[("t", 0)]


def test_the_last_word_of_a_dead_mirror_goes_on_ageing() -> None:
    assert lag(word(10, Pace(NOW - 7_000, 3.0), active=False)) == Lag(10, 30, 7.0)


def test_the_freshest_word_counts_and_another_links_does_not() -> None:
    words = (
        word(8, Pace(NOW - 9_000, 1.0)),
        word(10, Pace(NOW - 2_000, 3.0), instance="j"),
        word(10, Pace(NOW, 9.0), link="other", instance="k"),
    )
    assert lag(*words) == Lag(10, 30, 2.0)


def test_a_word_about_more_than_the_target_holds_is_of_a_former_copy() -> None:
    assert lag(word(11, Pace(NOW, 3.0))) == Lag(10, -1, -1.0)


def test_where_nobody_has_spoken_and_the_source_cannot_be_asked_the_records_alone_are_known() -> None:
    assert lag() == Lag(10, -1, -1.0)
    assert lag(source_end=-1) == Lag(-1, -1, -1.0)
    assert lag(source_end=10) == Lag(0, 0, 0.0)


def test_a_copy_beyond_its_sources_end_has_no_lag_that_is_known() -> None:
    assert lag(source_end=9, target_end=10).records == -1
    assert lag(source_end=10, target_end=10).records == 0


def test_a_promoted_topic_has_no_lag_wherever_its_source_ends() -> None:
    assert lag(source_end=900, phase="promoted") == Lag(0, 0, 0.0)


def test_a_topic_sums_what_can_be_summed_and_is_as_late_as_its_latest_partition() -> None:
    def part(number: int, told: Lag) -> PartitionStatus:
        return PartitionStatus(
            number, 0, 9, 0, 5, told.records, "", -1.0, lag_bytes=told.bytes, lag_seconds=told.seconds
        )

    def topic(*parts: PartitionStatus) -> TopicStatus:
        return TopicStatus("l", "t", TopicPhase.MIRRORING, 0, "", "identical", parts)

    late = topic(part(0, Lag(4, 40, 1.5)), part(1, Lag(6, 60, 9.0)))
    unsure = topic(part(0, Lag(4, 40, 1.5)), part(1, Lag(6, -1, -1.0)))
    shot = Snapshot(NOW, 0, (), (late, unsure), (), (), frozenset(), (), ())
    told = [[t["lag"], t["lag_bytes"], t["lag_seconds"]] for t in shot.as_json()["topics"]]
    assert told == [[10, 100, 9.0], [10, -1, -1.0]]
    assert shot.as_json()["topics"][0]["partitions"][1]["lag_seconds"] == 9.0


def test_a_copy_back_is_as_late_as_its_latest_partition() -> None:
    late, level = PartitionProgress(10, 17, pace=Pace(NOW - 2_000, 0.0)), PartitionProgress(20, 20)
    assert way_back_seconds({0: level, 1: late}, 7) == 2
    assert way_back_seconds({0: level}, 0) == 0
    assert way_back_seconds({0: level}, -1) == -1
    assert way_back_seconds({}, 7) == -1, "no mirror reports"
