"""Produce and Fetch as our own client sends them, down to the partitions; records stay views.

Kafka 2.8 to 4.x all support Produce 9 and Fetch 12 (flexible, by topic name). Fetch 13 has topic ids (KIP-516), for
fetch sessions (`cluster.fetch`). The router reads clients' Produce requests of every version (`router.wire.produce`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import response_body_offset, skip_tags
from kmigrate.protocol.primitives import (
    read_compact_string,
    read_uvarint,
    write_compact_string,
    write_uvarint,
)

__all__ = [
    "FETCH_BY_ID_VERSION",
    "FETCH_VERSION",
    "PRODUCE_VERSION",
    "FetchAnswer",
    "FetchPartition",
    "FetchedPartition",
    "ProduceAnswer",
    "decode_fetch",
    "decode_produce",
    "decode_throttled_produce",
    "encode_fetch",
    "encode_produce",
]

PRODUCE_VERSION = 9
FETCH_VERSION, FETCH_BY_ID_VERSION = 12, 13

Buffer = bytes | bytearray | memoryview

_PRODUCE_HEAD = struct.Struct(">hi")
_FETCH_HEAD = struct.Struct(">iiiibii")
_FETCH_PART = struct.Struct(">iiqiqi")
_FETCHED = struct.Struct(">ihqqq")
_PRODUCED = struct.Struct(">ihqqq")
_PLAIN = struct.Struct(">ihqqq3s")
"""The fields of `_PRODUCED` and the three bytes behind them; a response never has fewer."""
_NOTHING_MORE = b"\1\0\0"
"""These three bytes for a partition without an error: no record errors, no message, no tags."""
_I32 = struct.Struct(">i")
_ID_BYTES = 16


class ProduceAnswer(NamedTuple):
    """A broker's answer for a batch."""

    error: int
    base_offset: int
    log_append_time: int
    message: str | None


def encode_produce(
    batches: Iterable[tuple[str, int, Buffer]], *, acks: int = -1, timeout_ms: int = 30_000
) -> list[Buffer]:
    """Return the body of a Produce request: one batch per partition (A2), without a copy of the batches."""
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for topic, partition, data in batches:
        topics.setdefault(topic, []).append((partition, data))
    out: list[Buffer] = [b"\0" + _PRODUCE_HEAD.pack(acks, timeout_ms) + write_uvarint(len(topics) + 1)]
    for topic, parts in topics.items():
        head = write_compact_string(topic) + write_uvarint(len(parts) + 1)
        for partition, data in parts:
            out.append(head + _I32.pack(partition) + write_uvarint(len(data) + 1))
            out.append(data)
            head = b"\0"
        out.append(b"\0\0")
    out.append(b"\0")
    return out


def decode_produce(frame: bytearray) -> dict[tuple[str, int], ProduceAnswer]:
    """Return the answers of a Produce 9 response by topic and partition."""
    return decode_throttled_produce(frame)[0]


def decode_throttled_produce(frame: bytearray) -> tuple[dict[tuple[str, int], ProduceAnswer], int]:
    """Return a Produce 9 response's answers and throttle time: ms to send nothing, as a quota is used up (KIP-219)."""
    try:
        at = response_body_offset(frame, flexible=True)
        out: dict[tuple[str, int], ProduceAnswer] = {}
        topics, at = read_uvarint(frame, at)
        for _ in range(topics - 1):
            name, at = read_compact_string(frame, at)
            topic = name or ""
            count, at = read_uvarint(frame, at)
            left = count - 1
            for partition, error, base, append_time, _, more in _PLAIN.iter_unpack(frame[at : at + left * _PLAIN.size]):
                if more != _NOTHING_MORE:
                    break
                out[(topic, partition)] = ProduceAnswer(error, base, append_time, None)
                at, left = at + _PLAIN.size, left - 1
            for _ in range(left):
                partition, error, base, append_time, _ = _PRODUCED.unpack_from(frame, at)
                record_errors, at = read_uvarint(frame, at + _PRODUCED.size)
                for _ in range(record_errors - 1):
                    _, at = read_compact_string(frame, at + 4)
                    at = skip_tags(frame, at)
                message, at = read_compact_string(frame, at)
                at = skip_tags(frame, at)
                out[(topic, partition)] = ProduceAnswer(error, base, append_time, message)
            at = skip_tags(frame, at)
        (throttle_ms,) = _I32.unpack_from(frame, at)
        skip_tags(frame, at + _I32.size)
        return out, throttle_ms
    except struct.error as short:
        raise ProtocolViolation("short-produce-answer", str(short)) from None


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """The position from which to read a partition; epochs are −1 if unknown (C3)."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A broker's answer for a partition; `records` is a view into the frame."""

    topic: str
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) in the response's order: sort before use (design of aborted data, W9)."""
    preferred_replica: int
    records: memoryview
    diverging: tuple[int, int] | None = None
    """(epoch, end offset) if the source log was cut below the records that we read (W7)."""


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """A whole Fetch response."""

    error: int
    session_id: int
    throttle_ms: int
    partitions: list[FetchedPartition] = field(default_factory=list)


def encode_fetch(
    partitions: Sequence[FetchPartition],
    *,
    max_wait_ms: int,
    min_bytes: int = 1,
    max_bytes: int = 64 << 20,
    read_committed: bool = False,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Sequence[tuple[str, int]] = (),
    ids: Mapping[str, bytes] | None = None,
    rack: str = "",
) -> list[Buffer]:
    """Return the body of a Fetch request; session epoch −1 asks for every partition's answer (a full fetch).

    Version 13 with all topics' `ids`, otherwise 12. A leader that knows a follower in the `rack` names the follower and
    sends no records (KIP-392).
    """
    out = bytearray(
        _FETCH_HEAD.pack(-1, max_wait_ms, min_bytes, max_bytes, 1 if read_committed else 0, session_id, session_epoch)
    )
    topics: dict[str, list[FetchPartition]] = {}
    for wanted in partitions:
        topics.setdefault(wanted.topic, []).append(wanted)
    out += write_uvarint(len(topics) + 1)
    for topic, parts in topics.items():
        out += (write_compact_string(topic) if ids is None else ids[topic]) + write_uvarint(len(parts) + 1)
        for p in parts:
            out += _FETCH_PART.pack(p.partition, p.leader_epoch, p.offset, p.last_fetched_epoch, -1, p.max_bytes)
            out += b"\0"
        out += b"\0"
    dropped: dict[str, list[int]] = {}
    for topic, partition in forgotten:
        dropped.setdefault(topic, []).append(partition)
    out += write_uvarint(len(dropped) + 1)
    for topic, numbers in dropped.items():
        out += (write_compact_string(topic) if ids is None else ids[topic]) + write_uvarint(len(numbers) + 1)
        for number in numbers:
            out += _I32.pack(number)
        out += b"\0"
    out += write_compact_string(rack) + b"\0"
    return [bytes(out)]


def _partition_tags(frame: bytearray, at: int) -> tuple[tuple[int, int] | None, int]:
    """Return the diverging epoch of a partition's tags, if any, and the offset after the tags."""
    diverging: tuple[int, int] | None = None
    count, at = read_uvarint(frame, at)
    for _ in range(count):
        tag, at = read_uvarint(frame, at)
        size, at = read_uvarint(frame, at)
        if tag == 0 and size >= 12:
            epoch, end = struct.unpack_from(">iq", frame, at)
            diverging = None if epoch < 0 and end < 0 else (epoch, end)
        at += size
    return diverging, at


def _named(frame: bytearray, at: int, names: Mapping[bytes, str]) -> tuple[str, int]:
    """Return the name of the topic whose id stands at `at`, and the offset after the id."""
    topic_id = bytes(frame[at : at + _ID_BYTES])
    if topic_id not in names:
        raise ProtocolViolation("unasked-fetch-answer", f"an answer to a Fetch has topic id {topic_id.hex()}, unasked")
    return names[topic_id], at + _ID_BYTES


def decode_fetch(frame: bytearray, names: Mapping[bytes, str] | None = None) -> FetchAnswer:
    """Read a Fetch 12 response, or with `names` by topic id a Fetch 13 response; the reads check every length."""
    try:
        view = memoryview(frame)
        at = response_body_offset(frame, flexible=True)
        throttle, error, session = struct.unpack_from(">ihi", frame, at)
        at += 10
        out: list[FetchedPartition] = []
        topics, at = read_uvarint(frame, at)
        for _ in range(topics - 1):
            topic, at = read_compact_string(frame, at) if names is None else _named(frame, at, names)
            count, at = read_uvarint(frame, at)
            for _ in range(count - 1):
                partition, code, watermark, stable, start = _FETCHED.unpack_from(frame, at)
                at += _FETCHED.size
                aborted_count, at = read_uvarint(frame, at)
                aborted: list[tuple[int, int]] = []
                for _ in range(aborted_count - 1):
                    aborted.append(struct.unpack_from(">qq", frame, at))
                    at = skip_tags(frame, at + 16)
                (preferred,) = _I32.unpack_from(frame, at)
                length, at = read_uvarint(frame, at + 4)
                size = max(length - 1, 0)
                if at + size > len(frame):
                    raise ProtocolViolation("short-fetch-answer", "records run past the answer")
                records = view[at : at + size]
                diverging, at = _partition_tags(frame, at + size)
                out.append(
                    FetchedPartition(
                        topic or "",
                        partition,
                        code,
                        watermark,
                        stable,
                        start,
                        tuple(aborted),
                        preferred,
                        records,
                        diverging,
                    )
                )
            at = skip_tags(frame, at)
        skip_tags(frame, at)
        return FetchAnswer(error, session, throttle, out)
    except struct.error as short:
        raise ProtocolViolation("short-fetch-answer", str(short)) from None
