"""A lag in a cell of `kmigrate status`."""

from __future__ import annotations

import pytest

from kmigrate.cli.views.lags import lag_text
from kmigrate.model.lag import Lag


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        (Lag(), "?"),
        (Lag(0, 0, 0.0), "0"),
        (Lag(1_500, 45_300, 3.21), "1,500 (~45.3 kB, 3.2 s)"),
        (Lag(7, -1, -1.0), "7"),
        (Lag(7, -1, 100.0), "7 (2 min)"),
        (Lag(7, 700, -1.0), "7 (~700 B)"),
        (Lag(10**9, 5 * 10**12, 40_000.0), "1,000,000,000 (~5.0 TB, 11 h)"),
        (Lag(1, 1, 300_000.0), "1 (~1 B, 3 days)"),
    ],
)
def test_what_is_known_is_told_and_what_is_not_is_left_out(lag: Lag, text: str) -> None:
    assert lag_text(lag) == text
