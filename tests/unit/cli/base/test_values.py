"""Rates and ranges as a person types them."""

from __future__ import annotations

import pytest

from kmigrate.cli.base.values import byte_rate, moment, offset_range
from kmigrate.errors import UsageError


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("off", 0),
        ("1", 1),
        ("500kB", 500_000),
        ("500KB", 500_000),
        ("10MB", 10_000_000),
        ("10MB/s", 10_000_000),
        ("1.5M", 1_500_000),
        ("10MiB", 10 << 20),
        ("2 GiB", 2 << 30),
    ],
)
def test_a_rate_is_read(text: str, rate: int) -> None:
    assert byte_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0", "fast", "-5", "10Mb", "10TB", "1e6", "0.1", "9" * 400])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        byte_rate(text)
    assert caught.value.ref == "bad-rate"


def test_a_range_of_offsets_includes_both_ends() -> None:
    assert offset_range("120..180") == (120, 180)
    assert offset_range("7..7") == (7, 7)


@pytest.mark.parametrize("text", ["", "5", "5..", "..5", "9..5", "5-9", "a..b", "-5..9", "1...2", f"1..{2**63}"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        offset_range(text)
    assert caught.value.ref == "bad-range"


NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("+90s", 90),
        ("+1.5h", 5_400),
        ("+2d", 172_800),
        ("2023-11-14T22:14:20", 60),
        ("2023-11-14T22:14:20Z", 60),
        ("2023-11-15T00:14:20+02:00", 60),
        ("2023-11-15", 6_400),
    ],
)
def test_a_moment_to_come_is_read(text: str, seconds: int) -> None:
    assert moment(text, "--not-before", NOW_MS) == NOW_MS + 1000 * seconds


@pytest.mark.parametrize("text", ["", "+", "90s", "+90", "+1w", "-5m", "noon", "2023-11-14T22:13:19Z", "2023-13-01"])
def test_a_moment_that_is_over_or_unreadable_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        moment(text, "--not-before", NOW_MS)
    assert caught.value.ref == "bad-moment"
    assert text in caught.value.what
