"""ListOffsets 5 by hand: a look at an estate asks for tens of thousands of offsets, and kio takes ten times as long.

ListOffsets 5 is not flexible; every broker from Kafka 2.8 on has this version.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.hot import Buffer
from kmigrate.protocol.primitives import I32, read_string, write_string

__all__ = ["LIST_OFFSETS_VERSION", "LogOffset", "decode_offsets", "encode_offsets"]

LIST_OFFSETS_VERSION = 5

_HEAD = struct.Struct(">i?i")
_ASKED = struct.Struct(">iiq")
_ANSWERED = struct.Struct(">ihqqi")
_NO_EPOCHS: Mapping[tuple[str, int], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LogOffset:
    """ListOffsets answer for a partition; offset −1 if no record matches a timestamp."""

    error: int
    offset: int
    leader_epoch: int
    timestamp: int = -1
    """The record's time, if the request looked for a record by time."""


def encode_offsets(
    wanted: Mapping[tuple[str, int], int],
    epochs: Mapping[tuple[str, int], int] = _NO_EPOCHS,
    *,
    replica_id: int,
    read_committed: bool = False,
) -> list[Buffer]:
    """Return a request's body with a timestamp per partition, and the leader epoch of partitions in `epochs`."""
    topics: dict[str, list[bytes]] = {}
    for key, timestamp in wanted.items():
        topic, partition = key
        topics.setdefault(topic, []).append(_ASKED.pack(partition, epochs.get(key, -1), timestamp))
    out = [_HEAD.pack(replica_id, read_committed, len(topics))]
    for topic, partitions in topics.items():
        out += [write_string(topic), I32.pack(len(partitions)), *partitions]
    return [b"".join(out)]


def decode_offsets(frame: bytearray) -> dict[tuple[str, int], LogOffset]:
    """Return the offset of each partition in a response."""
    try:
        at = response_body_offset(frame, flexible=False) + I32.size
        out: dict[tuple[str, int], LogOffset] = {}
        (topics,) = I32.unpack_from(frame, at)
        at += I32.size
        for _ in range(topics):
            name, at = read_string(frame, at)
            topic = name or ""
            (partitions,) = I32.unpack_from(frame, at)
            at += I32.size
            for _ in range(partitions):
                partition, error, timestamp, offset, leader_epoch = _ANSWERED.unpack_from(frame, at)
                out[topic, partition] = LogOffset(error, offset, leader_epoch, timestamp)
                at += _ANSWERED.size
        return out
    except struct.error as short:
        raise ProtocolViolation("short-offsets-answer", str(short)) from None
