"""Figures in a few characters: no figure promises more than is known."""

from __future__ import annotations

import pytest

from kmigrate.model.amounts import bytes_text, count_text, left_text, percent_text, time_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (-1, "?"),
        (0, "0"),
        (0.4, "0.4"),
        (9.4, "9.4"),
        (9.6, "10"),
        (999.4, "999"),
        (999.6, "1k"),
        (12_345, "12.3k"),
        (4_560_000, "4.56M"),
        (7.1e9, "7.1G"),
        (3.2e12, "3.2T"),
    ],
)
def test_a_count_takes_five_characters_at_most(count: float, text: str) -> None:
    assert count_text(count) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("part", "text"), [(-1, "?"), (0, "0.0%"), (0.5, "50.0%"), (0.9999999, "99.9%"), (1, "100%"), (1.2, "100%")]
)
def test_all_is_said_of_all_alone(part: float, text: str) -> None:
    assert percent_text(part) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "?"), (0, "< 1 s"), (12.4, "12 s"), (89, "89 s"), (90, "2 min"), (10_000, "3 h"), (400_000, "5 days")],
)
def test_an_estimate_is_rounded(seconds: float, text: str) -> None:
    assert left_text(seconds) == text


def test_sizes_and_spans_change_their_unit() -> None:
    assert [bytes_text(each) for each in (5, 4_500, 3_300_000, 2e9, 7.25e12)] == [
        "5 B",
        "4.5 kB",
        "3.3 MB",
        "2 GB",
        "7.2 TB",
    ]
    assert [time_text(each) for each in (3.21, 100, 40_000, 300_000)] == ["3.2 s", "2 min", "11 h", "3 days"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1_000, "1 kB"), (123_456, "123 kB"), (5 * 10**15, "5,000.0 TB")],
)
def test_a_size_is_told_in_powers_of_a_thousand(count: float, text: str) -> None:
    assert bytes_text(count) == text
