"""Rates and ranges as a person types them."""

from __future__ import annotations

import pytest

from kmigrate.cli.base.values import byte_rate, offset_range
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
