"""How much goes over a line at once, so that it has arrived before it counts as lost. Pure.

Who asks for 32 MiB and gives up after 30 seconds reads nothing at all over a line of 1 MB a second, for ever: a part of
an answer, or of a request, is worth nothing. So there is less of it where it was late or nearly so, down to what any
line carries, and more again where it came at once.
"""

from __future__ import annotations

__all__ = ["Portion"]

_LEAST = 64 << 10
_SLOW, _QUICK = 1 / 3, 1 / 8
"""Parts of the time after which it is given up."""


class Portion:
    """Bytes at once over one connection; `most` where the line is no matter, given up after so many seconds."""

    def __init__(self, most: int, patience_s: float) -> None:
        self._most = most
        self._patience_s = patience_s
        self.size = most

    def answered(self, size: int, seconds: float) -> None:
        """So much was sent, or came, and took so long; only what fills its portion says that more would pass."""
        if seconds > self._patience_s * _SLOW:
            self._shrink(2)
        elif seconds < self._patience_s * _QUICK and size >= self.size // 2:
            self.size = min(self._most, 2 * self.size)

    def late(self) -> None:
        """Nothing had come of it by the time it was given up."""
        self._shrink(4)

    def _shrink(self, times: int) -> None:
        self.size = min(self._most, max(_LEAST, self.size // times))
