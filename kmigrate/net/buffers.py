"""Memory of large frames, filled again once nobody holds it any more.

A frame of megabytes is memory that the system maps page by page at its first touch, clears, and takes back a moment
later; measured, that cost as much as receiving it (0.17 of 0.35 s per GB). Whoever gets a frame keeps what it likes of
it, views included, and gives nothing back: a buffer is free when this pool holds the only reference to it.
"""

from __future__ import annotations

import ctypes
from sys import getrefcount

__all__ = ["FrameBuffers", "give_back"]

_KEEP_BYTES = 96 << 20
_LEAST_BYTES = 1 << 20
"""Smaller ones come from memory that the process keeps anyway, and would be many to look through."""
_ZEROS = bytes(1 << 20)


class FrameBuffers:
    """Hands out bytearrays of any size; remembers up to `keep_bytes` in those of at least `least_bytes`."""

    def __init__(self, keep_bytes: int = _KEEP_BYTES, least_bytes: int = _LEAST_BYTES) -> None:
        self._keep_bytes = keep_bytes
        self._least_bytes = least_bytes
        self._kept: list[tuple[bytearray, int]] = [(bytearray(1), 1)]
        """Frames with the size each was made with: it may shrink and grow within it."""
        for frame, _ in self._kept:
            self._alone = getrefcount(frame)  # as the same loop below counts it
        self._kept.clear()

    def take(self, size: int) -> bytearray:
        """A frame of exactly `size` bytes, whose content is undefined."""
        if size < self._least_bytes:
            return bytearray(size)
        for frame, capacity in self._kept:
            if getrefcount(frame) == self._alone and size <= capacity < 2 * size:
                _resize(frame, size)
                return frame
        frame = bytearray(size)
        if self._make_room(size):
            self._kept.append((frame, size))
        return frame

    def _make_room(self, size: int) -> bool:
        """Forget free frames, those that were made first at first, until one more of this size may be kept."""
        surplus = sum(capacity for _, capacity in self._kept) + size - self._keep_bytes
        staying: list[tuple[bytearray, int]] = []
        for frame, capacity in self._kept:
            if surplus > 0 and getrefcount(frame) == self._alone:
                surplus -= capacity
            else:
                staying.append((frame, capacity))
        self._kept = staying
        return surplus <= 0


def give_back() -> None:
    """Have the C library give the system what was freed, where it can be told to.

    Once frames of up to 32 MB have been freed, glibc takes the next ones from its heap, and the heap stays as large as
    it was while anything lies above them: hundreds of megabytes, at times, that nobody holds.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resize(frame: bytearray, size: int) -> None:
    """Within its capacity, and by less than half of it, a bytearray changes its size where it is."""
    if size < len(frame):
        del frame[size:]
    while size > len(frame):
        frame += _ZEROS[: size - len(frame)]
