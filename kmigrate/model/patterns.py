"""Topics and groups chosen by regular expression, and what no expression ever chooses (MM-68, MM-69, MM-85); pure.

An expression must match a whole name. It is kept with its link, and names that appear later are chosen by it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kmigrate.errors import UsageError
from kmigrate.model.ids import is_internal

__all__ = ["NamePattern", "check_expression", "chosen_groups", "chosen_topics", "excluded"]

_TOOL_GROUPS = ("console-consumer-.*", "kmigrate-.*", "__.*")
"""Groups of a person's tools and of kmigrate; they are mirrored when they are named."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """One expression of a link, with the expressions of what it leaves out."""

    include: str
    exclude: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.include + (f" except {', '.join(self.exclude)}" if self.exclude else "")

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.include, name) is not None and not excluded(self.exclude, name)


def excluded(expressions: Iterable[str], name: str) -> bool:
    """Whether one of the expressions matches the whole name."""
    return any(re.fullmatch(expression, name) for expression in expressions)


def check_expression(text: str, where: str) -> str:
    """A regular expression as it is, or a usage error that shows where it breaks off."""
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(
            "bad-regex",
            f"{where}: {text!r} is no regular expression: {error}",
            still_true="nothing was changed",
            next_step="expected: Python's syntax, in quotes, for example 'orders-.*'",
        ) from error
    return text


def chosen_topics(patterns: Sequence[NamePattern], topics: Iterable[str]) -> list[str]:
    """Topics that an expression of the link chooses; internal ones never (MM-66)."""
    return sorted(t for t in topics if not is_internal(t) and any(p.matches(t) for p in patterns))


def chosen_groups(patterns: Sequence[NamePattern], groups: Iterable[str]) -> list[str]:
    """Groups that an expression of the link chooses; those of tools never."""
    return sorted(g for g in groups if not excluded(_TOOL_GROUPS, g) and any(p.matches(g) for p in patterns))
