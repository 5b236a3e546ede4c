"""Line and column of each table and key in a TOML text; no well-kept parser of TOML tells these.

The text has been parsed before, so the scan relies on good TOML: strings end, and brackets match.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import tomli

__all__ = ["Path", "Place", "Places"]

Path = tuple[str | int, ...]
"""The way to a value: names of tables and keys; a number, from 1, picks an element of an array of tables."""

_STRING = r"""\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
_KEY = rf"(?:[A-Za-z0-9_-]+|{_STRING})"
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"(\[\[?)[ \t]*({_KEYS})[ \t]*\]\]?", re.DOTALL)
_ASSIGNED = re.compile(rf"({_KEYS})[ \t]*=", re.DOTALL)
_BLANK = re.compile(r"(?:\s|#[^\n]*)+")
_VALUE = re.compile(rf"(?P<skipped>{_STRING}|#[^\n]*)|(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<end>\n)|.", re.DOTALL)


class Place(NamedTuple):
    """A place in a text; line and column count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class Places:
    """The places of the tables and keys of a TOML text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found: dict[Path, int] = {}
        self._scan()

    def of(self, path: Path) -> Place:
        """Return the place of a key; of a key that is missing, or inside a value, the place of what should hold it."""
        for length in range(len(path), 0, -1):
            if (at := self._found.get(path[:length])) is not None:
                return self._place(at)
        return Place(1, 1)

    def _place(self, at: int) -> Place:
        return Place(self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at))

    def _scan(self) -> None:
        at = 0
        table: Path = ()
        elements: Counter[Path] = Counter()
        while at < len(self._text):
            if blank := _BLANK.match(self._text, at):
                at = blank.end()
            elif header := _HEADER.match(self._text, at):
                table = _names(header[2])
                if header[1] == "[[":
                    elements[table] += 1
                    table = (*table, elements[table])
                for length in range(1, len(table)):  # [a.b] begins a, too
                    self._found.setdefault(table[:length], at)
                self._found[table] = at
                at = header.end()
            elif assigned := _ASSIGNED.match(self._text, at):
                self._found.setdefault((*table, *_names(assigned[1])), at)
                at = self._end_of_value(assigned.end())
            else:
                return  # no TOML that this scan knows: what was found so far is right

    def _end_of_value(self, at: int) -> int:
        depth = 0
        while token := _VALUE.match(self._text, at):
            at = token.end()
            depth += (token["open"] is not None) - (token["close"] is not None)
            if token["end"] and not depth:
                break
        return at


def _names(keys: str) -> tuple[str, ...]:
    """Return the names of dotted keys, as TOML itself reads the quotes and escapes."""
    value: Any = tomli.loads(f"{keys} = 0")
    names: list[str] = []
    while isinstance(value, dict):
        ((name, value),) = value.items()
        names.append(name)
    return tuple(names)
