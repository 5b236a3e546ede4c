"""The stops of a topic's partitions that are written to the topic's record."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.upkeep.stops import StopKeeper
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import AssignmentRecord, TopicRecord
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
