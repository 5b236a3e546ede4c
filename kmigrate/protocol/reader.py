"""Reads messages field by field where kio is too slow or too strict: Metadata, Produce, Fetch, DescribeTransactions."""

from __future__ import annotations

import struct

from kmigrate.protocol.frames import skip_tags
from kmigrate.protocol.primitives import I16, read_compact_string, read_length, read_string

__all__ = ["Reader"]

_ID_BYTES = 16


class Reader:
    """A cursor over a frame; a flexible version has compact lengths and tagged fields (KIP-482).

    A frame that ends early raises struct.error, IndexError or ProtocolViolation.
    """

    __slots__ = ("at", "flexible", "frame")

    def __init__(self, frame: bytes | bytearray, at: int, flexible: bool) -> None:
        self.frame = frame
        self.at = at
        self.flexible = flexible

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = shape.unpack_from(self.frame, self.at)
        self.at += shape.size
        return values

    def string(self) -> str | None:
        read = read_compact_string if self.flexible else read_string
        value, self.at = read(self.frame, self.at)
        return value

    def length(self) -> int:
        """Return the length of an array or of bytes; a null is empty."""
        value, self.at = read_length(self.frame, self.at, self.flexible)
        return value

    def topic(self, *, by_id: bool) -> bytes:
        """Return a topic's name or id as bytes."""
        size = _ID_BYTES
        if not by_id:
            size, self.at = read_length(self.frame, self.at, self.flexible, I16)
        begin, self.at = self.at, self.at + size
        if self.at > len(self.frame):
            raise IndexError("a topic runs past its frame")
        return bytes(self.frame[begin : self.at])

    def tags(self) -> bool:
        """Skip a tag section; return whether the section held any tag."""
        if not self.flexible:
            return False
        before = self.at
        self.at = skip_tags(self.frame, before)
        return self.at > before + 1
