"""Whole numbers as people type them and files hold them: ports, partitions, offsets, moments. Pure."""

from __future__ import annotations

__all__ = ["whole_number"]

_MOST = 2**63 - 1
"""The most that a field of Kafka's protocol holds."""


def whole_number(text: str) -> int | None:
    """The number that ASCII digits are; None where the text is anything else, or beyond what Kafka can be told.

    `int` also takes signs, spaces, underscores and digits of other scripts, and gives up beyond some thousand digits;
    `str.isdigit` takes what `int` does not (²).
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST)):
        return None
    number = int(text)
    return number if number <= _MOST else None
