"""Batches for the mirror's tests, packed by hand so that the code under test does not build its own input."""

from __future__ import annotations

import struct

from crc32c import crc32c

from kmigrate.protocol.hot import FetchedPartition

TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08


def batch(
    base: int,
    count: int,
    *,
    producer: int = -1,
    attributes: int = 0,
    records: int | None = None,
    epoch: int = 3,
    sequence: int = -1,
    text: bytes = b"",
    timestamp: int = 1_000,
) -> bytes:
    """Return one batch of `count` offsets that starts at `base`; `records` is the record count if that differs."""
    body = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1,
        timestamp,
        timestamp,
        producer,
        0,
        sequence,
        count if records is None else records,
    )
    body += text or f"payload {base}+{count}".encode()
    return struct.pack(">qiibI", base, 9 + len(body), epoch, 2, crc32c(body)) + body


def record(delta: int, *, timestamp_delta: int = 0, key: bytes = b"k", value: bytes = b"v") -> bytes:
    """Return one record whose lengths and deltas are below 64, so that each varint is the number doubled."""
    body = bytes((0, timestamp_delta * 2, delta * 2, len(key) * 2)) + key + bytes((len(value) * 2,)) + value + b"\0"
    return bytes((len(body) * 2,)) + body


def zstd_of_zeros(blocks: int) -> bytes:
    """Return a zstd frame of `blocks` blocks; each block says in four bytes that 128 KiB repeat a single byte."""
    more, last = ((128 << 10 << 3 | 1 << 1 | end).to_bytes(3, "little") + b"\0" for end in (0, 1))
    return b"\x28\xb5\x2f\xfd\0\x38" + more * (blocks - 1) + last


def fetched(
    data: bytes, *, aborted: tuple[tuple[int, int], ...] = (), high_watermark: int = 1_000, topic: str = "t"
) -> FetchedPartition:
    return FetchedPartition(topic, 0, 0, high_watermark, high_watermark, 0, aborted, -1, memoryview(bytearray(data)))
