"""Formats moments and spans of time for people."""

from __future__ import annotations

import datetime as dt

__all__ = ["span_text", "utc_text"]

_UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"))


def utc_text(ms: int) -> str:
    """Return a moment, in milliseconds since the epoch, to the second; a moment beyond the year 9999 as its number."""
    try:
        return dt.datetime.fromtimestamp(ms // 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def span_text(ms: int) -> str:
    """Return a span of time in the largest unit of which the span has two or more."""
    for unit, name in _UNITS:
        if ms >= 2 * unit:
            return f"{ms / unit:.3g} {name}"
    return f"{ms / 1000:.3g} seconds"
