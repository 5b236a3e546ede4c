"""The hint that turns a misspelt word into the right one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` where a known word is close, '' where none is."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""
