"""Reads and writes Fetch requests and answers as far as a fetch session (KIP-227) depends on them; versions from 12 on.

    [replica id i32, below version 15] max wait i32, min bytes i32, max bytes i32, isolation i8, session i32, epoch i32,
    topics: name (12) or id, partitions: index, leader epoch, offset, last fetched epoch, log start, max bytes; tags
    forgotten topics: name or id, partitions; tags
    rack; tags

No consumer sends tags in these requests, so requests with tags, or cut short, are not read here.

A reader's next request names the offset behind the last whole batch of each partition. So batches of an answer are
stepped over by the lengths in their headers, and their records stay unread. `make bench-router` is the reason for
reading without `protocol.reader`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import SIZE, response_body_offset, skip_tags
from kmigrate.protocol.primitives import I32, read_uvarint, write_uvarint
from kmigrate.records.batch import extent

__all__ = [
    "FIRST_READ",
    "FIRST_WITH_TOPIC_IDS",
    "AnswerHead",
    "End",
    "FetchRequest",
    "Partition",
    "Position",
    "cap_bytes",
    "encode",
    "put_session",
    "read_ends",
    "read_head",
    "read_request",
    "show_session",
]

FIRST_READ, FIRST_WITH_TOPIC_IDS, _FIRST_WITHOUT_REPLICA = 12, 13, 15
_LONGEST = 64 << 10
"""Maximum bytes of a request that is read: more than a thousand partitions."""
_NO_SESSION = (0, -1)
_FIXED = struct.Struct(">iiibii")
_POSITION = struct.Struct(">iiqiqi")
_CORRELATION_AT = 8
_NO_REPLICA = b"\xff\xff\xff\xff"
_HEAD = struct.Struct(">ihi")
_ANSWERED = struct.Struct(">ihqqq")
_NOBODY = b"\xff\xff\xff\xff"
_LEAST_BATCH = 4096
"""Average bytes per batch below which stepping over batches would cost more than reading ahead saves."""
_SOME_BATCHES = 64


Buffer = bytearray | memoryview
Partition = tuple[bytes, int]
"""A topic, by its id or by its name with the name's length, and a partition's index."""


class Position(NamedTuple):
    """The position from which a client wants to read a partition."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A consumer's Fetch request; sizes in bytes."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    epoch: int
    positions: Mapping[Partition, Position]
    forgotten: tuple[Partition, ...] = ()
    rack: bytes = b"\1"
    """Encoded rack, including its length."""

    @property
    def manner(self) -> tuple[int, int, int, int, bytes]:
        """Everything about how the consumer reads, without the partitions: waits, sizes, isolation, rack."""
        return self.max_wait_ms, self.min_bytes, self.max_bytes, self.isolation, self.rack

    def of(self, positions: Mapping[Partition, Position], session_id: int, epoch: int) -> FetchRequest:
        """Return another request of a session with the same waits, sizes, isolation and rack."""
        return replace(self, positions=positions, forgotten=(), session_id=session_id, epoch=epoch)


def read_request(frame: bytearray, version: int, at: int) -> FetchRequest | None:
    """Return the request whose header's tags begin at `at`; None where the request belongs to no consumer's session."""
    if version < FIRST_READ or len(frame) > _LONGEST:
        return None
    try:
        at = skip_tags(frame, at)
        if version < _FIRST_WITHOUT_REPLICA:
            if not frame.startswith(_NO_REPLICA, at):
                return None
            at += len(_NO_REPLICA)
        max_wait, least, most, isolation, session_id, epoch = _FIXED.unpack_from(frame, at)
        if (session_id, epoch) == _NO_SESSION:
            return None
        at += _FIXED.size
        positions: dict[Partition, Position] = {}
        topics, at = _count(frame, at)
        for _ in range(topics):
            topic, at = _topic(frame, version, at)
            parts, at = _count(frame, at)
            for _ in range(parts):
                index, *position = _POSITION.unpack_from(frame, at)
                at = _no_tags(frame, at + _POSITION.size)
                positions[(topic, index)] = Position(*position)
            at = _no_tags(frame, at)
        forgotten: list[Partition] = []
        topics, at = _count(frame, at)
        for _ in range(topics):
            topic, at = _topic(frame, version, at)
            parts, at = _count(frame, at)
            forgotten += [(topic, index) for (index,) in I32.iter_unpack(frame[at : at + 4 * parts])]
            at = _no_tags(frame, at + 4 * parts)
        rack_at = at
        length, at = read_uvarint(frame, at)
        at += max(0, length - 1)
        rack = bytes(frame[rack_at:at])
        if _no_tags(frame, at) != len(frame):
            return None
    except (struct.error, IndexError, ProtocolViolation, _TaggedError):
        return None
    return FetchRequest(max_wait, least, most, isolation, session_id, epoch, positions, tuple(forgotten), rack)


class _TaggedError(Exception):
    """A tag where consumers send none."""


def _count(frame: bytearray, at: int) -> tuple[int, int]:
    value, at = read_uvarint(frame, at)
    if value - 1 > len(frame):
        raise IndexError("more elements than bytes")
    return max(0, value - 1), at


def _topic(frame: bytearray, version: int, at: int) -> tuple[bytes, int]:
    """Return a topic as requests and answers name it, and the offset after it; IndexError where it is cut short."""
    start = at
    if version >= FIRST_WITH_TOPIC_IDS:
        at += 16
    else:
        length, at = read_uvarint(frame, at)
        at += max(0, length - 1)
    if at > len(frame):
        raise IndexError("a topic runs past its frame")
    return bytes(frame[start:at]), at


def _no_tags(frame: bytearray, at: int) -> int:
    if frame[at]:
        raise _TaggedError
    return at + 1


def put_session(frame: bytearray, version: int, at: int, *, session_id: int, epoch: int, max_bytes: int) -> None:
    """Name another session in a request that was read, in place."""
    at = skip_tags(frame, at) + (len(_NO_REPLICA) if version < _FIRST_WITHOUT_REPLICA else 0)
    max_wait, least, _, isolation, _, _ = _FIXED.unpack_from(frame, at)
    _FIXED.pack_into(frame, at, max_wait, least, max_bytes, isolation, session_id, epoch)


def cap_bytes(frame: bytearray, version: int, at: int, most: int) -> None:
    """Lower the maximum bytes in a request of any version from 4 on to at most `most`, in place."""
    at = skip_tags(frame, at) if version >= FIRST_READ else at
    at += (len(_NO_REPLICA) if version < _FIRST_WITHOUT_REPLICA else 0) + 2 * I32.size
    if len(frame) >= at + I32.size:
        I32.pack_into(frame, at, min(most, *I32.unpack_from(frame, at)))


def encode(frame: bytearray, version: int, at: int, request: FetchRequest, correlation: int) -> bytearray:
    """Return a client's frame, whose header's tags begin at `at`, with another request and correlation id."""
    out = frame[: skip_tags(frame, at)]
    I32.pack_into(out, _CORRELATION_AT, correlation)
    if version < _FIRST_WITHOUT_REPLICA:
        out += _NO_REPLICA
    out += _FIXED.pack(
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation,
        request.session_id,
        request.epoch,
    )
    by_topic = _by_topic(request.positions)
    out += write_uvarint(len(by_topic) + 1)
    for topic, indexes in by_topic.items():
        out += topic + write_uvarint(len(indexes) + 1)
        for index in indexes:
            out += _POSITION.pack(index, *request.positions[(topic, index)]) + b"\0"
        out += b"\0"
    gone = _by_topic(request.forgotten)
    out += write_uvarint(len(gone) + 1)
    for topic, indexes in gone.items():
        out += topic + write_uvarint(len(indexes) + 1) + b"".join(map(I32.pack, indexes)) + b"\0"
    out += request.rack + b"\0"
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return out


def _by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    out: dict[bytes, list[int]] = {}
    for topic, index in partitions:
        out.setdefault(topic, []).append(index)
    return out


# answers


class AnswerHead(NamedTuple):
    """The fields before the topics of an answer; `throttle` in ms."""

    throttle: int
    error: int
    session_id: int


class End(NamedTuple):
    """The offset to which an answer brings the reader of a partition, and how many offsets the log has beyond."""

    offset: int
    leader_epoch: int
    read: int
    """Offsets that the answer holds."""
    left: int


def read_head(frame: Buffer) -> AnswerHead:
    """Return the head of an answer; raises ProtocolViolation where the frame has none."""
    try:
        return AnswerHead(*_HEAD.unpack_from(frame, response_body_offset(frame, flexible=True)))
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None


def show_session(frame: Buffer, session_id: int) -> None:
    """Put another session id into an answer, in place."""
    I32.pack_into(frame, response_body_offset(frame, flexible=True) + 6, session_id)


def read_ends(frame: bytearray, version: int, *, committed: bool) -> dict[Partition, End] | None:
    """Return the ends of the partitions with records in the answer; None where the reader's next request is unknown.

    None means an error, another leader, a replica to read from, small or old-format batches, or an unreadable answer.
    """
    try:
        return _ends(frame, version, committed)
    except (struct.error, IndexError, ProtocolViolation):
        return None


def _ends(frame: bytearray, version: int, committed: bool) -> dict[Partition, End] | None:
    ends: dict[Partition, End] = {}
    at = response_body_offset(frame, flexible=True) + _HEAD.size
    topics, at = read_uvarint(frame, at)
    for _ in range(topics - 1):
        topic, at = _topic(frame, version, at)
        parts, at = read_uvarint(frame, at)
        for _ in range(parts - 1):
            index, error, high, stable, _ = _ANSWERED.unpack_from(frame, at)
            aborted, at = read_uvarint(frame, at + _ANSWERED.size)
            for _ in range(aborted - 1):
                at = skip_tags(frame, at + 16)
            if error or not frame.startswith(_NOBODY, at):
                return None
            size, at = read_uvarint(frame, at + 4)
            stop = at + max(0, size - 1)
            found = extent(frame, at, stop, _SOME_BATCHES + (stop - at) // _LEAST_BATCH)
            if found is None or frame[stop]:
                return None
            first, end, epoch = found
            if end >= 0:
                ends[(topic, index)] = End(end, epoch, end - first, (stable if committed else high) - end)
            at = stop + 1
        at = skip_tags(frame, at)
    return ends if not frame[at] else None
