"""Moments and spans of time in words."""

from __future__ import annotations

import pytest

from kmigrate.model.moments import span_text, utc_text


def test_a_moment_is_told_to_the_second_in_utc() -> None:
    assert utc_text(1_795_000_000_999) == "2026-11-18 11:06:40 UTC"


def test_a_moment_that_no_calendar_has_is_told_as_its_number() -> None:
    assert utc_text(2**63 - 1) == "9223372036854775807 ms"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 seconds"),
        (119_000, "119 seconds"),
        (120_000, "2 minutes"),
        (3_600_000, "60 minutes"),
        (5_400_000, "90 minutes"),
        (7_200_000, "2 hours"),
        (86_400_000, "24 hours"),
        (7 * 86_400_000, "7 days"),
        (400 * 86_400_000, "400 days"),
    ],
)
def test_a_span_is_told_in_the_largest_unit_that_it_has_two_of(ms: int, text: str) -> None:
    assert span_text(ms) == text
