"""Parses whole numbers as people type them and files hold them: ports, partitions, offsets, times. Pure."""

from __future__ import annotations

__all__ = ["whole_number"]

_MOST = 2**63 - 1
"""Greatest value of an integer field in Kafka's protocol."""


def whole_number(text: str) -> int | None:
    """Return the number that ASCII digits stand for, or None.

    None means that the text is anything else, or exceeds the integers of Kafka's protocol. `int` also accepts signs,
    spaces, underscores and digits of other scripts, and fails beyond some thousand digits. `str.isdigit` accepts digits
    that `int` refuses (²).
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST)):
        return None
    number = int(text)
    return number if number <= _MOST else None
