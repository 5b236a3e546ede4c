"""The rate limit of a link holds over any span of time, whatever the size of single answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.mirror.copy.throttle import Throttle


def test_without_a_limit_nobody_waits() -> None:
    it = Throttle()
    it.charge(1 << 40, 1.0)
    assert it.wait_s(1.0) == 0.0
    assert it.most(32 << 20) == 32 << 20


@given(rate=st.integers(1_000, 10**9), sizes=st.lists(st.integers(1, 10**8), min_size=1, max_size=60))
def test_the_rate_is_kept_but_for_a_quarter_of_a_second(rate: int, sizes: list[int]) -> None:
    it, now = Throttle(), 100.0
    it.limit(rate, now)
    for size in sizes:
        now += it.wait_s(now)
        it.charge(size, now)
    now += it.wait_s(now)
    assert sum(sizes) <= rate * (now - 100.0 + 0.25) * 1.000001 + 1


def test_time_without_reading_is_not_saved_up() -> None:
    it = Throttle()
    it.limit(1_000_000, 0.0)
    assert it.wait_s(3_600.0) == 0.0
    it.charge(1_250_000, 3_600.0)
    assert it.wait_s(3_600.0) == 1.0


def test_exempt_reading_is_charged_but_silences_nobody_for_longer_than_a_second() -> None:
    it = Throttle()
    it.limit(1_000_000, 0.0)
    it.charge(50_000_000, 0.0, exempt=True)
    assert it.wait_s(0.0) == 1.0
    it.charge(50_000_000, 0.0, exempt=True)
    assert it.wait_s(0.0) == 1.0


def test_a_new_rate_holds_at_once_and_forgets_the_debts_of_the_old_one() -> None:
    it = Throttle()
    it.limit(1_000, 0.0)
    it.charge(1_000_000, 0.0)
    it.limit(1_000_000, 1.0)
    assert it.wait_s(1.0) == 0.0
    it.charge(1_000_000, 1.0)
    it.limit(1_000_000, 1.0)
    assert it.wait_s(1.0) == 0.75, "the same rate said again changes nothing"
    it.limit(0, 1.0)
    assert it.wait_s(1.0) == 0.0


def test_answers_get_smaller_with_the_rate_but_never_tiny() -> None:
    it = Throttle()
    it.limit(10_000_000, 0.0)
    assert it.most(32 << 20) == 2_500_000
    it.limit(1_000, 0.0)
    assert it.most(32 << 20) == 64 << 10
