"""Records that a group has read and the target does not hold yet."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster.committed_offsets import Committed, CommittedOffset
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.records import GroupRecord, TopicRecord
from kmigrate.workflow.groups import uncopied as module
from kmigrate.workflow.groups.uncopied import Uncopied, uncopied
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1)
TOPIC = TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=2, starts={0: 0, 1: 50})


def look(
    monkeypatch: pytest.MonkeyPatch, positions: dict[tuple[str, int], int], *records: Any, copied: int = 100
) -> list[Uncopied]:
    """Look at a group with these positions; each copy holds its partition up to `copied`."""

    async def committed(_: Any, groups: list[str]) -> dict[str, Committed]:
        found = {key: CommittedOffset(offset, "") for key, offset in positions.items()}
        return dict.fromkeys(groups, found)

    class Maps:
        async def maps(self, record: TopicRecord) -> dict[int, OffsetMap]:
            return {p: OffsetMap.identity(start, copied) for p, start in record.starts.items()}

    async def source(_: Any) -> tuple[None, None]:
        return None, None

    monkeypatch.setattr(module, "read_all_positions", committed)
    connections = SimpleNamespace(log=MemoryLog(LINK, *records), source=source)
    return asyncio.run(uncopied(cast("Any", connections), LINK, ["g"], cast("Any", Maps())))


def test_each_partition_with_missing_records_is_named_with_both_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    [behind] = look(monkeypatch, {("t", 0): 5_100, ("t", 1): 100}, TOPIC, GROUP)
    assert (behind.partition, behind.left) == (0, 5_000)
    assert str(behind) == "group g has read t-0 up to offset 5,100, and the copy holds it up to 100: 5,000 left"


def test_a_topic_whose_copy_has_not_begun_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    early = replace(TOPIC, topic="late", phase=TopicPhase.ALIGNING)
    found = look(monkeypatch, {("late", 0): 0, ("t", 0): 200}, TOPIC, early, GROUP)
    assert [(each.topic, each.left) for each in found] == [("late", None), ("t", 100)]
    assert str(found[0]).endswith("the copy of late has not begun: the topic is aligning")


def test_a_position_before_the_copys_first_offset_waits_for_the_copy_to_begin_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert look(monkeypatch, {("t", 1): 10}, TOPIC, GROUP, copied=50) == []


@pytest.mark.parametrize("phase", [GroupPhase.PROMOTING, GroupPhase.PROMOTED])
def test_a_group_beyond_mirrored_has_nothing_to_wait_for(phase: GroupPhase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, {("t", 0): 5_000}, TOPIC, replace(GROUP, phase=phase)) == []


def test_a_topic_that_is_not_mirrored_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, {("foreign", 0): 5_000}, TOPIC, GROUP) == []
