"""A small version of the soak of hostile records, requests and names (`tests.soak.hostile`)."""

from __future__ import annotations

from pathlib import Path

from tests.soak.hostile import play


def test_hostile_records_requests_and_names_end_nothing_and_harm_no_migration(tmp_path: Path) -> None:
    report = play(tmp_path, 15, 1)
    assert (report.processes_ended, report.verbs_hung, report.anomalies) == (0, 0, 0)
    assert report.records > 200
    assert report.requests > 100
