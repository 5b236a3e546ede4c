"""Rewrites the node ids in Fetch answers in place, and steps over records unread.

Node ids stand in three places (D5). The preferred read replica (version ≥ 11) and the current leader (tag 1 of a
partition, ≥ 12) are of fixed size. The endpoints of those leaders (tag 0 at the end, ≥ 16) are written anew. In every
offered version, an out-of-range reader may be made to ask again (`fetch.out_of_range`). `PassingFetch` changes a large
answer while the answer arrives, after its length was sent. So the end is filled up to the announced length with tagged
fields that no client knows. The walk steps over fields without `protocol.reader`, for `make bench-router`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import SIZE, skip_tags
from kmigrate.protocol.primitives import (
    I16,
    I32,
    read_compact_string,
    read_length,
    read_uvarint,
    write_compact_string,
    write_uvarint,
)
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["PassingFetch", "ShownFetch", "rewrite_fetch"]


_LOG_STARTS, _SESSIONS, _PREFERS_REPLICAS, _FLEXIBLE, _TOPIC_IDS = 5, 7, 11, 12, 13
"""First version of an answer with each of these fields; no version below 4 is offered (`apis`)."""
_CURRENT_LEADER_TAG, _ENDPOINTS_TAG = 1, 0
_FILLERS = (b"\x7e", b"\x7f")
"""Tags that no Fetch answer has a field for; readers skip unknown tags (KIP-482)."""

Buffer = bytes | bytearray | memoryview
ComesAgain = Callable[[bytes, int], bool]
"""Tells whether an out-of-range reader of a partition shall ask again; the topic is the name or id in the answer."""
_Writable = bytearray | memoryview


def _nobody_does(_: bytes, __: int) -> bool:
    return False


class ShownFetch(NamedTuple):
    """A Fetch answer that the client may see."""

    frame: Buffer
    """The frame that arrived, patched in place; a new frame only where endpoints change."""
    has_records: bool
    errors: Sequence[int] = ()
    """Error codes of the answer, those of partitions included."""


def rewrite_fetch(
    frame: bytearray, version: int, book: AddressBook, comes_again: ComesAgain = _nobody_does
) -> ShownFetch:
    """Return a whole answer that the client may see."""
    walk = _Walk(version, book, comes_again)
    at = walk.over(frame, 0)
    walk.check_end(at, len(frame))
    if version < _FLEXIBLE:
        return ShownFetch(frame, walk.has_records, walk.errors)
    known = _endpoints(frame, at, book)
    if known is None:
        return ShownFetch(frame, walk.has_records, walk.errors)
    out = frame[:at] + (b"\1" + _endpoints_field(known) if known else b"\0")
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return ShownFetch(out, walk.has_records, walk.errors)


class PassingFetch:
    """A Fetch answer that passes while it arrives; bytes that leave are records, or have already been changed."""

    def __init__(self, version: int, book: AddressBook, comes_again: ComesAgain = _nobody_does) -> None:
        self._book = book
        self._walk = _Walk(version, book, comes_again)
        self._records = 0
        """Number of bytes of records that are still to arrive."""

    @property
    def errors(self) -> Sequence[int]:
        """Error codes of the answer, those of partitions included, as far as the answer has passed."""
        return self._walk.errors

    def take(self, come: memoryview, left: int) -> int:
        """Return how many bytes may pass, changed in place; the caller brings the rest again, with more bytes behind.

        `left` counts the bytes of the answer that have not passed, the arrived bytes included.
        """
        at = self._walk.over(come, self._records)
        if at > left or len(come) == left:
            self._walk.check_end(at, left)
            if at < left:
                self._end(come, at)
                at = left
        self._records = max(0, at - len(come))
        return min(at, len(come))

    def _end(self, come: memoryview, at: int) -> None:
        known = _endpoints(come, at, self._book)
        if known is not None:
            come[at:] = _filled_up(_endpoints_field(known) if known else b"", len(come) - at)


class _Walk:
    """The way through an answer, field by field; where bytes are missing the walk stops until they are there.

    A step reads at least a byte and changes nothing before all its fields are read, so a step can be repeated.
    """

    def __init__(self, version: int, book: AddressBook, comes_again: ComesAgain) -> None:
        self._flexible = version >= _FLEXIBLE
        self._topic_ids = version >= _TOPIC_IDS
        self._prefers_replicas = version >= _PREFERS_REPLICAS
        self._sessions = version >= _SESSIONS
        self._before_topics = 4 + (2 + 4) * self._sessions
        """Size of throttle time, error and session id."""
        self._before_aborted = 4 + 2 + 8 + 8 + 8 * (version >= _LOG_STARTS)
        """Size of index, error, high watermark, last stable offset and log start."""
        self._book = book
        self._comes_again = comes_again
        self._name = b""
        """Name or id of the topic whose partitions follow."""
        self._topics = self._parts = 0
        """Number of topics, and of partitions of the topic, that have not begun yet."""
        self._step: Callable[[_Writable, int], int] | None = self._head
        self._missed: Exception | None = None
        self.has_records = False
        """True once records of any partition have arrived."""
        self.errors: list[int] = []

    def over(self, frame: _Writable, at: int) -> int:
        """Go on from `at`, and return the offset reached, which lies beyond the arrived bytes where records follow."""
        try:
            while self._step is not None and at < len(frame):
                at = self._step(frame, at)
        except (struct.error, IndexError, ProtocolViolation) as missed:
            self._missed = missed
        return at

    def check_end(self, at: int, size: int) -> None:
        """Raise ProtocolViolation unless the walk through a complete answer has ended at the end of its fields."""
        if self._step is not None or at > size or (at == size) == self._flexible:
            why = self._missed or f"it ends at {at} of {size} bytes"
            raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {why}")

    def _head(self, frame: _Writable, at: int) -> int:
        at += SIZE.size + 4  # and the correlation id
        if self._flexible:
            at = skip_tags(frame, at)
        error, at = at + 4, at + self._before_topics
        self._topics, at = read_length(frame, at, self._flexible)
        if self._sessions and (frame[error + 1] or frame[error]):
            self.errors.append(I16.unpack_from(frame, error)[0])
        self._next()
        return at

    def _next(self) -> None:
        """Choose the step after a partition, after a topic without partitions left, or after the head."""
        if self._parts:
            self._step = self._partition
        else:
            self._step = self._topic if self._topics else None

    def _topic(self, frame: _Writable, at: int) -> int:
        length, at = (16, at) if self._topic_ids else read_length(frame, at, self._flexible, I16)
        name, at = bytes(frame[at : at + length]), at + length
        self._parts, at = read_length(frame, at, self._flexible)
        self._name = name
        self._topics -= 1
        if self._parts or not self._flexible:
            self._next()
        else:
            self._step = self._topic_tags
        return at

    def _topic_tags(self, frame: _Writable, at: int) -> int:
        at = skip_tags(frame, at)
        self._next()
        return at

    def _partition(self, frame: _Writable, at: int) -> int:
        """Read a partition except its records and its tags."""
        start = at
        at = self._over_aborted(frame, at + self._before_aborted)
        replica, at = at, at + 4 * self._prefers_replicas
        records, after = read_length(frame, at, self._flexible)
        if self._prefers_replicas:
            self._show(frame, replica)
        self.has_records |= bool(records)
        if frame[start + 5] or frame[start + 4]:
            self._error(frame, start)
        self._parts -= 1
        if self._flexible:
            self._step = self._partition_tags
        else:
            self._next()
        return after + records

    def _over_aborted(self, frame: _Writable, at: int) -> int:
        """Step over the list of aborted transactions."""
        aborted, at = read_length(frame, at, self._flexible)
        if not self._flexible:
            return at + 16 * aborted
        for _ in range(aborted):
            at = skip_tags(frame, at + 16)
        return at

    def _partition_tags(self, frame: _Writable, at: int) -> int:
        leader = -1
        count, at = read_uvarint(frame, at)
        for _ in range(count):
            tag, at = read_uvarint(frame, at)
            size, at = read_uvarint(frame, at)
            if tag == _CURRENT_LEADER_TAG:
                leader = at
            at += size
        if at > len(frame):
            raise IndexError("a tagged field runs past its frame")
        if leader >= 0:
            self._show(frame, leader)
        if self._parts:
            self._step = self._partition
        else:
            self._step = self._topic_tags
        return at

    def _error(self, frame: _Writable, at: int) -> None:
        """Note a partition's error; an out-of-range reader may be told to ask again."""
        (partition,), (code,) = I32.unpack_from(frame, at), I16.unpack_from(frame, at + 4)
        if code == Code.OFFSET_OUT_OF_RANGE and self._comes_again(self._name, partition):
            code = int(Code.NOT_LEADER_OR_FOLLOWER)
            I16.pack_into(frame, at + 4, code)
        self.errors.append(code)

    def _show(self, frame: _Writable, at: int) -> None:
        (node,) = I32.unpack_from(frame, at)
        if node >= 0:
            I32.pack_into(frame, at, self._book.shown(node))


def _endpoints(frame: Buffer, at: int, book: AddressBook) -> bytes | None:
    """Return endpoints for the last tags, b"" for none, None for no change; other tags go, as they may name brokers."""
    try:
        count, inside = read_uvarint(frame, at)
        known = b"" if count else None
        for _ in range(count):
            tag, inside = read_uvarint(frame, inside)
            size, inside = read_uvarint(frame, inside)
            if tag == _ENDPOINTS_TAG:
                known = _rewrite_endpoints(frame, inside, book)
            inside += size
    except (struct.error, IndexError, ProtocolViolation) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None
    if inside != len(frame):
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer ends at {inside} of {len(frame)} bytes")
    return known


def _rewrite_endpoints(frame: Buffer, at: int, book: AddressBook) -> bytes:
    count, at = read_uvarint(frame, at)
    shown: list[bytes] = []
    for _ in range(count - 1):
        (node,) = I32.unpack_from(frame, at)
        _, at = read_compact_string(frame, at + 4)
        rack, at = read_compact_string(frame, at + 4)
        at = skip_tags(frame, at)
        known = book.address(node)
        if known is not None:
            host, port = known
            named = I32.pack(book.shown(node)) + write_compact_string(host) + I32.pack(port)
            shown.append(named + write_compact_string(rack) + b"\0")
    return write_uvarint(len(shown) + 1) + b"".join(shown) if shown else b""


def _endpoints_field(known: bytes) -> bytes:
    return bytes((_ENDPOINTS_TAG,)) + write_uvarint(len(known)) + known


def _filled_up(field: bytes, size: int) -> bytes:
    """Return tags of exactly `size` bytes: this field if there is room, then unknown fields of two bytes at least.

    A single spare byte leaves the endpoints out, too: the client then asks for metadata to learn where a leader is.
    """
    spare = size - 1 - len(field)
    if spare < 0 or spare == 1:
        return _filled_up(b"", size)
    fillers = _fillers(spare)
    return bytes((bool(field) + len(fillers),)) + field + b"".join(fillers)


def _fillers(size: int) -> list[bytes]:
    """Return unknown fields of `size` bytes (not 1); two fields where a single field's length does not fit."""
    if not size:
        return []
    for digits in range(1, 6):
        length = write_uvarint(max(0, size - 1 - digits))
        if len(length) == digits:
            return [_FILLERS[1] + length + bytes(size - 1 - digits)]
    return [_FILLERS[0] + b"\0", *_fillers(size - 2)]
