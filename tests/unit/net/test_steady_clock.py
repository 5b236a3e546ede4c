"""The clock for differences does not follow changes of the system's clock."""

from __future__ import annotations

import time

import pytest

from kmigrate.net import clock


@pytest.mark.parametrize("put_s", [-3600, 3600])
def test_a_clock_that_is_put_changes_no_difference(monkeypatch: pytest.MonkeyPatch, put_s: int) -> None:
    assert abs(clock.steady_ms() - clock.now_ms()) < 60_000
    right, before = time.time_ns, clock.steady_ms()
    monkeypatch.setattr(time, "time_ns", lambda: right() + put_s * 10**9)
    assert abs(clock.now_ms() - before) > 3_500_000
    assert 0 <= clock.steady_ms() - before < 60_000
