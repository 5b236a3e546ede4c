"""The stops of a topic's partitions that are written to the topic's record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.upkeep.stops import StopKeeper
from kmigrate.model.eras import Direction
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import AssignmentRecord, CopyIdentity, TopicRecord, WayBack
from kmigrate.state.log import StateLog
from tests.fakes.state_log import MemoryLog

MIRRORED = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 0}, target_topic_id="old")
SHARED = AssignmentRecord("l", 1, ("me",), {"t": (0, 0)})


def _stopped() -> Lane:
    lane = Lane("t", 1, producer_id=1, epoch=0, hole_limit=1)
    lane.stop("topic-recreated: t on target is another topic")
    return lane


def _kept(log: MemoryLog, lane: Lane) -> TopicRecord:
    keeper = StopKeeper(cast("StateLog", log), "l", "me")
    asyncio.run(keeper._write("t", [lane]))
    record = log.state.topic("l", "t")
    assert record is not None
    return record


def test_a_stop_is_written_by_its_partitions_owner() -> None:
    lane = _stopped()
    assert _kept(MemoryLog(MIRRORED, SHARED), lane).stops[1].ref == "topic-recreated"
    assert lane.report.recorded


def test_a_stop_of_the_copy_before_is_none_of_a_topic_that_is_copied_anew() -> None:
    """A topic that is copied anew does not inherit a stop of the former copy.

    With the stop the partition would stand still from the start, until a person deletes the new copy, too.
    """
    anew = replace(MIRRORED, phase=TopicPhase.INITIALISING, starts={}, target_topic_id="old")
    lane = _stopped()
    assert _kept(MemoryLog(anew, SHARED), lane).stops == {}
    assert not lane.report.recorded


OWN = CopyIdentity(1, 0)
WAY_BACK = WayBack({0: 5, 1: 7}, copy=OWN)
BACK = replace(MIRRORED, phase=TopicPhase.PROMOTED, way_back=WAY_BACK)


def _back(record: TopicRecord, lane: Lane, more: str = "") -> WayBack:
    """Return the way back after the mirror of partition 1 has written the stop of its lane."""

    async def explain(_: Lane) -> str:
        return more

    log = MemoryLog(record, SHARED)
    log.say(MirrorPresence("me", "l", 1, False, 500, {"t": {0: PartitionProgress(40), 1: PartitionProgress(50)}}))
    log.ahead_ms = 10**15
    keeper = StopKeeper(cast("StateLog", log), "l", "me", Direction.BACK, explain)
    asyncio.run(keeper._write("t", [lane]))
    kept = log.state.topic("l", "t")
    assert kept is not None and kept.way_back is not None
    assert kept.stops == {}, "the copy to the target has not stopped"
    return kept.way_back


def _stopped_by(problem: str) -> Lane:
    lane = Lane("t", 1, producer_id=1, epoch=0, hole_limit=1)
    lane.stop(problem)
    return lane


@pytest.mark.parametrize(
    "problem", ["foreign-writer: another wrote", "diverged: stored at 51", "source-truncated: cut"]
)
def test_a_source_that_cannot_become_identical_again_ends_the_way_back_with_the_stop(problem: str) -> None:
    lane = _stopped_by(problem)
    ended = _back(BACK, lane, more="offset 50 holds a batch of producer 4")
    assert ended.ended == f"partition 1: {problem}; offset 50 holds a batch of producer 4"
    assert ended.ended_ms > 10**15, "the state log's clock"
    assert ended.ended_at == {0: 40, 1: 50}
    assert lane.report.recorded


def test_a_stop_that_a_person_may_resume_leaves_the_way_back_open() -> None:
    lane = _stopped_by("target-refused: offset 5 was refused with MESSAGE_TOO_LARGE (10)")
    stopped = _back(BACK, lane)
    assert (stopped.open, stopped.stops[1].ref) == (True, "target-refused")
    assert lane.report.recorded


@pytest.mark.parametrize(
    "record",
    [
        replace(BACK, way_back=replace(WAY_BACK, copy=CopyIdentity(2, 0))),
        replace(BACK, way_back=replace(WAY_BACK, ended="somebody else wrote")),
        replace(BACK, phase=TopicPhase.MIRRORING),
    ],
    ids=["a newer copy back", "ended", "rolled back"],
)
def test_a_stop_of_a_copy_that_has_ended_stops_nothing(record: TopicRecord) -> None:
    lane = _stopped_by("foreign-writer: another wrote")
    assert _back(record, lane).stops == {}
    assert not lane.report.recorded


def test_a_stop_of_the_copy_before_a_rollback_is_none_of_the_copy_after_the_rollback() -> None:
    resumed = replace(MIRRORED, resumed={0: 5, 1: 7}, copy=CopyIdentity(8, 0))
    assert _kept(MemoryLog(resumed, SHARED), _stopped()).stops == {}
