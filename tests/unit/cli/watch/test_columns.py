"""The cells of topics and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.cli.watch.columns import MARKS, group_columns, partition_columns, topic_columns
from kmigrate.cli.watch.rows import GroupRow, TopicRow, group_rows, topic_rows
from kmigrate.model.lifecycle import GroupMode, TopicPhase
from kmigrate.workflow.status.attention import Need
from kmigrate.workflow.status.progress import ProgressTracker, TopicProgress
from tests.fakes.snapshots import estate

SHOT = estate(0)
PROGRESS = ProgressTracker().add(SHOT, 0.0)
TOPICS = {row.name: row for row in topic_rows(SHOT, PROGRESS)}
GROUPS = {row.name: row for row in group_rows(SHOT, PROGRESS)}


def of_topic(row: TopicRow) -> dict[str, str]:
    return {column.head: column.cell(row)[0] for column in topic_columns(120)}


def of_group(row: GroupRow, room: int = 120) -> dict[str, str]:
    return {column.head: column.cell(row)[0] for column in group_columns(room)}


def test_a_stopped_or_paused_topic_does_not_look_like_one_that_mirrors() -> None:
    assert of_topic(TOPICS["audit"])["state"] == "1 of 2 stopped"
    assert of_topic(TOPICS["orders.returns"])["state"] == "paused"
    assert of_topic(TOPICS["orders"])["state"] == "mirroring"


def test_every_need_has_a_mark_of_its_own_that_needs_no_colour() -> None:
    assert len({mark for mark, _ in MARKS.values()}) == len(Need)


def test_unknown_figures_are_no_zeros() -> None:
    row = replace(TOPICS["orders"], progress=TopicProgress())
    cells = of_topic(row)
    assert (cells["copied"], cells["left"], cells["in/s"], cells["bytes/s"]) == ("?", "", "", "")


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (TopicProgress(left_s=0.0), "-"),
        (TopicProgress(left_s=0.2), "< 1 s"),
        (TopicProgress(left_s=700.0), "12 min"),
        (TopicProgress(left_s=1e9), ">99 d"),
        (TopicProgress(left_s=-1.0), ""),
        (TopicProgress(falls_behind=True), "grows"),
    ],
)
def test_the_time_left_is_an_estimate_or_nothing(progress: TopicProgress, text: str) -> None:
    assert of_topic(replace(TOPICS["clicks"], progress=progress))["left"] == text


def test_members_are_counted_where_they_are() -> None:
    cells = of_group(GROUPS["billing"])
    assert (cells["direct"], cells["at router"], cells["on target"]) == ("1", "2", "0")
    cells = of_group(GROUPS["mail"])
    assert (cells["direct"], cells["at router"], cells["on target"]) == ("0", "", "4"), "the target does not tell"
    silent = replace(GROUPS["billing"].status, source_members=None, direct_members=-1, router_members=-1)
    cells = of_group(replace(GROUPS["billing"], status=silent), 39)
    assert (cells["direct"], cells["router"]) == ("?", "?")


def test_a_lag_that_is_partly_unknown_is_a_lower_bound() -> None:
    partly = replace(GROUPS["billing"].status, lag_unplaced=(("orders", 1),))
    assert of_group(replace(GROUPS["billing"], status=partly))["lag"] == "≥12"


def test_a_partition_shows_both_ends_both_leaders_and_its_problem() -> None:
    topic = TOPICS["audit"].status
    cells = {column.head: column.cell(topic.partitions[1])[0] for column in partition_columns(topic)}
    assert (cells["#"], cells["source end"], cells["target end"], cells["leaders"]) == ("1", "5,001", "4,881", "2 → 12")
    assert cells["problem"].startswith("source-range-lost: offsets 70 to 99")
    assert "topic resume --partition 1 --accept-loss 70..99" in cells["problem"]


def test_a_promoted_topic_has_nothing_left() -> None:
    cells = of_topic(TOPICS["payments"])
    assert (cells["state"], cells["copied"], cells["lag"], cells["left"]) == (TopicPhase.PROMOTED, "100%", "0", "-")


def test_a_group_that_is_promoted_automatically_says_so_where_there_is_room() -> None:
    row = next(iter(GROUPS.values()))
    auto = replace(row, status=replace(row.status, mode=GroupMode.HOLD, auto=True))
    assert [of_group(auto, room)["mode"] for room in (60, 120)] == ["hold", "hold, auto"]
