"""WriteTxnMarkers 1 by hand, and the request for the log ends behind it: a mirrored transaction costs one of each.

Every broker from Kafka 2.8 on has this version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import response_body_offset, skip_tags
from kmigrate.protocol.hot import Buffer
from kmigrate.protocol.offsets import encode_offsets
from kmigrate.protocol.primitives import (
    I32,
    read_compact_string,
    read_uvarint,
    write_compact_string,
    write_uvarint,
)

__all__ = [
    "MARKERS_VERSION",
    "Marks",
    "decode_marker_codes",
    "encode_log_ends",
    "encode_markers",
]

MARKERS_VERSION = 1
_LOG_END, _LATEST = -2, -1
"""ListOffsets' replica id that asks for the log end, and the timestamp of the newest offset."""

_MARKER_HEAD = struct.Struct(">qh?")
_CODE = struct.Struct(">ih")


class Marks(NamedTuple):
    """The control markers for one partition."""

    topic: str
    partition: int
    markers: int
    epoch: int
    coordinator_epoch: int
    producer_id: int


def encode_markers(marks: Iterable[Marks]) -> list[Buffer]:
    """Return the body of a WriteTxnMarkers request; partitions with equal ids and epochs share a marker."""
    shared: dict[tuple[int, int, int], list[Marks]] = {}
    for mark in marks:
        shared.setdefault((mark.producer_id, mark.epoch, mark.coordinator_epoch), []).append(mark)
    out: list[bytes] = []
    for (producer_id, epoch, coordinator_epoch), each in shared.items():
        head = _MARKER_HEAD.pack(producer_id, epoch, True)
        tail = I32.pack(coordinator_epoch) + b"\0"
        most = max(mark.markers for mark in each)
        out += [head + _topics([mark for mark in each if mark.markers > number]) + tail for number in range(most)]
    return [write_uvarint(len(out) + 1) + b"".join(out) + b"\0"]


def _topics(marks: Sequence[Marks]) -> bytes:
    topics: dict[str, list[bytes]] = {}
    for mark in marks:
        topics.setdefault(mark.topic, []).append(I32.pack(mark.partition))
    out = [write_uvarint(len(topics) + 1)]
    for topic, partitions in topics.items():
        out += [write_compact_string(topic), write_uvarint(len(partitions) + 1), *partitions, b"\0"]
    return b"".join(out)


def decode_marker_codes(frame: bytearray) -> dict[tuple[str, int], int]:
    """Return the first error code of each partition in a WriteTxnMarkers response; 0 if there is none."""
    try:
        at = response_body_offset(frame, flexible=True)
        codes: dict[tuple[str, int], int] = {}
        producers, at = read_uvarint(frame, at)
        for _ in range(producers - 1):
            topics, at = read_uvarint(frame, at + 8)
            for _ in range(topics - 1):
                name, at = read_compact_string(frame, at)
                partitions, at = read_uvarint(frame, at)
                for _ in range(partitions - 1):
                    partition, code = _CODE.unpack_from(frame, at)
                    at = skip_tags(frame, at + _CODE.size)
                    key = (name or "", partition)
                    codes[key] = codes.get(key, 0) or code
                at = skip_tags(frame, at)
            at = skip_tags(frame, at)
        skip_tags(frame, at)
        return codes
    except struct.error as short:
        raise ProtocolViolation("short-markers-answer", str(short)) from None


def encode_log_ends(keys: Iterable[tuple[str, int]]) -> list[Buffer]:
    """Return the body of a ListOffsets request for the log ends, not the high watermarks, of partitions (V1)."""
    return encode_offsets(dict.fromkeys(keys, _LATEST), replica_id=_LOG_END)
