"""Metadata 10 responses by hand: an estate has tens of thousands of topics, and kio takes ten times as long.

    throttle i32 | [ node i32, host, port i32, rack ] | cluster id | controller i32
                 | [ error i16, name, id (16 bytes), internal bool, [ partition ], operations i32 ] | operations i32
    partition: error i16, number i32, leader i32, leader epoch i32, [ replica i32 ], [ in sync i32 ], [ offline i32 ]

Metadata 10 has compact lengths and tags, and is the first version with topic ids (KIP-516); every broker from Kafka 2.8
on has this version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.primitives import I16, I32
from kmigrate.protocol.reader import Reader

__all__ = ["METADATA_VERSION", "PartitionInfo", "ReportedMetadata", "ReportedTopic", "decode_metadata"]

METADATA_VERSION = 10

_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)
_INTERNAL_BYTES = 1
_PARTITION = struct.Struct(">hiii")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Leader and replicas of a partition, as a broker reports them."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...] = ()


class ReportedTopic(NamedTuple):
    """A topic in a response."""

    error: int
    name: str
    topic_id: UUID | None
    """None from a broker that gives topics no ids."""
    partitions: dict[int, PartitionInfo]


class ReportedMetadata(NamedTuple):
    """A whole response."""

    brokers: dict[int, tuple[str, int]]
    """Host and port by node id."""
    cluster_id: str
    topics: list[ReportedTopic]


def decode_metadata(frame: bytearray) -> ReportedMetadata:
    """Read a response; raise ProtocolViolation for a response that ends early."""
    try:
        read = Reader(frame, response_body_offset(frame, flexible=True) + I32.size, flexible=True)
        brokers = dict([_broker(read) for _ in range(read.length())])
        cluster_id = read.string() or ""
        read.unpack(I32)
        topics = [_topic(read) for _ in range(read.length())]
        read.unpack(I32)
        read.tags()
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("short-message", f"Metadata v{METADATA_VERSION} ends too early: {short}") from None
    return ReportedMetadata(brokers, cluster_id, topics)


def _broker(read: Reader) -> tuple[int, tuple[str, int]]:
    (node,) = read.unpack(I32)
    host = read.string() or ""
    (port,) = read.unpack(I32)
    read.string()
    read.tags()
    return node, (host, port)


def _topic(read: Reader) -> ReportedTopic:
    (error,) = read.unpack(I16)
    name = read.string() or ""
    topic_id = bytes(read.frame[read.at : read.at + _ID_BYTES])
    read.at += _ID_BYTES + _INTERNAL_BYTES
    partitions = dict([_partition(read) for _ in range(read.length())])
    read.unpack(I32)
    read.tags()
    return ReportedTopic(error, name, UUID(bytes=topic_id) if topic_id != _NO_ID else None, partitions)


def _partition(read: Reader) -> tuple[int, PartitionInfo]:
    _, number, leader, leader_epoch = read.unpack(_PARTITION)
    replicas, in_sync, _ = _nodes(read), _nodes(read), _nodes(read)
    read.tags()
    return number, PartitionInfo(leader, leader_epoch, replicas, in_sync)


def _nodes(read: Reader) -> tuple[int, ...]:
    return read.unpack(_ints(read.length()))


@lru_cache(maxsize=64)
def _ints(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")
