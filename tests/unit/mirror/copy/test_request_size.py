"""The size of a request or an answer adapts to the speed of the connection."""

from __future__ import annotations

import pytest

from kmigrate.mirror.copy.request_size import AdaptiveRequestSize

MIB = 1 << 20


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("patience_s", [30, 6])
@pytest.mark.parametrize("rate", [50 << 10, 200 << 10, MIB, 10 * MIB, 1000 * MIB])
def test_it_settles_where_an_answer_comes_in_time_and_never_far_below(
    rate: int, patience_s: float, in_turn: bool
) -> None:
    request_size, sizes = AdaptiveRequestSize(32 * MIB, patience_s, in_turn=in_turn), list[int]()
    for _ in range(40):
        seconds = request_size.size / rate
        if seconds > patience_s:
            request_size.late()
        else:
            request_size.answered(request_size.size, seconds)
        sizes.append(request_size.size)
    assert all(size / rate <= patience_s / 2 for size in sizes[-10:])
    assert all(size == 32 * MIB or size / rate >= patience_s / 16 for size in sizes[-10:])


def test_answers_that_hold_little_do_not_say_that_much_would_pass() -> None:
    request_size = AdaptiveRequestSize(32 * MIB, 30)
    request_size.late()
    for _ in range(100):
        request_size.answered(10, 0.5)
    assert request_size.size == 8 * MIB


def test_it_never_grows_beyond_what_is_set() -> None:
    request_size = AdaptiveRequestSize(1000, 30)
    request_size.late()
    request_size.answered(1000, 0)
    assert request_size.size == 1000


def _broker(request_size: AdaptiveRequestSize, patience_s: float, wait_s: float, rate: int, answers: int) -> list[int]:
    """Return the sizes asked of a broker that waits before each answer, and then sends at a fixed rate."""
    sizes = list[int]()
    for _ in range(answers):
        sizes.append(request_size.size)
        seconds = wait_s + request_size.size / rate
        if seconds > patience_s:
            request_size.late()
        else:
            request_size.answered(request_size.size, seconds)
    return sizes


@pytest.mark.parametrize("wait_s", [5, 11, 20, 25])
def test_a_broker_that_waits_as_long_for_little_as_for_much_is_asked_for_much(wait_s: float) -> None:
    sizes = _broker(AdaptiveRequestSize(32 * MIB, 30, in_turn=True), 30, wait_s, 1000 * MIB, 60)
    assert min(sizes) >= 8 * MIB


@pytest.mark.parametrize("wait_s", [0.1, 5, 7, 12, 20])
def test_who_asked_for_little_of_a_broker_that_stood_still_asks_for_much_again_though_it_stays_slow(
    wait_s: float,
) -> None:
    request_size = AdaptiveRequestSize(32 * MIB, 30, in_turn=True)
    for _ in range(10):
        request_size.late()
    assert max(_broker(request_size, 30, wait_s, 1000 * MIB, 200)) == 32 * MIB


def test_requests_that_were_on_their_way_together_are_late_together_once() -> None:
    request_size = AdaptiveRequestSize(16 * MIB, 35)
    for _ in range(5):
        request_size.answered(16 * MIB, 15)
    assert request_size.size == 8 * MIB


def test_an_answer_that_holds_little_and_is_late_does_not_say_that_less_would_be_earlier() -> None:
    request_size = AdaptiveRequestSize(32 * MIB, 30, in_turn=True)
    for _ in range(10):
        request_size.answered(1000, 12)
    assert request_size.size == 32 * MIB


def test_requests_that_wait_behind_each_other_become_larger_again_where_a_broker_only_stays_slow() -> None:
    request_size = AdaptiveRequestSize(16 * MIB, 35)
    for _ in range(10):
        request_size.late()
    assert max(_broker(request_size, 35, 7, 1000 * MIB, 100)) == 16 * MIB
