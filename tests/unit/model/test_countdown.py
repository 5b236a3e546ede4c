"""The estimate of a wait, from the fall of the number that is left."""

from __future__ import annotations

import pytest

from kmigrate.model.countdown import Countdown, about


def test_a_steady_fall_gives_the_time_that_is_left() -> None:
    countdown = Countdown()
    assert [countdown.seconds_left(at, 1_000 - 100 * at) for at in (0, 1, 2, 4)] == [None, None, 8.0, 6.0]


def test_a_number_that_stands_still_or_rises_gives_no_estimate() -> None:
    countdown = Countdown()
    assert [countdown.seconds_left(at, left) for at, left in ((0.0, 50), (5.0, 50), (9.0, 60))] == [None, None, None]


def test_only_the_last_half_minute_counts() -> None:
    """A fast beginning says nothing after the number has stood still."""
    countdown = Countdown()
    for at, left in ((0.0, 1_000), (5.0, 500), (20.0, 500)):
        countdown.seconds_left(at, left)
    assert countdown.seconds_left(36.0, 500) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.2, "about 1 s left"),
        (59.6, "about 60 s left"),
        (600.0, "about 10 min left"),
        (10_800.0, "about 3 h left"),
    ],
)
def test_an_estimate_is_rounded_to_what_a_person_can_use(seconds: float | None, text: str) -> None:
    assert about(seconds) == text
