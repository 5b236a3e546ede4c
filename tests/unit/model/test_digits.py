"""The texts that count as a whole number when a person types a number."""

from __future__ import annotations

import pytest

from kmigrate.model.digits import whole_number


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9223372036854775807", 2**63 - 1)])
def test_ascii_digits_are_a_number(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "1.0", "²", "٣", "1²", str(2**63), "1" * 5_000])
def test_everything_else_is_none(text: str) -> None:
    assert whole_number(text) is None
