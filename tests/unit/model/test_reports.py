"""Reports are bounded values with keys of their own, and the state finds them by topic or group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.record_json import decode_record, encode_record
from kmigrate.model.records import Action, Asked, DirectWriter
from kmigrate.model.reports import (
    Outcome,
    PartitionEvidence,
    Pause,
    ReportedKind,
    ReportRecord,
    RouterEvidence,
)
from kmigrate.model.state import State

REPORT = ReportRecord(
    "l",
    ReportedKind.TOPIC,
    "t",
    Asked(Action.PROMOTE, 1_000, "ann@desk"),
    Outcome.DONE,
    2_050,
    fenced_ms=2_000,
    partition_count=2,
    partitions={0: PartitionEvidence(100, 3, 21.5, 90), 1: PartitionEvidence(7, 3)},
    pause=Pause(1, 21.5, 21.5, 21.5),
    routers=(RouterEvidence("r", "r1", 4, 21.5),),
    direct=(DirectWriter(5, 0, 0, 9, 12, 1, 2),),
    versions={"kmigrate": "0.1.0"},
    gaps=("a gap",),
)


def test_a_report_is_the_same_after_the_state_log() -> None:
    assert decode_record(encode_record(REPORT)) == REPORT
    group = ReportRecord("l", ReportedKind.GROUP, "g", REPORT.asked, Outcome.DONE, 5, positions={"t": {0: 3}})
    assert decode_record(encode_record(group)) == group


@pytest.mark.parametrize(
    ("holds", "pause"),
    [
        ([], None),
        ([5.0], Pause(1, 5.0, 5.0, 5.0)),
        ([float(ms) for ms in range(1, 101)], Pause(100, 50.0, 99.0, 100.0)),
        ([3.0, 1.0, 2.0], Pause(3, 2.0, 3.0, 3.0)),
    ],
)
def test_the_distribution_of_pauses_is_by_nearest_rank(holds: list[float], pause: Pause | None) -> None:
    assert Pause.of(holds) == pause


def test_a_fence_is_as_long_as_from_the_fence_to_the_end() -> None:
    assert REPORT.fence_ms == 50
    assert replace(REPORT, fenced_ms=0).fence_ms == -1


def test_reports_are_found_by_name_the_newest_first() -> None:
    state = State()
    names = ["t", "t/9", "tt", "t"]
    for number, name in enumerate(names):
        report = replace(REPORT, name=name, asked=Asked(Action.PROMOTE, number))
        state = state.with_record(report.key, report, number)
    group = replace(REPORT, what=ReportedKind.GROUP)
    state = state.with_record(group.key, group, len(names))
    assert [each.asked.at_ms for each in state.reports_of("l", ReportedKind.TOPIC, "t")] == [3, 0]
    assert [each.asked.at_ms for each in state.reports_of("l", ReportedKind.TOPIC, "t/9")] == [1]
    assert state.reports_of("m", ReportedKind.TOPIC, "t") == []
    assert [each.asked.at_ms for each in state.reports("l")] == [1_000, 3, 2, 1, 0]
