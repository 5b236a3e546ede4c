"""New batches: one-record batches for the state log (also decoded here), and fillers that move a log's end."""

from __future__ import annotations

from functools import lru_cache

import cramjam

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.primitives import read_varint, write_uvarint, zigzag
from kmigrate.records.batch import HEADER_SIZE, Batch, assemble

__all__ = ["filler_batch", "one_record_batch", "read_header", "read_single_record"]

_ZSTD = 4


def _batch(
    payload: bytes,
    *,
    count: int,
    codec: int,
    timestamp: int,
    producer_id: int,
    epoch: int,
    sequence: int,
) -> bytearray:
    return assemble(
        payload,
        count=count,
        attributes=codec,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
    )


def one_record_batch(
    key: bytes,
    value: bytes | None,
    *,
    timestamp: int,
    producer_id: int,
    epoch: int,
    sequence: int,
    header: tuple[bytes, bytes] | None = None,
) -> bytearray:
    """Return an uncompressed batch of one record; a None value is a tombstone. The header is a name and its value."""
    body = b"\0" + zigzag(0) + zigzag(0) + _sized(key)
    body += zigzag(-1) if value is None else _sized(value)
    body += zigzag(0) if header is None else zigzag(1) + _sized(header[0]) + _sized(header[1])
    return _batch(
        zigzag(len(body)) + body,
        count=1,
        codec=0,
        timestamp=timestamp,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
    )


def _sized(data: bytes) -> bytes:
    return zigzag(len(data)) + data


_BLOCK = 64
"""Number of offset deltas whose varints differ in the first byte only."""


@lru_cache(maxsize=4)
def _filler_payload(count: int) -> bytes:
    """Return `count` empty records (null key, null value), compressed by zstd: 1 M records are about 0.8 MB (M4).

    Within a block, only the first byte of the offset delta's varint changes: 15,000 joins, not a million steps.
    """
    out = [_empty_record(delta) for delta in range(min(count, _BLOCK))]
    for high in range(1, -(-count // _BLOCK)):
        rest = write_uvarint(high)
        head = zigzag(6 + len(rest)) + b"\0\0"
        size = min(_BLOCK, count - high * _BLOCK)
        tail = rest + b"\1\1\0"
        out.append(tail.join([head + first for first in _FIRST_BYTES[:size]]) + tail)
    return bytes(cramjam.zstd.compress(b"".join(out), level=3))


_FIRST_BYTES = [bytes([0x80 | delta << 1]) for delta in range(_BLOCK)]


def _empty_record(delta: int) -> bytes:
    offset = zigzag(delta)
    return zigzag(5 + len(offset)) + b"\0\0" + offset + b"\1\1\0"


def filler_batch(count: int, *, timestamp: int, producer_id: int, epoch: int, sequence: int) -> bytearray:
    """Return a batch of `count` empty records, which takes `count` offsets and is deleted before anybody reads."""
    return _batch(
        _filler_payload(count),
        count=count,
        codec=_ZSTD,
        timestamp=timestamp,
        producer_id=producer_id,
        epoch=epoch,
        sequence=sequence,
    )


def read_single_record(batch: Batch) -> tuple[bytes, bytes | None]:
    """Return key and value of an uncompressed one-record batch, as the state log writes them."""
    key, value, _ = _key_and_value(batch)
    return key, value


def read_header(batch: Batch, name: bytes) -> bytes | None:
    """Return the value of the single record's header `name`, or None if the record has no such header."""
    _, _, rest = _key_and_value(batch)
    try:
        count, at = read_varint(rest, 0)
        for _ in range(count):
            found, at = _field(rest, at)
            value, at = _field(rest, at)
            if found == name:
                return value
    except IndexError:
        raise _short(batch) from None
    return None


def _key_and_value(batch: Batch) -> tuple[bytes, bytes | None, bytes]:
    """Return key and value of the single record, and the bytes of the headers behind them."""
    if batch.count != 1 or batch.codec != 0:
        raise ProtocolViolation(
            "not-a-single-record", f"the batch at offset {batch.base_offset} is not one uncompressed record"
        )
    data = bytes(batch.view[HEADER_SIZE:])
    try:
        _, at = read_varint(data, 0)  # the record's length: the batch's length says the same
        _, at = read_varint(data, at + 1)  # the timestamp delta, behind the attributes
        _, at = read_varint(data, at)
        key, at = _field(data, at)
        value, at = _field(data, at)
    except IndexError:
        raise _short(batch) from None
    return key or b"", value, data[at:]


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise IndexError
    return data[at : at + size], at + size


def _short(batch: Batch) -> ProtocolViolation:
    return ProtocolViolation("short-record", f"the record at offset {batch.base_offset} ends too early")
