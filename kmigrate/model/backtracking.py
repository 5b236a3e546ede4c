"""Tells whether a regular expression can be matched against any name in bounded time; pure.

Python's `re` backtracks: if a repeat can divide the same text among its turns in several ways, the ways to try double
with each character. A match against a name of 60 letters then never ends.

So the body of a repeat must be clear: among the places of the expression that may come next, no two match the same
character. `([a-z]+-)*` is clear, because a hyphen ends each turn. `([a-z]+-?)+` is not clear: the next letter may
belong to the same turn or to the next turn.

Consecutive repeats (`.*-a-.*`) cost a power of the name's length, and choices (`a?a?`) multiply: both numbers are
bounded, unless the whole expression is clear. A back-reference counts as slow: only trying shows what it matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

__all__ = ["slow_part"]

_MOST_REPEATS = 4
"""Maximum number of unclear repeats in sequence: four take < 1 ms with 60 characters, 0.4 s with the worst 249."""

_MOST_CHOICES = 12
"""Maximum number of unclear choices in sequence (`a?a?a?`); each choice doubles the number of ways to try."""

_WRITTEN_OUT = 16
"""Greatest count at which the repeat of a single character is treated as if the characters were written out."""

_LETTERS = tuple(map(chr, range(256)))
"""Characters that show whether two places match the same character; the expression's own characters are added."""


@lru_cache(maxsize=1024)
def slow_part(expression: str) -> str:
    """Return why a valid expression may take very long on some name; '' if the expression is fast on every name."""
    read = _parser.parse(expression)
    places = _Places(read.state, {*_LETTERS, *expression})
    try:
        whole = places.sequence(read, read.state.flags)
    except _Slow as slow:
        return str(slow)
    few = places.repeats <= _MOST_REPEATS and places.choices <= _MOST_CHOICES
    if few or places.clear(whole, 0):
        return ""
    if places.repeats > _MOST_REPEATS:
        return f"more than {_MOST_REPEATS} of its repeats may match the same text"
    return f"more than {_MOST_CHOICES} of its choices may match the same text"


class _Slow(Exception):
    """The reason, in words, why an expression may take very long."""


class _Part(NamedTuple):
    """The places where a match of one part of an expression may begin and end, as numbers of places."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    empty: bool = True
    """True if the part may match nothing."""


class _Places:
    """The places of an expression, one for each character that the expression asks for, and their possible order."""

    def __init__(self, state: Any, letters: set[str]) -> None:
        self._state = state
        self._letters = letters
        self._matching: dict[tuple[str, int], frozenset[str]] = {}
        self._matched: list[frozenset[str]] = []
        self._following: list[list[int]] = []
        self._nothings = 0
        """Number of parts that can match nothing in several ways: `(a?)?`, or `a|a`, which Python parses as `a(|)`."""
        self.repeats = 0
        """Number of repeats with a variable count that lie within no other repeat."""
        self.choices = 0
        """Number of optional parts and alternatives that lie within no repeat."""

    def sequence(self, items: Any, flags: int) -> _Part:
        parts = [self._part(str(op), argument, item, flags) for item in items for op, argument in [item]]
        return self._joined(parts)

    def clear(self, part: _Part, since: int) -> bool:
        """Return whether the next character always determines the next place, among places from `since` on."""
        return all(map(self._apart, [part.first, *self._following[since:]]))

    def _apart(self, places: Sequence[int]) -> bool:
        seen: set[str] = set()
        for place in places:
            if not seen.isdisjoint(self._matched[place]):
                return False
            seen |= self._matched[place]
        return True

    def _part(self, op: str, argument: Any, item: Any, flags: int) -> _Part:
        if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, inner = argument
            return self._repeat(least, most, inner, flags)
        if op == "BRANCH":
            return self._either([self.sequence(branch, flags) for branch in argument[1]])
        if op == "SUBPATTERN":
            _, added, removed, inner = argument
            return self.sequence(inner, (flags | added) & ~removed)
        if op == "ATOMIC_GROUP":
            return self.sequence(argument, flags)
        if op in ("ASSERT", "ASSERT_NOT"):
            self.sequence(argument[1], flags)
            return _Part()
        if op == "AT":
            return _Part()
        if op in ("GROUPREF", "GROUPREF_EXISTS"):
            raise _Slow("it refers back to one of its groups")
        return self._place(item, flags)

    def _place(self, item: Any, flags: int) -> _Part:
        known = (repr(item), flags)
        if known not in self._matching:
            matches = _compiler.compile(_parser.SubPattern(self._state, [item]), flags).match
            self._matching[known] = frozenset(filter(matches, self._letters))
        self._matched.append(self._matching[known])
        self._following.append([])
        place = (len(self._matched) - 1,)
        return _Part(place, place, empty=False)

    def _repeat(self, least: int, most: Any, inner: Any, flags: int) -> _Part:
        repeats, choices = self.repeats, self.choices
        nothings, since = self._nothings, len(self._matched)
        body = self.sequence(inner, flags)
        if most == 1:
            self._nothings += body.empty
            self.choices += 1
            return body._replace(empty=body.empty or least == 0)
        if least == most <= _WRITTEN_OUT and len(self._matched) == since + 1:
            return self._joined([body, *(self.sequence(inner, flags) for _ in range(least - 1))])
        self._follow(body.last, body.first)
        if self._nothings > nothings or not self.clear(body, since) or (body.empty and least > 1):
            raise _Slow("one of its repeats can divide the same text among its turns in several ways")
        self._nothings += body.empty
        self.repeats, self.choices = repeats + (least != most), choices
        return body._replace(empty=body.empty or least == 0)

    def _either(self, branches: Sequence[_Part]) -> _Part:
        empty = sum(branch.empty for branch in branches)
        self._nothings += empty > 1
        self.choices += 1
        return _Part(
            tuple(place for branch in branches for place in branch.first),
            tuple(place for branch in branches for place in branch.last),
            empty > 0,
        )

    def _joined(self, parts: Sequence[_Part]) -> _Part:
        made = _Part()
        for part in parts:
            self._follow(made.last, part.first)
            made = _Part(
                made.first + (part.first if made.empty else ()),
                part.last + (made.last if part.empty else ()),
                made.empty and part.empty,
            )
        return made

    def _follow(self, before: Sequence[int], after: Sequence[int]) -> None:
        for place in before:
            self._following[place] += after
