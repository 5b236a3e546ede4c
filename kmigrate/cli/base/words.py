r"""Text for a person's terminal: nothing else in the CLI makes rich's own Text or Table, and a test checks this.

Names from outside (groups, ids, software names, brokers' messages) may hold rich's markup, emoji codes, escape
sequences, line breaks, characters that reverse a line. `Text` and `SafeTable` show all of these and obey none.
A line break is shown as `\n`; a view that needs several lines makes the lines by `below`. Inside `hidden`, both put
something else in the place of secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from rich.style import Style
from rich.table import Table
from rich.text import Text as RichText

from kmigrate.model.words import one_line

__all__ = ["SafeTable", "Text", "below", "hidden"]

_HIDE: ContextVar[Callable[[str], str]] = ContextVar("hide", default=str)
"""Returns a text without its secrets."""


@contextmanager
def hidden(hide: Callable[[str], str]) -> Iterator[None]:
    """Pass each text that is made in the block through a function that hides secrets."""
    before = _HIDE.set(hide)
    try:
        yield
    finally:
        _HIDE.reset(before)


class Text(RichText):
    """A rich text without markup, shown in a single line."""

    def __init__(self, text: str = "", style: str | Style = "", **more: Any) -> None:
        super().__init__(one_line(_HIDE.get()(text)), style, **more)

    def append(self, text: RichText | str, style: str | Style | None = None) -> Text:
        """Append words with harmless characters; append a rich text unchanged."""
        super().append(one_line(_HIDE.get()(text)) if isinstance(text, str) else text, style)
        return self

    @classmethod
    def assemble(cls, *parts: Any, **more: Any) -> Text:
        """Return a text of parts: words, words with a style, or texts."""
        return cast("Text", super().assemble(*parts, **more))


def below(lines: Iterable[RichText | str], *, indent: str = "") -> RichText:
    """Return texts as lines below each other."""
    made = [Text(each) if isinstance(each, str) else each for each in lines]
    return RichText("\n" + indent).join(made)


class SafeTable(Table):
    """A rich table without markup in cells."""

    def add_row(self, *cells: Any, **more: Any) -> None:
        """Add a row; a str cell is shown without markup."""
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **more)

    def add_column(self, header: Any = "", *args: Any, **more: Any) -> None:
        """Add a column; a str header is shown without markup."""
        super().add_column(Text(header) if isinstance(header, str) else header, *args, **more)
