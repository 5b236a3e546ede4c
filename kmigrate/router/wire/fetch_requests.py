"""Reads, changes in place and writes consumers' Fetch requests, as far as a fetch session (KIP-227) depends on them.

    [replica id i32, below version 15] max wait i32, min bytes i32, max bytes i32, isolation i8, session i32, epoch i32,
    topics: name (12) or id, partitions: index, leader epoch, offset, last fetched epoch, log start, max bytes; tags
    forgotten topics: name or id, partitions; tags
    rack; tags

Versions from 12 on. No consumer sends tags in these requests, so requests with tags are not read here. Requests that
are cut short are not read here either. `make bench-router` is the reason for reading without `protocol.reader`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import SIZE, skip_tags
from kmigrate.protocol.primitives import read_uvarint, write_uvarint

__all__ = [
    "FIRST_READ",
    "FIRST_WITH_TOPIC_IDS",
    "FetchRequest",
    "Partition",
    "Place",
    "cap_bytes",
    "encode",
    "put_session",
    "read_request",
    "read_topic",
]

FIRST_READ, FIRST_WITH_TOPIC_IDS, _FIRST_WITHOUT_REPLICA = 12, 13, 15
_LONGEST = 64 << 10
"""Maximum bytes of a request that is read: more than a thousand partitions."""
_NO_SESSION = (0, -1)
_FIXED = struct.Struct(">iiibii")
_PLACE = struct.Struct(">iiqiqi")
_I32 = struct.Struct(">i")
_CORRELATION_AT = 8
_NO_REPLICA = b"\xff\xff\xff\xff"

Partition = tuple[bytes, int]
"""A topic, by its id or by its name with the name's length, and a partition's index."""


class Place(NamedTuple):
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
    places: Mapping[Partition, Place]
    forgotten: tuple[Partition, ...] = ()
    rack: bytes = b"\1"
    """Encoded rack, including its length."""

    @property
    def manner(self) -> tuple[int, int, int, int, bytes]:
        """Everything about how the consumer reads, without the partitions: waits, sizes, isolation, rack."""
        return self.max_wait_ms, self.min_bytes, self.max_bytes, self.isolation, self.rack

    def of(self, places: Mapping[Partition, Place], session_id: int, epoch: int) -> FetchRequest:
        """Return another request of a session with the same waits, sizes, isolation and rack."""
        return replace(self, places=places, forgotten=(), session_id=session_id, epoch=epoch)


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
        places: dict[Partition, Place] = {}
        topics, at = _count(frame, at)
        for _ in range(topics):
            topic, at = read_topic(frame, version, at)
            parts, at = _count(frame, at)
            for _ in range(parts):
                index, *place = _PLACE.unpack_from(frame, at)
                at = _no_tags(frame, at + _PLACE.size)
                places[(topic, index)] = Place(*place)
            at = _no_tags(frame, at)
        forgotten: list[Partition] = []
        topics, at = _count(frame, at)
        for _ in range(topics):
            topic, at = read_topic(frame, version, at)
            parts, at = _count(frame, at)
            forgotten += [(topic, index) for (index,) in _I32.iter_unpack(frame[at : at + 4 * parts])]
            at = _no_tags(frame, at + 4 * parts)
        rack_at = at
        length, at = read_uvarint(frame, at)
        at += max(0, length - 1)
        rack = bytes(frame[rack_at:at])
        if _no_tags(frame, at) != len(frame):
            return None
    except (struct.error, IndexError, ProtocolViolation, _TaggedError):
        return None
    return FetchRequest(max_wait, least, most, isolation, session_id, epoch, places, tuple(forgotten), rack)


class _TaggedError(Exception):
    """A tag where consumers send none."""


def _count(frame: bytearray, at: int) -> tuple[int, int]:
    value, at = read_uvarint(frame, at)
    if value - 1 > len(frame):
        raise IndexError("more elements than bytes")
    return max(0, value - 1), at


def read_topic(frame: bytearray, version: int, at: int) -> tuple[bytes, int]:
    """Return a topic as requests and answers name it, and the offset after it; IndexError where the topic is cut
    short."""
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
    at += (len(_NO_REPLICA) if version < _FIRST_WITHOUT_REPLICA else 0) + 2 * _I32.size
    if len(frame) >= at + _I32.size:
        _I32.pack_into(frame, at, min(most, *_I32.unpack_from(frame, at)))


def encode(frame: bytearray, version: int, at: int, request: FetchRequest, correlation: int) -> bytearray:
    """Return a client's frame, whose header's tags begin at `at`, with another request and correlation id."""
    out = frame[: skip_tags(frame, at)]
    _I32.pack_into(out, _CORRELATION_AT, correlation)
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
    by_topic = _by_topic(request.places)
    out += write_uvarint(len(by_topic) + 1)
    for topic, indexes in by_topic.items():
        out += topic + write_uvarint(len(indexes) + 1)
        for index in indexes:
            out += _PLACE.pack(index, *request.places[(topic, index)]) + b"\0"
        out += b"\0"
    gone = _by_topic(request.forgotten)
    out += write_uvarint(len(gone) + 1)
    for topic, indexes in gone.items():
        out += topic + write_uvarint(len(indexes) + 1) + b"".join(map(_I32.pack, indexes)) + b"\0"
    out += request.rack + b"\0"
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return out


def _by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    out: dict[bytes, list[int]] = {}
    for topic, index in partitions:
        out.setdefault(topic, []).append(index)
    return out
