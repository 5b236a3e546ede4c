"""The hint that corrects a misspelt word, or a name that was meant as an expression."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from kmigrate.model.backtracking import slow_part

__all__ = ["looks_like_expression", "name_hint", "nearest"]

_EXPRESSION = re.compile(r"[*+?()\[\]{}|^$\\]")
"""Characters that only an expression has; the dot stands in many names of topics."""
_MOST_NAMED = 3


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'x'?` for a word that is close to a known word, '' for any other word."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""


def looks_like_expression(name: str) -> bool:
    return _EXPRESSION.search(name) is not None


def name_hint(name: str, known: Iterable[str]) -> str:
    """Return what an unknown name matches as an expression, else the nearest known name, else ''."""
    names = sorted(known)
    matched = _matched(name, names) if looks_like_expression(name) else []
    if not matched:
        return nearest(name, names)
    more = f" and {len(matched) - _MOST_NAMED} more" if len(matched) > _MOST_NAMED else ""
    return f": as an expression the name matches {', '.join(matched[:_MOST_NAMED])}{more}"


def _matched(text: str, names: Iterable[str]) -> list[str]:
    try:
        expression = re.compile(text)
    except re.error:
        return []
    return [] if slow_part(text) else [name for name in names if expression.fullmatch(name)]
