"""Parses whole numbers as people type them and files hold them: ports, partitions, offsets, times. Pure."""

from __future__ import annotations

__all__ = ["whole_number"]

_MOST = 2**63 - 1
"""Greatest value of an integer field in Kafka's protocol."""


def whole_number(text: str) -> int | None:
    """Return the number that ASCII digits stand for; None for other texts, and beyond the integers of Kafka's protocol.

    `int` also takes signs, spaces, underscores and other scripts, and fails beyond some thousand digits. `str.isdigit`
    takes digits that `int` refuses (²).
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST)):
        return None
    number = int(text)
    return number if number <= _MOST else None
