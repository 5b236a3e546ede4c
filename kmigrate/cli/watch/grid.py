"""A table that fits its columns to its width, and changes only the cells that differ."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from kmigrate.cli.base.words import Text
from kmigrate.cli.watch.fitting import Cell, Column, Fitted, cell_text, fit

__all__ = ["Grid"]

_R = TypeVar("_R")
_SCROLLBAR = 1


class Grid(DataTable[Text], Generic[_R]):
    """A table of rows; the cursor stays on its row when the order changes, except at the top."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Details"),
        Binding("tab", "app.focus_next", "Other table", key_display="Tab"),
        Binding("j", "cursor_down", "Down", show=False),
        Binding("k", "cursor_up", "Up", show=False),
        Binding("home", "scroll_top", "First", show=False),
        Binding("end", "scroll_bottom", "Last", show=False),
    ]
    DEFAULT_CSS = """
    Grid { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; background: transparent; }
    Grid > .datatable--header { background: transparent; text-style: bold underline; }
    """

    def __init__(
        self,
        columns: Callable[[int], Sequence[Column[_R]]],
        key: Callable[[_R], Hashable],
        name: str,
        *,
        opens: bool = False,
    ) -> None:
        super().__init__(cursor_type="row", cell_padding=0, id=name)
        self._columns_for = columns
        self._key = key
        self._opens = opens
        """True if a row opens a screen of details."""
        self._contents: Sequence[_R] = ()
        self._fitted: list[Fitted[_R]] = []
        self._cells: list[list[Cell]] = []

    def show(self, contents: Sequence[_R]) -> None:
        """Show these rows in this order."""
        followed = self._followed
        self._contents = contents
        self._draw()
        self._follow(followed)

    def show_columns(self, columns: Callable[[int], Sequence[Column[_R]]], contents: Sequence[_R]) -> None:
        """Show these rows with other columns."""
        self._columns_for = columns
        self.show(contents)

    @property
    def chosen(self) -> _R | None:
        """The row under the cursor."""
        return self._contents[self.cursor_row] if 0 <= self.cursor_row < len(self._contents) else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the key that opens a row where no row opens."""
        return self._opens or action != "select_cursor"

    def on_resize(self) -> None:
        followed = self._followed
        self._draw()
        self._follow(followed)

    @property
    def _followed(self) -> Hashable | None:
        """The key of the row that the cursor follows; None for the top, where the cursor stays."""
        chosen = self.chosen
        return self._key(chosen) if chosen is not None and self.cursor_row > 0 else None

    def _follow(self, followed: Hashable | None) -> None:
        """Move the cursor to the row of that key, and scroll only if the row has moved."""
        places = (place for place, row in enumerate(self._contents) if self._key(row) == followed)
        place = next(places, 0) if followed is not None else self.cursor_row
        if place != self.cursor_row:
            self.move_cursor(row=place, animate=False)

    def _draw(self) -> None:
        room = self.size.width - _SCROLLBAR
        if room <= 0:
            return
        fitted = fit(self._columns_for(room), room, self._longest)
        if [(each.column.head, each.width) for each in fitted] != [
            (each.column.head, each.width) for each in self._fitted
        ]:
            self._begin(fitted)
        self._fitted = fitted
        cells = [[each.column.cell(row) for each in fitted] for row in self._contents]
        if len(cells) < len(self._cells):
            self.clear()
            self._cells = []
        self._change(cells)
        self._cells = cells

    def _longest(self, column: Column[_R]) -> int:
        return max((cell_len(column.cell(row)[0]) for row in self._contents), default=0)

    def _begin(self, fitted: Sequence[Fitted[_R]]) -> None:
        self.clear(columns=True)
        self._cells = []
        for each in fitted:
            self.add_column(cell_text(each, each.column.head), width=each.width + 1)

    def _change(self, cells: Sequence[Sequence[Cell]]) -> None:
        for place, row in enumerate(cells):
            if place >= len(self._cells):
                self.add_row(*(cell_text(each, *cell) for each, cell in zip(self._fitted, row, strict=True)))
                continue
            for column, (cell, before) in enumerate(zip(row, self._cells[place], strict=True)):
                if cell != before:
                    self.update_cell_at(Coordinate(place, column), cell_text(self._fitted[column], *cell))
