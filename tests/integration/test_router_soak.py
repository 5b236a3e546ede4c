"""A small soak of routers; `make soak-router` is the same soak, large."""

from __future__ import annotations

import json

import pytest

from tests.soak.router import Report, kills, migration, rounds
from tests.soak.router_rounds import SETTINGS, Fault

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]


def test_routers_that_are_killed_in_turn_lose_double_and_reorder_nothing() -> None:
    report = Report(seed=1)
    with migration() as run:
        kills(run, 4, report)
    assert report.clean, json.dumps(report.as_json())
    assert report.kills == 4
    assert report.records > 1000


def test_no_topic_has_two_owners_whatever_becomes_of_a_router_at_its_promote() -> None:
    report = Report(seed=1)
    with migration(SETTINGS) as run:
        rounds(run, len(Fault), report)
    assert report.clean, json.dumps(report.as_json())
    assert [each.fault for each in report.rounds] == list(Fault)
    assert all(each.sealed for each in report.rounds), "the others were waited for, not overcome"
