"""Names as a shell takes them, so that a call which we advise can be made word for word.

A group's name may hold anything: spaces, quotes, a dollar sign; and names may begin with a dash.
"""

from __future__ import annotations

import shlex

__all__ = ["as_words"]


def as_words(*names: str) -> str:
    """The names as the last words of a call."""
    words = " ".join(map(shlex.quote, names))
    return f"-- {words}" if any(name.startswith("-") for name in names) else words
