"""The lines above the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.cli.base.words import Text
from kmigrate.cli.watch.head import alarms, clock_line, count_line, head_lines, process_line, total_line
from kmigrate.cli.watch.rows import GroupRow, TopicRow, group_rows, topic_rows
from kmigrate.workflow.status.progress import ProgressTracker, TopicProgress
from kmigrate.workflow.status.snapshot import LinkStatus
from tests.fakes.snapshots import AT_MS, estate

SHOT = estate(0)
PROGRESS = ProgressTracker().add(SHOT, 0.0)
ROWS: list[TopicRow | GroupRow] = [*topic_rows(SHOT, PROGRESS), *group_rows(SHOT, PROGRESS)]


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    clock = clock_line(AT_MS, SHOT.links, 0.0, 1.0)
    lines = head_lines(replace(SHOT, warnings=("w" * 200,) * 3), PROGRESS, ROWS, clock, [Text()], width).plain.split(
        "\n"
    )
    assert max(map(len, lines)) <= width
    assert len(lines) <= 7
    assert lines[-1].strip().endswith("more: key a"), "warnings without room are counted"
    assert head_lines(SHOT, PROGRESS, ROWS, clock, [Text(), Text("by lag")], width).plain.endswith("\nby lag")


def test_figures_of_a_cluster_that_does_not_answer_are_called_old() -> None:
    assert "older figures" not in clock_line(AT_MS, SHOT.links, 3.9, 1.0).plain
    assert clock_line(AT_MS, SHOT.links, 7.0, 1.0).plain.endswith("no answer for 7 s: older figures")
    assert "older" not in clock_line(AT_MS, SHOT.links, 7.0, 10.0).plain, "looks are rare with many topics"


def test_the_clock_names_link_limit_and_end() -> None:
    link = LinkStatus("blue", "s", "t", "", throttle=10_000_000, finished_ms=1)
    assert clock_line(AT_MS, [link], 0.0, 1.0).plain.endswith("UTC  blue s → t at most 10 MB/s finished")


def test_a_process_that_is_missing_is_named() -> None:
    assert process_line(SHOT).plain == "● mirror  ● router × 2  ● controller  "
    idle = replace(SHOT.controllers[0], active=False)
    away = replace(SHOT, controllers=(idle,), routers_alive=frozenset())
    assert process_line(away).plain == "● mirror  ○ router is not running  ○ controller is not running  "


def test_totals_say_what_is_known() -> None:
    assert total_line(TopicProgress(0.5)).plain == "copied 50.0%"
    full = TopicProgress(0.959, 950.0, 310_000.0, 2.8e8, 144.0)
    assert total_line(full).plain == "copied 95.9%, about 2 min left, 310k records/s, 280 MB/s, written 950/s"
    assert "falls behind" in total_line(replace(full, left_s=-1.0, falls_behind=True)).plain


def test_needs_are_counted() -> None:
    assert count_line(ROWS).plain.startswith("✗ 1 need you  ! 3 wait  ")
    assert count_line(ROWS, narrow=True).plain.startswith("✗ 1  ! 3  ")


def test_the_worst_alarm_comes_first() -> None:
    worse = replace(SHOT, mirrors=(), links=(replace(SHOT.links[0], trouble="no broker answers"),))
    texts = [text for text, _ in alarms(worse)]
    assert texts[:2] == ["no broker answers", "nothing is copied: no mirror of link blue runs"]
    assert [text for text, _ in alarms(replace(SHOT, links=()))][-1].startswith("no link yet: kmigrate link create")
    silent = replace(SHOT, routers_alive=frozenset({"router-1"}))
    assert ("router r2 is silent", "red") in alarms(silent)
