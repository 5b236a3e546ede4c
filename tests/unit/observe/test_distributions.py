"""Quantiles of the last minute against a sorted list."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from kmigrate.observe.distributions import Recent, SummaryValue

WEIGHTED = st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 50)), min_size=1, max_size=60)


@given(WEIGHTED, st.integers(0, 60))
def test_quantiles_are_off_by_a_thirty_second_at_most_and_the_ends_are_exact(
    values: list[tuple[int, int]], at: int
) -> None:
    recent = Recent()
    for part in (values[:at], values[at:]):
        recent.add([value for value, _ in part], [weight for _, weight in part], 1_000)
    every = sorted(value for value, weight in values for _ in range(weight))
    told = recent.value(1_000)
    assert (told.total, told.count) == (sum(every), len(every))
    for quantile, found in told.quantiles:
        true = every[max(0, math.ceil(quantile * len(every)) - 1)]
        assert true * 31 / 32 <= found <= true
    ends = dict(told.quantiles)
    assert (ends[0.0], ends[1.0]) == (every[0], every[-1])


def test_what_is_older_than_a_minute_leaves_the_quantiles_and_stays_in_the_sum() -> None:
    recent = Recent()
    recent.add([900], [1], 0)
    recent.add([5], [1], 31_000)
    assert dict(recent.value(31_000).quantiles)[1.0] == 900
    recent.add([6], [1], 62_000)
    told = recent.value(62_000)
    assert (dict(told.quantiles)[0.0], dict(told.quantiles)[1.0]) == (5, 6)
    assert (told.total, told.count) == (911, 3)
    silent = recent.value(200_000)
    assert (silent.quantiles, silent.count) == ((), 3)


def test_a_clock_that_was_set_back_begins_anew_instead_of_standing_still() -> None:
    recent = Recent()
    recent.add([900], [1], 10**9)
    recent.add([5], [1], 1_000)
    assert dict(recent.value(1_000).quantiles)[1.0] == 5


def test_nothing_that_is_added_is_no_value() -> None:
    recent = Recent()
    recent.add([], [], 0)
    assert recent.value(0) == SummaryValue((), 0, 0)
