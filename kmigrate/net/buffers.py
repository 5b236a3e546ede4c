"""Reused memory for large frames.

Mapping, clearing and taking back a large frame's pages costs as much as receiving the frame (0.17 of 0.35 s per GB). A
receiver may keep any part of a frame, views included, and returns nothing. A buffer is free when this pool holds the
only reference.
"""

from __future__ import annotations

import ctypes
from sys import getrefcount

__all__ = ["FrameBuffers", "give_back"]

_KEEP_BYTES = 96 << 20
_LEAST_BYTES = 1 << 20
"""Smallest pooled size: smaller frames use memory that the process keeps anyway, and would be many to search."""
_ZEROS = bytes(1 << 20)


class FrameBuffers:
    """Hands out bytearrays of any size; keeps up to `keep_bytes` in bytearrays of at least `least_bytes`."""

    def __init__(self, keep_bytes: int = _KEEP_BYTES, least_bytes: int = _LEAST_BYTES) -> None:
        self._keep_bytes = keep_bytes
        self._least_bytes = least_bytes
        self._kept: list[tuple[bytearray, int]] = [(bytearray(1), 1)]
        """Frames with their original size; a frame may shrink, and grow again up to that size."""
        for frame, _ in self._kept:
            self._alone = getrefcount(frame)  # counted as the same loop below counts
        self._kept.clear()

    def take(self, size: int) -> bytearray:
        """Return a frame of exactly `size` bytes with undefined content."""
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
        """Forget free frames, oldest first, to keep another frame of this size; return whether there is room."""
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
    """Have the C library return freed memory to the system, if the library can do so.

    Once frames up to 32 MB were freed, glibc's heap serves the next, and keeps hundreds of MB below its topmost block.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resize(frame: bytearray, size: int) -> None:
    """Resize a bytearray in place: the size stays within the capacity and changes by less than half of the capacity."""
    if size < len(frame):
        del frame[size:]
    while size > len(frame):
        frame += _ZEROS[: size - len(frame)]
