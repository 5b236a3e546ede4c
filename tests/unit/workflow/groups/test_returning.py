"""Positions on the target as the source has them, and records that the source lacks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, TopicRecord, WayBack
from kmigrate.model.stops import PartitionStop
from kmigrate.workflow.groups.returning import against_returning, mode_after, records_missing
from tests.fakes.state_log import MemoryLog

GROUP = GroupRecord("l", "g", GroupPhase.PROMOTED, 1, mode=GroupMode.FOLLOW)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1)
BACK = replace(TOPIC, phase=TopicPhase.PROMOTED, way_back=WayBack({0: 50}))
STOPPED = replace(BACK, way_back=WayBack({0: 50}, stops={0: PartitionStop("foreign-records", "t-0: foreign records")}))


def refs(*topics: TopicRecord) -> list[str]:
    return [each.ref for each in against_returning(MemoryLog(*topics).state, GROUP, {"t"})]


@pytest.mark.parametrize("phase", [TopicPhase.MIRRORING, TopicPhase.PROMOTE_PENDING, TopicPhase.FENCED])
def test_a_topic_that_is_copied_to_the_target_is_no_hindrance(phase: TopicPhase) -> None:
    assert refs(replace(TOPIC, phase=phase)) == []


@pytest.mark.parametrize("phase", [TopicPhase.PROMOTED, TopicPhase.ROLLBACK_PENDING, TopicPhase.ROLLBACK_FENCED])
def test_a_topic_that_is_copied_back_to_the_source_is_no_hindrance(phase: TopicPhase) -> None:
    assert refs(replace(BACK, phase=phase)) == []


@pytest.mark.parametrize(
    ("topic", "ref"),
    [
        (replace(BACK, way_back=None), "no-way-back"),
        (replace(TOPIC, phase=TopicPhase.INITIALISING), "topic-not-ready"),
        (STOPPED, "partition-stopped"),
        (replace(TOPIC, topic="other"), "topic-not-mirrored"),
    ],
)
def test_a_topic_with_records_that_the_source_lacks_is_named(topic: TopicRecord, ref: str) -> None:
    assert refs(topic) == [ref]


def test_a_group_holds_once_it_reads_a_topic_with_mapped_offsets() -> None:
    state = MemoryLog(TOPIC, replace(TOPIC, topic="m", mapped=True)).state
    assert mode_after(state, GROUP, {"t"}) is GroupMode.FOLLOW
    assert mode_after(state, GROUP, {"t", "m"}) is GroupMode.HOLD
    assert mode_after(state, replace(GROUP, mode=GroupMode.HOLD), {"t"}) is GroupMode.HOLD


def test_records_missing_are_counted_also_of_a_partition_that_the_source_does_not_have() -> None:
    class Source:
        async def refresh(self, _: object) -> None: ...

        async def list_offsets(self, wanted: Any) -> dict[tuple[str, int], LogOffset]:
            return {key: LogOffset(0 if key[1] < 2 else 3, 50, 0) for key in wanted}

    wanted = {("t", p): CommittedOffset(at, "") for p, at in ((0, 50), (1, 52), (2, 7))}
    assert asyncio.run(records_missing(Source(), wanted)) == {("t", 1): 2, ("t", 2): 7}  # type: ignore[arg-type]
    assert asyncio.run(records_missing(Source(), {})) == {}  # type: ignore[arg-type]
