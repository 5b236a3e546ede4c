"""Topics and groups chosen by regular expression, and what no expression ever chooses (MM-68, MM-69, MM-85); pure.

An expression must match a whole name. It is kept with its link, and names that appear later are chosen by it, too:
in the loop that serves clients, so an expression that may take very long is refused, and one that is kept already
chooses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kmigrate.errors import UsageError
from kmigrate.model.backtracking import slow_part
from kmigrate.model.ids import is_internal

__all__ = ["NamePattern", "check_expression", "chosen_groups", "chosen_topics", "excluded", "offsets_asked"]

_TOOL_GROUPS = ("console-consumer-.*", "kmigrate-.*", "__.*")
"""Groups of a person's tools and of kmigrate; they are mirrored when they are named."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """One expression of a link, with the expressions of what it leaves out."""

    include: str
    exclude: tuple[str, ...] = ()
    offsets: str = "auto"
    """Which offsets topics get that it chooses: auto, identical or mapped."""

    def __str__(self) -> str:
        left_out = f" except {', '.join(self.exclude)}" if self.exclude else ""
        return self.include + left_out + (f" with {self.offsets} offsets" if self.offsets != "auto" else "")

    @property
    def slow(self) -> str:
        """Why it chooses nothing: it was kept when slow expressions were not refused yet. Usually empty."""
        return next((why for text in (self.include, *self.exclude) if (why := slow_part(text))), "")

    def matches(self, name: str) -> bool:
        if self.slow:
            return False
        return re.fullmatch(self.include, name) is not None and not excluded(self.exclude, name)

    def without(self, name: str) -> NamePattern:
        """The expression as it is, but for one name that it chooses."""
        return replace(self, exclude=(*self.exclude, re.escape(name))) if self.matches(name) else self


def excluded(expressions: Iterable[str], name: str) -> bool:
    """Whether one of the expressions matches the whole name."""
    return any(re.fullmatch(expression, name) for expression in expressions)


def check_expression(text: str, where: str) -> str:
    """A regular expression as it is, or a usage error that says where it breaks off or why it could take very long."""
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            "bad-regex",
            f"{where}: {text!r} is no regular expression: {error}",
            still_true="nothing was changed",
            next_step="expected: Python's syntax, in quotes, for example 'orders-.*'",
        ) from error
    if why := slow_part(text):
        raise UsageError(
            "slow-regex",
            f"{where}: {text!r} may take for ever with a long name: {why}",
            still_true="nothing was changed",
            next_step="let each turn of a repeat end in one way: '([a-z]+-)*[a-z]+' or '[a-z-]+', not '([a-z]+-?)+'",
        )
    return text


def chosen_topics(patterns: Sequence[NamePattern], topics: Iterable[str]) -> list[str]:
    """Topics that an expression of the link chooses; internal ones never (MM-66)."""
    return sorted(t for t in topics if not is_internal(t) and any(p.matches(t) for p in patterns))


def offsets_asked(patterns: Sequence[NamePattern], topic: str) -> str:
    """The offsets mode that a chosen topic's newest expression was given with."""
    return next(pattern.offsets for pattern in reversed(patterns) if pattern.matches(topic))


def chosen_groups(patterns: Sequence[NamePattern], groups: Iterable[str]) -> list[str]:
    """Groups that an expression of the link chooses; those of tools never."""
    return sorted(g for g in groups if not excluded(_TOOL_GROUPS, g) and any(p.matches(g) for p in patterns))
