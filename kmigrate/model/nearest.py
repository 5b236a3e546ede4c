"""The hint that corrects a misspelt word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'x'?` for a word that is close to a known word, '' for any other word."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f": did you mean {found[0]!r}?" if found else ""
