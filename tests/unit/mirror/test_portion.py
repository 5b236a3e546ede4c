"""How much goes over a line at once."""

from __future__ import annotations

import pytest

from kmigrate.mirror.portion import Portion

MIB = 1 << 20


@pytest.mark.parametrize("rate", [20 << 10, 200 << 10, MIB, 10 * MIB, 1000 * MIB])
def test_it_settles_where_an_answer_comes_in_time_and_never_far_below(rate: int) -> None:
    portion, sizes = Portion(32 * MIB), list[int]()
    for _ in range(40):
        seconds = portion.size / rate
        if seconds > 30:
            portion.late()
        else:
            portion.answered(portion.size, seconds)
        sizes.append(portion.size)
    assert all(size / rate <= 15 for size in sizes[-10:])
    assert all(size == 32 * MIB or size / rate >= 2 for size in sizes[-10:])


def test_answers_that_hold_little_do_not_say_that_much_would_pass() -> None:
    portion = Portion(32 * MIB)
    portion.late()
    for _ in range(100):
        portion.answered(10, 0.5)
    assert portion.size == 8 * MIB


def test_it_never_grows_beyond_what_is_set() -> None:
    portion = Portion(1000)
    portion.late()
    portion.answered(1000, 0)
    assert portion.size == 1000
