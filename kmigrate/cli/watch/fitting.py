"""Which columns of a table fit into a width, and how wide they are. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size

from kmigrate.cli.base.words import Text
from kmigrate.model.words import one_line

__all__ = ["GAP", "Cell", "Column", "Fitted", "cell_text", "cut", "fit"]

Cell = tuple[str, str]
"""The text of a cell, and its style."""
GAP = 1
"""Blank columns after each column."""
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Column(Generic[_R]):
    """One column of a table of rows."""

    head: str
    width: int
    """Width in terminal columns; the least width of a column that stretches."""
    cell: Callable[[_R], Cell]
    rank: int
    """In a narrow terminal the columns of the highest ranks are left out."""
    right: bool = False
    stretch: int = 0
    """The order in which columns share the room that is left, the last takes the rest; 0: the width is fixed."""
    middle: bool = False
    """True for names, which lose their middle where they are too long: names differ at both ends."""


@dataclass(frozen=True, slots=True)
class Fitted(Generic[_R]):
    """A column with its width in one terminal."""

    column: Column[_R]
    width: int


def fit(columns: Sequence[Column[_R]], room: int, longest: Callable[[Column[_R]], int]) -> list[Fitted[_R]]:
    """Return the columns that fit into the room, by rank, with their widths; `longest` is the widest cell."""
    left = room
    widths: dict[str, int] = {}
    for column in sorted(columns, key=lambda each: each.rank):
        width = min(column.width, max(longest(column), len(column.head))) if column.stretch else column.width
        if width + GAP <= left:
            widths[column.head] = width
            left -= width + GAP
    stretching = sorted(
        (each for each in columns if each.stretch and each.head in widths), key=lambda each: each.stretch
    )
    for column in stretching:
        more = left if column is stretching[-1] else max(0, min(left, longest(column) - widths[column.head]))
        widths[column.head] += more
        left -= more
    return [Fitted(column, widths[column.head]) for column in columns if column.head in widths]


def cut(text: str, width: int, *, middle: bool = False) -> str:
    """Return a text of at most this width; a longer text loses its end, or its middle."""
    if cell_len(text) <= width:
        return text
    tail = text[len(text) - (width - 1) // 2 :] if middle and width > 2 else ""
    while cell_len(tail) > (width - 1) // 2:
        tail = tail[1:]
    return set_cell_size(text, max(0, width - 1 - cell_len(tail))).rstrip() + "…" + tail


def cell_text(fitted: Fitted[_R], text: str, style: str = "") -> Text:
    """Return the text of a cell at the column's width, with the gap behind."""
    shown = cut(one_line(text), fitted.width, middle=fitted.column.middle)
    blank = " " * (fitted.width - cell_len(shown))
    return Text(f"{blank}{shown} " if fitted.column.right else f"{shown}{blank} ", style=style)
