"""The page of a promote: well-formed, complete, self-contained, and harmless with any names."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from kmigrate.model.records import Action, Asked, ClusterRef, DirectWriter
from kmigrate.model.reports import (
    HookPoint,
    HookRun,
    Outcome,
    PartitionEvidence,
    Pause,
    ReportedKind,
    ReportRecord,
    RouterEvidence,
)
from kmigrate.report.pause_chart import pause_chart
from kmigrate.report.promote_page import promote_page
from kmigrate.report.promote_steps import pause_text, steps_of
from kmigrate.workflow.status.aftermath import Aftermath

SOURCE, TARGET = ClusterRef("old", "h:1"), ClusterRef("new", "h:2")
NOW = Aftermath("promoted", True, 7, 4, 0, 2, "kmigrate verify --link blue orders")
HOLDS = {0: 21.5, 1: 4.0, 2: -1.0}
REPORT = ReportRecord(
    "blue",
    ReportedKind.TOPIC,
    "orders",
    Asked(Action.PROMOTE, 1_700_000_000_000, "ann@desk"),
    Outcome.DONE,
    1_700_000_002_050,
    fenced_ms=1_700_000_002_000,
    barrier_ms=1_700_000_002_020,
    partition_count=3,
    partitions={p: PartitionEvidence(1_000 + p, 3, held, 900) for p, held in HOLDS.items()},
    pause=Pause(2, 4.0, 21.5, 21.5),
    routers=(RouterEvidence("r-1", "i1", 12, 21.5), RouterEvidence("r-2", "i2", silent=True)),
    direct=(DirectWriter(5, 0, 1, 9, 12, 1, 2),),
    hooks=(HookRun(HookPoint.AFTER_FLIP, 3, 120, "asked\nno answer\n"),),
    versions={"kmigrate": "0.1.0", "old": "3.9"},
    gaps=("router r-3 has not reported",),
)
HOSTILE = "a<script>alert('x')</script>&\"\x00\u202e'"


def texts(page: str) -> list[str]:
    return [text for text in ET.fromstring(page.encode()).itertext() if text.strip()]


def test_the_page_has_every_figure_of_the_report() -> None:
    found = texts(promote_page(REPORT, NOW, SOURCE, TARGET))
    for wanted in (
        "✓ topic orders is promoted",
        "ann@desk",
        "21.5 ms",
        "1,002",
        "r-1",
        "12",
        "r-2",
        "3.9",
        "50 ms",
        "no answer",
    ):
        assert any(wanted in text for text in found), wanted
    assert any("kmigrate verify --link blue orders" in text for text in found)
    assert any("Missing: router r-3 has not reported." in text for text in found)
    assert any("silent: the source held the fence" in text for text in found)


def test_the_page_asks_nobody_for_anything() -> None:
    page = promote_page(REPORT, NOW, SOURCE, TARGET)
    assert not re.search(r"<(script|link|img|iframe)\b|url\(|@import|\bsrc=|href=", page)


def test_names_that_are_markup_stay_text() -> None:
    hostile = replace(
        REPORT,
        link=HOSTILE,
        name=HOSTILE,
        asked=replace(REPORT.asked, by=HOSTILE),
        reason=HOSTILE,
        routers=(RouterEvidence(HOSTILE, HOSTILE),),
        hooks=(HookRun(HookPoint.GIVEN_UP, 0, 1, HOSTILE),),
        versions={HOSTILE: HOSTILE},
        gaps=(HOSTILE,),
    )
    ref = replace(SOURCE, name=HOSTILE)
    page = promote_page(hostile, replace(NOW, next_step=HOSTILE), ref, ref)
    assert "<script" not in page and "\u202e" not in page and "\x00" not in page
    assert sum("a<script>alert('x')</script>&\"\\x00" in text for text in texts(page)) >= 9


@pytest.mark.parametrize(
    ("report", "present", "absent"),
    [
        (replace(REPORT, outcome=Outcome.GIVEN_UP, reason="not-drained: x"), "was given up", "late records"),
        (replace(REPORT, pause=None, partitions={}, routers=()), "Steps", "Pause by partition"),
        (
            ReportRecord("blue", ReportedKind.GROUP, "g", REPORT.asked, Outcome.DONE, 9, positions={"t": {0: 5}}),
            "Positions",
            "Partitions",
        ),
        (replace(REPORT, asked=Asked(Action.ROLLBACK, 1)), "is rolled back", "is promoted"),
    ],
)
def test_parts_without_facts_are_left_out(report: ReportRecord, present: str, absent: str) -> None:
    found = "\n".join(texts(promote_page(report, NOW, SOURCE, TARGET)))
    assert present in found
    assert absent not in found


def bars(svg: str) -> list[dict[str, str]]:
    return [dict(each.attrib) for each in ET.fromstring(svg).iter("rect")]


def test_a_bar_is_as_high_as_the_pause_and_a_partition_without_a_hold_has_none() -> None:
    svg = pause_chart(REPORT.partitions, Pause(2, 4.0, 21.5, 21.5))
    heights = [float(each["height"]) for each in bars(svg)]
    assert len(heights) == 2
    assert heights[0] / heights[1] == pytest.approx(21.5 / 4.0, rel=0.01)
    titles = [title.text for title in ET.fromstring(svg).iter("title")]
    assert titles == ["partition 0: 21.5 ms", "partition 1: 4.0 ms"]


@pytest.mark.parametrize(
    ("longest", "top"), [(0.0005, "0.0005 ms"), (21.5, "50 ms"), (100.0, "100 ms"), (499, "500 ms")]
)
def test_the_axis_ends_at_a_round_number_at_or_above_the_longest_pause(longest: float, top: str) -> None:
    svg = pause_chart({0: PartitionEvidence(pause_ms=longest)}, Pause(1, longest, longest, longest))
    labels = [str(text.text) for text in ET.fromstring(svg).iter("text")]
    assert any(label.startswith(top) for label in labels)
    assert max(float(each["height"]) for each in bars(svg)) <= 180


@pytest.mark.parametrize("p50", [4.0, 21.0, 21.5])
def test_the_names_of_both_lines_do_not_cover_each_other(p50: float) -> None:
    svg = pause_chart(REPORT.partitions, Pause(2, p50, 21.5, 21.5))
    at = {str(text.text): float(str(text.get("y"))) for text in ET.fromstring(svg).iter("text")}
    assert at["p50"] - at["p99"] >= 14


def test_very_many_partitions_stay_within_the_picture() -> None:
    rows = {partition: PartitionEvidence(pause_ms=1.0 + partition) for partition in range(500)}
    svg = pause_chart(rows, Pause(500, 250.0, 495.0, 500.0))
    assert all(float(each["x"]) >= 64 and float(each["x"]) + float(each["width"]) <= 920 for each in bars(svg))
    assert len([text for text in ET.fromstring(svg).iter("text") if text.get("class") == "name"]) <= 24


def test_steps_that_were_not_reached_are_left_out() -> None:
    assert [step.name for step in steps_of(REPORT)] == ["asked", "fenced", "barrier", "flipped"]
    assert [step.time for step in steps_of(REPORT)][-2:] == [
        "2023-11-14 22:13:22.020 UTC",
        "2023-11-14 22:13:22.050 UTC",
    ]
    assert [step.after for step in steps_of(REPORT)] == ["", "2,000 ms", "20 ms", "30 ms"]
    early = replace(REPORT, fenced_ms=0, barrier_ms=0, outcome=Outcome.GIVEN_UP)
    assert [step.name for step in steps_of(early)] == ["asked", "given up"]


def test_the_pause_is_told_in_words() -> None:
    held = "50 ms from the fence to its end; requests held in 2 of 3 partitions: p50 4.0, p99 21.5, max 21.5 ms"
    assert pause_text(REPORT) == held
    assert "no router has reported" in pause_text(replace(REPORT, pause=None))
