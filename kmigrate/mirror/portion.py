"""How much goes over a line at once, so that it has arrived before it counts as lost. Pure.

Who asks for 32 MiB and gives up after 30 seconds reads nothing at all over a line of 1 MB a second, for ever: a part of
an answer, or of a request, is worth nothing. So there is less of it where it was late or nearly so, down to what any
line carries, and more again where it came at once.

Where one goes at a time, only if less of it comes earlier: a broker that takes ten seconds for each answer, to find
what was asked for among thousands of partitions, would be asked for next to nothing every ten seconds. Where requests
wait behind each other, how long one takes says nothing of its own size.
"""

from __future__ import annotations

__all__ = ["Portion"]

_LEAST = 64 << 10
_SLOW, _QUICK, _EASY = 1 / 3, 1 / 8, 1 / 4
"""Parts of the time after which it is given up. Twice of what is easy still comes in time."""
_OTHER, _AS_LATE = 3 / 2, 4 / 3
"""How many times as much is another size, and how many times as long is as long."""
_TRY = 8
"""After so many answers that changed nothing, twice as much is tried."""


class Portion:
    """Bytes at once over one connection; `most` where the line is no matter, given up after so many seconds."""

    def __init__(self, most: int, patience_s: float, *, in_turn: bool = False) -> None:
        self._most = most
        self._patience_s = patience_s
        self._in_turn = in_turn
        """One goes at a time."""
        self.size = most
        self._before: tuple[int, float] | None = None
        """What came last before the portion became another, and how long that took."""
        self._same = 0
        """Answers since that have changed nothing."""

    def answered(self, size: int, seconds: float) -> None:
        """So much was sent, or came, and took so long; only what fills its portion says anything of it."""
        part = seconds / self._patience_s
        if size < self.size // 2:
            return
        if part < _QUICK or (self._in_turn and self._is_no_matter(size, seconds)):
            self._become(2 * self.size, (size, seconds))
        elif size > _OTHER * self.size:
            return  # it was sent when the portion was larger, or is a single batch
        elif part > _SLOW and self.size > _LEAST:
            self._become(self.size // 2, (size, seconds))
        elif part < _EASY or self.size <= _LEAST:
            self._same += 1
            if self._same >= _TRY:
                self._become(2 * self.size, (size, seconds))

    def late(self) -> None:
        """Nothing had come of it by the time it was given up."""
        self._become(self.size // 4, None)

    def _is_no_matter(self, size: int, seconds: float) -> bool:
        """Whether much took no longer than little."""
        if self._before is None:
            return False
        (little, short), (much, long) = sorted((self._before, (size, seconds)))
        return much >= _OTHER * little and long < _AS_LATE * short

    def _become(self, size: int, before: tuple[int, float] | None) -> None:
        size = min(self._most, max(_LEAST, size))
        if size != self.size or before is None:
            self.size, self._before, self._same = size, before, 0
