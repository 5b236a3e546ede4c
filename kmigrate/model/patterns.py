"""Chooses topics and groups by regular expression, except names that no expression ever chooses; pure.

An expression, kept with its link, must match a whole name, and also chooses names that appear later. The event loop
that serves clients matches, so a slow expression is refused, or, if already kept, chooses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kmigrate.errors import UsageError
from kmigrate.model.backtracking import slow_part
from kmigrate.model.ids import is_internal
from kmigrate.model.rehearsals import is_shadow

__all__ = [
    "NamePattern",
    "auto_asked",
    "check_expression",
    "chosen_groups",
    "chosen_topics",
    "excluded",
    "offsets_asked",
]

_TOOL_GROUPS = ("console-consumer-.*", "kmigrate-.*", "__.*")
"""Groups of a person's tools and of kmigrate; such a group is mirrored only if it is named."""


@dataclass(frozen=True, slots=True)
class NamePattern:
    """An expression of a link, with the expressions for names that are left out."""

    include: str
    exclude: tuple[str, ...] = ()
    offsets: str = "auto"
    """Offsets mode of the topics that the expression chooses: auto, identical or mapped."""
    auto: bool = False
    """True if the controller promotes the groups that the expression chooses by itself (`group mirror --auto`)."""

    def __str__(self) -> str:
        left_out = f" except {', '.join(self.exclude)}" if self.exclude else ""
        offsets = f" with {self.offsets} offsets" if self.offsets != "auto" else ""
        return self.include + left_out + offsets + (", promoted automatically" if self.auto else "")

    @property
    def slow(self) -> str:
        """Reason why the expression, older than the refusal of slow expressions, chooses nothing; usually ''."""
        return next((why for text in (self.include, *self.exclude) if (why := slow_part(text))), "")

    def matches(self, name: str) -> bool:
        if self.slow:
            return False
        return re.fullmatch(self.include, name) is not None and not excluded(self.exclude, name)

    def without(self, name: str) -> NamePattern:
        """Return the pattern with a name excluded; unchanged if the pattern does not choose the name."""
        return replace(self, exclude=(*self.exclude, re.escape(name))) if self.matches(name) else self


def excluded(expressions: Iterable[str], name: str) -> bool:
    """Return whether any of the expressions matches the whole name."""
    return any(re.fullmatch(expression, name) for expression in expressions)


def check_expression(text: str, where: str) -> str:
    """Return a valid and fast expression unchanged; else raise UsageError: where it breaks off, or why it is slow."""
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
    """Return the topics that an expression of the link chooses; internal topics and shadows are never chosen."""
    return sorted(t for t in topics if not is_internal(t) and not is_shadow(t) and any(p.matches(t) for p in patterns))


def offsets_asked(patterns: Sequence[NamePattern], topic: str) -> str:
    """Return the offsets mode of the newest expression that chooses the topic."""
    return next(pattern.offsets for pattern in reversed(patterns) if pattern.matches(topic))


def auto_asked(patterns: Sequence[NamePattern], group: str) -> bool:
    """Return whether the newest expression that chooses the group asks for automatic promotes."""
    return next(pattern.auto for pattern in reversed(patterns) if pattern.matches(group))


def chosen_groups(patterns: Sequence[NamePattern], groups: Iterable[str]) -> list[str]:
    """Return the groups that an expression of the link chooses; groups of tools are never chosen."""
    return sorted(g for g in groups if not excluded(_TOOL_GROUPS, g) and any(p.matches(g) for p in patterns))
