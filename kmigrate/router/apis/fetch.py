"""Fetch answers: the few node ids in them are changed in place, records are stepped over unread.

Node ids stand in three places (D5): the preferred read replica (version ≥ 11) and the current leader (tag 1 of a
partition, ≥ 12), both of fixed size, and the endpoints of those leaders (tag 0 at the end, ≥ 16), which are
written anew. Below version 11 an answer passes untouched.
"""

from __future__ import annotations

import struct

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import SIZE, skip_tags
from kmigrate.protocol.primitives import read_compact_string, read_uvarint, write_compact_string, write_uvarint
from kmigrate.router.nodeids import AddressBook

__all__ = ["FETCH", "FIRST_WITH_NODE_IDS", "rewrite_fetch"]

FETCH = 1
FIRST_WITH_NODE_IDS = 11
_FLEXIBLE, _TOPIC_IDS = 12, 13
_CURRENT_LEADER_TAG, _ENDPOINTS_TAG = 1, 0

Buffer = bytes | bytearray | memoryview
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_BEFORE_ABORTED = 4 + 2 + 8 + 8 + 8
"""Index, error, high watermark, last stable offset, log start."""


def rewrite_fetch(frame: bytearray, version: int, book: AddressBook) -> Buffer:
    """The answer as the client may see it: the same frame, patched; a new one only where endpoints change."""
    if version < FIRST_WITH_NODE_IDS:
        return frame
    try:
        at = _partitions(frame, version, book)
        return frame if version < _FLEXIBLE else _endpoints(frame, at, book)
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None


def _partitions(frame: bytearray, version: int, book: AddressBook) -> int:
    flexible = version >= _FLEXIBLE
    at = skip_tags(frame, 8) if flexible else 8
    at += 4 + 2 + 4  # throttle, error, session
    topics, at = _count(frame, at, flexible)
    for _ in range(topics):
        if version >= _TOPIC_IDS:
            at += 16
        else:
            length, at = _length(frame, at, flexible)
            at += length
        parts, at = _count(frame, at, flexible)
        for _ in range(parts):
            at = _partition(frame, at, flexible, book)
        if flexible:
            at = skip_tags(frame, at)
    return at


def _partition(frame: bytearray, at: int, flexible: bool, book: AddressBook) -> int:
    aborted, at = _count(frame, at + _BEFORE_ABORTED, flexible)
    for _ in range(aborted):
        at += 16
        if flexible:
            at = skip_tags(frame, at)
    _shift(frame, at, book)
    records, at = _count(frame, at + 4, flexible)
    at += records
    return _patch_tags(frame, at, book) if flexible else at


def _patch_tags(frame: bytearray, at: int, book: AddressBook) -> int:
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        if tag == _CURRENT_LEADER_TAG:
            _shift(frame, at, book)
        at += size
    return at


def _shift(frame: bytearray, at: int, book: AddressBook) -> None:
    (node,) = _I32.unpack_from(frame, at)
    if node >= 0:
        _I32.pack_into(frame, at, book.shown(node))


def _count(frame: bytearray, at: int, flexible: bool) -> tuple[int, int]:
    """A length of an array or of bytes, and the offset after it; null is 0."""
    if flexible:
        value, at = read_uvarint(frame, at)
        return max(0, value - 1), at
    (value,) = _I32.unpack_from(frame, at)
    return max(0, value), at + 4


def _length(frame: bytearray, at: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        value, at = read_uvarint(frame, at)
        return max(0, value - 1), at
    (value,) = _I16.unpack_from(frame, at)
    return max(0, value), at + 2


def _endpoints(frame: bytearray, at: int, book: AddressBook) -> Buffer:
    """Replace the endpoints tag at the end of a frame; other tags are dropped with it (unknown fields leak)."""
    count, inside = read_uvarint(frame, at)
    if count == 0:
        return frame
    body = b""
    for _ in range(count):
        tag, inside = read_uvarint(frame, inside)
        size, inside = read_uvarint(frame, inside)
        if tag == _ENDPOINTS_TAG:
            body = _rewrite_endpoints(frame, inside, book)
        inside += size
    tags = b"\1\0" + write_uvarint(len(body)) + body if body else b"\0"
    out = frame[:at] + tags
    SIZE.pack_into(out, 0, len(out) - 4)
    return out


def _rewrite_endpoints(frame: bytearray, at: int, book: AddressBook) -> bytes:
    count, at = read_uvarint(frame, at)
    shown: list[bytes] = []
    for _ in range(count - 1):
        (node,) = _I32.unpack_from(frame, at)
        _, at = read_compact_string(frame, at + 4)
        rack, at = read_compact_string(frame, at + 4)
        at = skip_tags(frame, at)
        known = book.address(node)
        if known is not None:
            host, port = known
            named = _I32.pack(book.shown(node)) + write_compact_string(host) + _I32.pack(port)
            shown.append(named + write_compact_string(rack) + b"\0")
    return write_uvarint(len(shown) + 1) + b"".join(shown) if shown else b""
