"""Adaptive size of requests and responses, so that each arrives before its time-out. Pure.

A client that gives up on 32 MiB after 30 seconds reads nothing over a line of 1 MB a second. A partial transfer is
worth nothing. So the size shrinks after a late or nearly late transfer, down to a size for any line, and grows after a
quick transfer.

If requests go singly, the size shrinks only if smaller transfers are quicker: a broker that searches thousands of
partitions may take ten seconds for any response. If requests wait behind each other, their times say nothing of size.
"""

from __future__ import annotations

__all__ = ["AdaptiveRequestSize"]

_LEAST = 64 << 10
_SLOW, _QUICK, _EASY = 1 / 3, 1 / 8, 1 / 4
"""Parts of the time-out. A transfer twice as large as an easy transfer still arrives in time."""
_OTHER, _AS_LATE = 3 / 2, 4 / 3
"""The factor from which a size counts as different, and the factor up to which a time counts as the same."""
_TRY = 8
"""Number of answers without a change after which the double size is tried."""


class AdaptiveRequestSize:
    """The number of bytes per transfer over a connection: at most `most`, given up after `patience_s` seconds."""

    def __init__(self, most: int, patience_s: float, *, in_turn: bool = False) -> None:
        self._most = most
        self._patience_s = patience_s
        self._in_turn = in_turn
        """True if requests go singly."""
        self.size = most
        self._before: tuple[int, float] | None = None
        """Size and seconds of the last transfer before the size changed."""
        self._same = 0
        """Number of answers since then that have changed nothing."""

    def answered(self, size: int, seconds: float) -> None:
        """Note the size and the seconds of a transfer; only a transfer that fills its size counts."""
        part = seconds / self._patience_s
        if size < self.size // 2:
            return
        if part < _QUICK or (self._in_turn and self._is_no_matter(size, seconds)):
            self._become(2 * self.size, (size, seconds))
        elif size > _OTHER * self.size:
            return  # sent when the size was larger, or a single batch
        elif part > _SLOW and self.size > _LEAST:
            self._become(self.size // 2, (size, seconds))
        elif part < _EASY or self.size <= _LEAST:
            self._same += 1
            if self._same >= _TRY:
                self._become(2 * self.size, (size, seconds))

    def late(self) -> None:
        """Note that a transfer was given up without an answer."""
        self._become(self.size // 4, None)

    def _is_no_matter(self, size: int, seconds: float) -> bool:
        """Return whether a large transfer took no longer than a small transfer."""
        if self._before is None:
            return False
        (little, short), (much, long) = sorted((self._before, (size, seconds)))
        return much >= _OTHER * little and long < _AS_LATE * short

    def _become(self, size: int, before: tuple[int, float] | None) -> None:
        size = min(self._most, max(_LEAST, size))
        if size != self.size or before is None:
            self.size, self._before, self._same = size, before, 0
