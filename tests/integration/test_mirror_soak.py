"""A small soak in every run of the suite; `make soak-mirror` is the same soak, large."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from tests.conftest import Pair
from tests.soak.mirror import Plan, soak


def test_mirrors_killed_again_and_again_while_leaders_move_lose_double_and_shift_nothing(
    clusters3: Pair, unique_name: Callable[[str], str]
) -> None:
    plan = Plan(kills=3, records=8_000, restarts=0, leader_gap_s=(0.3, 1.5), broker_gap_s=(3.0, 6.0), patience_s=40)
    report = asyncio.run(soak(clusters3.source, clusters3.target, plan, unique_name("soak")))
    assert report.clean, json.dumps(report.as_json())
    assert report.verdict.offsets_identical
    assert report.records >= plan.records
    assert (report.kills, report.kills_of_active > 0) == (plan.kills, True)
    assert min(report.leader_moves.values()) > 0
    assert report.broker_pauses > 0
