"""What needs attention, and the reason, of topics and groups in each state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import RefusedMember
from kmigrate.model.records import ClusterSide, DirectWriter, LateWrites, MisplacedMember
from kmigrate.model.stops import PartitionStop, Remedy
from kmigrate.workflow.promote.late_findings import LateFound
from kmigrate.workflow.status.attention import Attention, Need, group_attention, topic_attention
from kmigrate.workflow.status.document import status_document
from kmigrate.workflow.status.progress import GroupProgress, ProgressTracker, TopicProgress
from kmigrate.workflow.status.snapshot import GroupStatus, PartitionStatus, Snapshot, TopicStatus

NOW = 1_000_000
PART = PartitionStatus(0, 0, 100, 0, 100, 0, "", -1.0, lag_seconds=0.0)
BEHIND = replace(PART, partition=1, source_end=12_345, lag=5_000, lag_seconds=60.0)
TOPIC = TopicStatus("l", "t", TopicPhase.MIRRORING, 1, "", "identical", (PART,))
STOP = PartitionStop("source-range-lost", "offsets 5 to 9 are gone", Remedy.ACCEPT_LOSS, 5, 9)


def of(progress: TopicProgress | None = None, **more: Any) -> Attention:
    return topic_attention(replace(TOPIC, **more), NOW, progress)


@pytest.mark.parametrize(
    ("more", "need", "reason"),
    [
        ({}, Need.STEADY, ""),
        ({"phase": TopicPhase.PROMOTED}, Need.DONE, ""),
        ({"phase": TopicPhase.FENCING}, Need.PROMOTING, ""),
        ({"phase": TopicPhase.ALIGNING}, Need.COPYING, "the target topic is being prepared"),
        ({"paused": True}, Need.WAITS, "paused: kmigrate topic resume --link l t"),
        ({"reason": "direct-writers: two"}, Need.WAITS, "direct-writers: two"),
        ({"promote_waits_for": "the mirror"}, Need.WAITS, "its promote waits: the mirror"),
        ({"sealed_for": ("r1",)}, Need.WAITS, "sealed on the source for router r1"),
        ({"upkeep": "configs differ"}, Need.PERSON, "configs differ"),
        ({"phase": TopicPhase.PROMOTED, "reason": "not-settled: x"}, Need.WAITS, "not-settled: x"),
        (
            {"partitions": (replace(PART, problem=STOP.text, stop=STOP),)},
            Need.PERSON,
            f"partition 0: {STOP.text}; kmigrate topic resume --partition 0 --accept-loss 5..9 --link l t",
        ),
        (
            {"partitions": (replace(PART, trouble="target-disk-low"), replace(BEHIND, trouble="target-disk-low"))},
            Need.WAITS,
            "partition 0, 1: target-disk-low",
        ),
        ({"partitions": (PART, BEHIND)}, Need.COPYING, "5,000 records to copy, partition 1 up to offset 12,345"),
        ({"partitions": (replace(BEHIND, lag_seconds=1.0),)}, Need.STEADY, ""),
    ],
)
def test_each_state_of_a_topic_has_its_need_and_its_reason(more: dict[str, Any], need: Need, reason: str) -> None:
    assert of(**more) == Attention(need, reason)


def test_a_topic_that_is_being_promoted_names_what_is_left_and_how_long_that_takes() -> None:
    found = of(TopicProgress(left_s=8.0), phase=TopicPhase.PROMOTE_PENDING, partitions=(PART, BEHIND))
    assert found == Attention(Need.PROMOTING, "5,000 records to copy, partition 1 up to offset 12,345, about 8 s")


def test_a_copy_that_falls_behind_says_by_which_rates() -> None:
    moved = TopicProgress(written_per_s=500.0, copied_per_s=300.0, falls_behind=True)
    reason = "5,000 records to copy, falls behind: 500 records/s are written, 300 copied"
    assert of(moved, partitions=(BEHIND,)) == Attention(Need.WAITS, reason)


def test_direct_writers_and_late_records_are_named() -> None:
    writer = DirectWriter(7, 2, 0, 12, 99, NOW - 60_000, NOW - 8_000, 8_000)
    found = of(direct_writers=(writer,))
    assert (found.need, found.reason.partition(":")[0]) == (Need.WAITS, "1 direct writer, the last 8.0 s ago")
    late = tuple(LateFound("t", n, LateWrites(120, 124, 3, 124, 0, 0)) for n in range(5))
    found = of(phase=TopicPhase.PROMOTED, late=late)
    assert (found.need, found.reason.endswith("; and more")) == (Need.PERSON, True)


GROUP = GroupStatus("l", "g", GroupPhase.MIRRORED, "", (), 0, 0)
ASTRAY = MisplacedMember(ClusterSide.SOURCE, "m-1", "app", "/10.0.0.1", NOW, NOW)


@pytest.mark.parametrize(
    ("more", "need", "words"),
    [
        ({}, Need.STEADY, ""),
        ({"phase": GroupPhase.PROMOTED}, Need.DONE, ""),
        ({"phase": GroupPhase.PROMOTING}, Need.PROMOTING, ""),
        ({"phase": GroupPhase.ROLLING_BACK}, Need.PROMOTING, ""),
        ({"phase": GroupPhase.ROLLING_BACK, "promote_waits_for": "app"}, Need.WAITS, "its rollback waits: app"),
        ({"phase": GroupPhase.PROMOTED, "reason": "not-drained: r"}, Need.WAITS, "its rollback was given up: not-drai"),
        ({"promote_waits_for": "two members"}, Need.WAITS, "its promote waits: two members"),
        ({"reason": "members-on-source: one"}, Need.WAITS, "members-on-source: one"),
        ({"phase": GroupPhase.PROMOTED, "late_commits": {"t": {0: 5}}}, Need.WAITS, "t-0"),
        ({"phase": GroupPhase.PROMOTED, "misplaced": (ASTRAY,)}, Need.PERSON, "app"),
        (
            {"refused": (RefusedMember("app", "/10.0.0.1", "", "INVALID_SESSION_TIMEOUT"),)},
            Need.PERSON,
            "INVALID_SESSION",
        ),
    ],
)
def test_each_state_of_a_group_has_its_need_and_its_reason(more: dict[str, Any], need: Need, words: str) -> None:
    found = group_attention(replace(GROUP, **more), NOW)
    assert found.need == need
    assert words in found.reason
    assert bool(words) == bool(found.reason)


def test_a_group_with_a_backlog_says_how_much_is_left_to_read() -> None:
    found = group_attention(replace(GROUP, lag=900), NOW, GroupProgress(30.0, 30.0))
    assert found == Attention(Need.COPYING, "900 records to read, about 30 s")
    assert group_attention(replace(GROUP, lag=9), NOW, GroupProgress(30.0, 0.3)).need is Need.STEADY


def test_a_group_whose_lag_grows_waits_for_its_readers() -> None:
    found = group_attention(replace(GROUP, lag=5_000), NOW, GroupProgress(-120.0, falls_behind=True))
    assert found == Attention(Need.WAITS, "5,000 records to read, falls behind: the lag grows by 120 records/s")


def test_members_are_counted_at_the_source_by_what_routers_tell() -> None:
    assert replace(GROUP, source_members=None).at_source == -1
    assert replace(GROUP, mode=GroupMode.FOLLOW, direct_members=2).at_source == 2
    assert GROUP.at_source == 0


def test_the_document_has_the_attention_of_each_topic_and_group_and_the_progress() -> None:
    shot = Snapshot(NOW, 0, (), (replace(TOPIC, upkeep="configs differ"),), (GROUP,), (), frozenset(), (), ())
    document = status_document(shot, ProgressTracker().add(shot, 0.0))
    assert document["topics"][0]["attention"] == {"need": "person", "reason": "configs differ"}
    assert document["groups"][0]["attention"] == {"need": "steady", "reason": ""}
    assert document["progress"]["topics"][0]["topic"] == "t"
    assert {"at_ms", "links", "warnings"} <= document.keys()
