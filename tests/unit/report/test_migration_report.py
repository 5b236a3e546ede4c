"""A report is clean only if every judge says so, and the JSON has the promised fields."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kmigrate.cli.views.migration import migration_view
from kmigrate.report.migration import FAILING, MigrationReport, Millis, ParitySummary
from kmigrate.sandbox import checker

WAITS = Millis(1.0, 2.0, 3.0)
CLEAN = MigrationReport(
    acked=60_000,
    preloaded=5,
    anomalies={"group_rereads": 2},
    examples={},
    offsets_identical=True,
    producer_pause_ms=WAITS,
    router_hold_ms=WAITS,
    baseline_ack_ms=WAITS,
    consumer_gap_ms=WAITS,
    consumer_gap_live_ms=WAITS,
    group_gap_ms={"g": 4.0},
    transaction_pause_ms=WAITS,
    baseline_transaction_ms=WAITS,
    parity=ParitySummary(3, 100, 0),
    moved={"orders": {"partitions": 6, "phase": "promoted", "offsets": "identical", "target_offsets": 7}},
    seconds=1.0,
)


def test_rereads_alone_are_clean() -> None:
    assert CLEAN.clean


@pytest.mark.parametrize(
    "change",
    [
        *({"anomalies": {name: 1}} for name in FAILING),
        {"offsets_identical": False},
        {"parity": ParitySummary(3, 100, 1)},
        {"parity": ParitySummary(0, 0, 0)},
    ],
)
def test_any_one_fault_is_not_clean(change: dict[str, Any]) -> None:
    report = replace(CLEAN, **change)
    assert not report.clean
    assert report.as_json()["clean"] is False


def test_the_report_fails_for_every_anomaly_that_the_judge_fails_for() -> None:
    assert set(FAILING) == set(checker.FAILING)


def test_the_json_has_every_field_that_is_promised() -> None:
    told = CLEAN.as_json()
    assert set(told) >= {
        "acked", "lost", "duplicated", "reordered", "altered", "misplaced", "extra", "torn", "premature",
        "nonmonotonic", "rewinds", "commits_back", "unseen", "group_gaps",
        "group_rereads", "client_errors", "offsets_identical", "producer_pause_ms", "router_hold_ms",
        "baseline_ack_ms", "consumer_gap_ms", "transaction_pause_ms", "parity", "seconds",
    }  # fmt: skip
    assert told["producer_pause_ms"] == {"p50": 1.0, "p99": 2.0, "max": 3.0}


@pytest.mark.parametrize(
    ("report", "words"), [(CLEAN, "clean: nothing lost"), (replace(CLEAN, anomalies={"lost": 3}), "lost 3")]
)
def test_a_person_reads_the_verdict(report: MigrationReport, words: str) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(migration_view(report))
    assert words in console.export_text()


def test_a_pause_beyond_what_is_asked_is_named_and_takes_nothing_from_what_is_clean() -> None:
    assert replace(CLEAN, goal=Millis(0.0, 50.0, 250.0)).missed == ()
    slow = replace(CLEAN, goal=Millis(0.0, 50.0, 250.0), producer_pause_ms=Millis(20.0, 50.0, 251.0))
    assert slow.clean
    assert slow.as_json()["missed"] == [
        "producer_pause_ms.p99 is 50, and less than 50 is asked",
        "producer_pause_ms.max is 251, and less than 250 is asked",
    ]
