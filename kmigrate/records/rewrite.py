"""The slow path: batches that no broker would take as they are, rewritten record by record, exactly.

    thinned by compaction   count < offsets   → one batch per run of offsets that are still there (A3, A4)
    broker times (bit 3)    LogAppendTime     → the time that readers saw, in every record, as CreateTime (A7)
    wanted from inside      start > base      → the records from `start` on (A11)

Of a record only its two deltas are read and written; attributes, key, value and headers stay the bytes they were.
Rewriting is deterministic: the same batch gives the same bytes wherever and whenever it is done, so that two
copiers that meet the same batch send the same thing.

A batch of 1 MiB can say that it holds 32 GiB, or a hundred million records. Neither is begun: what is beyond
`MOST_BYTES` or `MOST_RECORDS` stops its partition by name, and the process lives on for all others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from types import ModuleType

import cramjam

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.primitives import read_varint, zigzag
from kmigrate.records.batch import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, Batch, assemble

__all__ = [
    "MOST_BYTES",
    "MOST_RECORDS",
    "Record",
    "Run",
    "contents",
    "decompress",
    "needs_rewriting",
    "pack",
    "rewrite",
]

MOST_BYTES = 256 << 20
"""Most that one batch may come to without its codec. Brokers have no such limit; a Java producer's record has at most
max.request.size, 1 MiB unless raised, and a batch of small ones is filled to batch.size after compression.
"""
MOST_RECORDS = 1_000_000
"""Most records of a batch that is rewritten: 0.6 GB and some seconds. Our own fillers have as many."""
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Run:
    """A new batch for offsets start … end − 1, each of which holds a record; its producer fields are blank."""

    start: int
    end: int
    max_timestamp: int
    view: memoryview


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a batch that is being rewritten."""

    offset: int
    timestamp_delta: int
    attributes: int
    rest: bytes | memoryview
    """Key, value and headers, lengths included."""


def needs_rewriting(batch: Batch) -> bool:
    """Whether a data batch cannot be appended as it stands."""
    return batch.count != batch.last_offset_delta + 1 or bool(batch.attributes & LOG_APPEND_TIME)


def rewrite(batch: Batch, start: int) -> list[Run]:
    """The records of `batch` from offset `start` on, as batches without gaps; none where compaction left none.

    Raises ProtocolViolation where the batch is not what its header says.
    """
    records = [record for record in _records(batch) if record.offset >= start]
    runs: list[list[Record]] = []
    for record in records:
        if runs and runs[-1][-1].offset + 1 == record.offset:
            runs[-1].append(record)
        else:
            runs.append([record])
    return [_run(batch, run) for run in runs]


def contents(batch: Batch) -> dict[int, tuple[int, bytes]]:
    """What readers are given, by offset: the timestamp, and key, value and headers as their bytes."""
    stamped = bool(batch.attributes & LOG_APPEND_TIME)
    return {
        record.offset: (
            batch.max_timestamp if stamped else batch.base_timestamp + record.timestamp_delta,
            bytes(record.rest),
        )
        for record in _records(batch)
    }


def _run(batch: Batch, records: list[Record]) -> Run:
    stamped = bool(batch.attributes & LOG_APPEND_TIME)
    return pack(
        records,
        [0 if stamped else record.timestamp_delta for record in records],
        base_timestamp=batch.max_timestamp if stamped else batch.base_timestamp,
        attributes=batch.attributes & ~LOG_APPEND_TIME,
        leader_epoch=batch.leader_epoch,
    )


def pack(
    records: Sequence[Record], deltas: Sequence[int], *, base_timestamp: int, attributes: int, leader_epoch: int
) -> Run:
    """A batch of records that stand in a row, with these timestamp deltas."""
    out: list[bytes | memoryview] = []
    for number, (record, delta) in enumerate(zip(records, deltas, strict=True)):
        head = bytes((record.attributes,)) + zigzag(delta) + zigzag(number)
        out += (zigzag(len(head) + len(record.rest)), head, record.rest)
    max_timestamp = base_timestamp + max(deltas)
    payload = _compress(attributes & CODEC_MASK, b"".join(out))
    made = assemble(
        payload,
        count=len(records),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        leader_epoch=leader_epoch,
    )
    first = records[0].offset
    return Run(first, first + len(records), max_timestamp, memoryview(made))


def _records(batch: Batch) -> Iterator[Record]:
    if batch.count > MOST_RECORDS:
        raise ProtocolViolation(
            "too-many-records", f"the batch at {batch.base_offset} says that it holds {batch.count} records"
        )
    data = memoryview(decompress(batch.codec, batch.view[HEADER_SIZE:]))
    at = 0
    try:
        for _ in range(batch.count):
            size, at = read_varint(data, at)
            end = at + size
            attributes = data[at]
            timestamp_delta, at = read_varint(data, at + 1)
            offset_delta, at = read_varint(data, at)
            if at > end or end > len(data):
                raise IndexError
            yield Record(batch.base_offset + offset_delta, timestamp_delta, attributes, data[at:end])
            at = end
    except IndexError:
        raise ProtocolViolation(
            "short-record", f"a record of the batch at {batch.base_offset} ends too early"
        ) from None
    if at != len(data):
        raise ProtocolViolation(
            "surplus-bytes", f"the batch at {batch.base_offset} holds more than its {batch.count} records"
        )


# codecs, in the framings that Kafka's clients write


def decompress(codec: int, payload: memoryview, most: int = MOST_BYTES) -> bytes | bytearray | memoryview:
    """The records of a batch as they were before its producer compressed them, in no more than `most` bytes."""
    if not codec & CODEC_MASK:
        return payload
    unpack = _UNPACK.get(codec)
    if unpack is None:
        raise ProtocolViolation("unknown-codec", f"a batch names compression codec {codec}")
    try:
        return unpack(payload, most)
    except (cramjam.DecompressionError, ValueError, struct.error) as error:
        raise ProtocolViolation(
            "bad-compression", f"a batch cannot be decompressed into {most} bytes: {error}"
        ) from None


def _compress(codec: int, payload: bytes) -> bytes:
    return _PACK[codec](payload) if codec else payload


def _unpack_into(codec: ModuleType) -> Callable[[memoryview, int], bytes]:
    """Unpack into room that costs memory only as far as it is filled: no header need tell the truth about the size."""

    def unpack(payload: memoryview, most: int) -> bytes:
        with mmap(-1, most, MAP_PRIVATE | MAP_ANONYMOUS) as room:
            return room[: codec.decompress_into(payload, room)]

    return unpack


def _snappy_unpack(payload: memoryview, most: int) -> bytes | bytearray:
    if bytes(payload[:8]) != _XERIAL:
        return _snappy_block(payload, most)
    out = bytearray()
    at = len(_XERIAL_HEAD)
    while at < len(payload):
        (size,) = _SIZE.unpack_from(payload, at)
        at += 4
        if size < 0 or at + size > len(payload):
            raise ValueError("a snappy block runs past its batch")
        out += _snappy_block(payload[at : at + size], most - len(out))
        at += size
    return out


def _snappy_block(block: memoryview, most: int) -> bytes:
    """The library makes room for what a block says of itself before it looks at the rest."""
    if (size := cramjam.snappy.decompress_raw_len(block)) > most:
        raise ValueError(f"a snappy block of {size} bytes is too large")
    return bytes(cramjam.snappy.decompress_raw(block))


def _snappy_pack(payload: bytes) -> bytes:
    out = bytearray(_XERIAL_HEAD)
    for at in range(0, len(payload), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(payload[at : at + _XERIAL_BLOCK]))
        out += _SIZE.pack(len(block)) + block
    return bytes(out)


_UNPACK: dict[int, Callable[[memoryview, int], bytes | bytearray | memoryview]] = {
    _GZIP: _unpack_into(cramjam.gzip),
    _SNAPPY: _snappy_unpack,
    _LZ4: _unpack_into(cramjam.lz4),
    _ZSTD: _unpack_into(cramjam.zstd),
}

def _lz4_pack(payload: bytes) -> bytes:
    # Java's reader refuses frames whose blocks depend on one another.
    packer = cramjam.lz4.Compressor(level=4, content_checksum=False, block_linked=False)
    packer.compress(payload)
    return bytes(packer.finish())


_PACK: dict[int, Callable[[bytes], bytes]] = {
    _GZIP: lambda payload: bytes(cramjam.gzip.compress(payload)),
    _SNAPPY: _snappy_pack,
    _LZ4: _lz4_pack,
    _ZSTD: lambda payload: bytes(cramjam.zstd.compress(payload, level=3)),
}
