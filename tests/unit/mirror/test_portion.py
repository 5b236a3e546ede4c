"""How much goes over a line at once."""

from __future__ import annotations

import pytest

from kmigrate.mirror.portion import Portion

MIB = 1 << 20


@pytest.mark.parametrize("patience_s", [30, 6])
@pytest.mark.parametrize("rate", [50 << 10, 200 << 10, MIB, 10 * MIB, 1000 * MIB])
def test_it_settles_where_an_answer_comes_in_time_and_never_far_below(rate: int, patience_s: float) -> None:
    portion, sizes = Portion(32 * MIB, patience_s), list[int]()
    for _ in range(40):
        seconds = portion.size / rate
        if seconds > patience_s:
            portion.late()
        else:
            portion.answered(portion.size, seconds)
        sizes.append(portion.size)
    assert all(size / rate <= patience_s / 2 for size in sizes[-10:])
    assert all(size == 32 * MIB or size / rate >= patience_s / 16 for size in sizes[-10:])


def test_answers_that_hold_little_do_not_say_that_much_would_pass() -> None:
    portion = Portion(32 * MIB, 30)
    portion.late()
    for _ in range(100):
        portion.answered(10, 0.5)
    assert portion.size == 8 * MIB


def test_it_never_grows_beyond_what_is_set() -> None:
    portion = Portion(1000, 30)
    portion.late()
    portion.answered(1000, 0)
    assert portion.size == 1000
