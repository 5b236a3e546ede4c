"""Formats sizes, rates and spans of time in the few characters of a cell."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text", "left_text", "percent_text", "time_text"]


def bytes_text(count: float) -> str:
    """Return a size or a rate in powers of 1,000, with three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def time_text(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:.0f} h" if hours < 48 else f"{days:.0f} days"


def count_text(count: float) -> str:
    """Return a count in at most five characters, as in `950`, `12.3k` or `4.56M`; `?` for an unknown count."""
    if count < 0:
        return "?"
    if count < 9.5 and count != int(count):
        return f"{count:.1f}"
    for unit in ("", "k", "M", "G"):
        if count < 999.5:
            return f"{count:.0f}" if not unit else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def percent_text(part: float) -> str:
    """Return a part of 1 in percent; 100% stands for everything alone, and `?` for an unknown part."""
    if part < 0:
        return "?"
    return "100%" if part >= 1 else f"{int(part * 1000) / 10:.1f}%"


def left_text(seconds: float) -> str:
    """Return an estimate of the time left, rounded as an estimate deserves; `?` for an unknown time."""
    if seconds < 0:
        return "?"
    if seconds < 1:
        return "< 1 s"
    return f"{seconds:.0f} s" if seconds < 90 else time_text(seconds)
