"""A small soak of kills; `make soak-kills` is the large soak."""

from __future__ import annotations

import json

import pytest

from tests.soak.kills import Report, play

pytestmark = [pytest.mark.soak, pytest.mark.timeout(500)]


def test_groups_read_all_in_order_though_the_only_router_is_killed_while_the_copy_is_behind() -> None:
    report = Report([play(1, kills=2)])
    assert report.clean, json.dumps(report.as_json(), indent=1)
    (run,) = report.runs
    assert run.kills == 2
    assert run.furthest_behind > 200, "the copy was not held back"
    assert run.acked > 1000
