"""A small soak of a router's memory; `make soak-weeks` is the same soak, large."""

from __future__ import annotations

import json

import pytest

from tests.soak.weeks import Report, play

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


def test_a_router_remembers_nothing_of_what_came_and_went() -> None:
    """Memory and files settle only after hundreds of changes, which `make soak-weeks` covers."""
    report = Report()
    play(report, changes=60, idle=3, busy=10)
    assert not report.grown(), json.dumps(report.as_json())
    assert not report.client_errors
    assert (report.changes, report.promotes) == (60, 6)
    assert report.records > 500
