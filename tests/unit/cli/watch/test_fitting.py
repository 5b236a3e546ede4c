"""Columns in a width: what matters most stays, and nothing is wider than the terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from kmigrate.cli.watch.fitting import GAP, Column, Fitted, cell_text, cut, fit

COLUMNS: tuple[Column[str], ...] = (
    Column("", 1, lambda _: ("●", ""), 0),
    Column("name", 9, lambda row: (row, ""), 1, stretch=1, middle=True),
    Column("lag", 5, lambda _: ("7", ""), 2, right=True),
    Column("state", 15, lambda _: ("mirroring", ""), 3),
    Column("why", 24, lambda _: ("because of something", ""), 4, stretch=2),
)


def widths(room: int, longest: int = 30) -> dict[str, int]:
    return {each.column.head: each.width for each in fit(COLUMNS, room, lambda _: longest)}


@pytest.mark.parametrize("room", range(13, 200, 7))
def test_no_width_is_passed_and_columns_leave_by_rank(room: int) -> None:
    found = widths(room)
    assert sum(width + GAP for width in found.values()) <= room
    assert list(found) == [column.head for column in COLUMNS][: len(found)]


def test_a_name_takes_what_its_rows_need_and_the_last_column_the_rest() -> None:
    assert widths(120) == {"": 1, "name": 30, "lag": 5, "state": 15, "why": 64}
    assert widths(120, longest=4) == {"": 1, "name": 4, "lag": 5, "state": 15, "why": 90}
    assert widths(40) == {"": 1, "name": 15, "lag": 5, "state": 15}
    assert (widths(9), widths(0)) == ({"": 1, "lag": 5}, {}), "a column without room makes room for others"


@pytest.mark.parametrize("middle", [True, False])
@pytest.mark.parametrize("width", range(1, 12))
@pytest.mark.parametrize("text", ["orders.returns", "データ基盤トピック", "a", ""])
def test_a_cut_text_fits_in_terminal_columns(text: str, width: int, middle: bool) -> None:
    assert cell_len(cut(text, width, middle=middle)) <= width
    if cell_len(text) <= width:
        assert cut(text, width, middle=middle) == text


def test_a_name_loses_its_middle_and_a_sentence_its_end() -> None:
    assert cut("team-1.events.0050", 11, middle=True) == "team-….0050"
    assert cut("partition 3: lost", 11) == "partition…"


def test_cells_fill_their_column_and_control_characters_are_shown() -> None:
    name, lag = (Fitted(column, 8) for column in COLUMNS[1:3])
    assert cell_text(name, "orders").plain == "orders   "
    assert cell_text(lag, "12k").plain == "     12k "
    assert cell_text(name, "\x1b[2J").plain == "\\x1b[2J  "
