"""A producer's schedule does not slow down with the cluster, and does not flood the cluster after a stall."""

from __future__ import annotations

import time

import pytest

from kmigrate.sandbox.sending import Pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_is_due_adds_up_to_the_rate(clock: list[float]) -> None:
    pace = Pace(333)
    given = 0
    for _ in range(500):
        clock[0] += 0.01
        given += pace.due()
    assert given == pytest.approx(333 * 5, abs=1)


def test_a_stall_is_not_followed_by_a_flood(clock: list[float]) -> None:
    pace = Pace(1000)
    clock[0] += 60
    assert pace.due() == 200
    clock[0] += 0.01
    assert pace.due() in (9, 10)
