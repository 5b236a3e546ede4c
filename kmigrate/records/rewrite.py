"""The slow path: batches that no broker accepts unchanged, rewritten record by record, exactly.

    thinned by compaction   count < offsets   → one batch per run of existing offsets (A3, A4)
    broker times (bit 3)    LogAppendTime     → the time that readers saw, in every record, as CreateTime (A7)
    wanted from inside      start > base      → the records from `start` on (A11)

Only the two deltas of each record are read and written; attributes, key, value and headers keep their bytes. Rewriting
is deterministic, so two copiers that read the same batch send the same bytes.

The header of a batch of 1 MiB can announce 32 GiB, or a hundred million records. A batch beyond `MOST_BYTES` or
`MOST_RECORDS` is not begun, and stops only its partition, with a named error.

Long rewrites run in a thread (`mirror.copy.reading`), while another thread sends leases and heartbeats. Threads switch
only between steps, so no step may take long: memory is copied in pieces, and no list, slow to free, holds all records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
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
    "Packer",
    "Run",
    "contents",
    "decompress",
    "effort",
    "needs_rewriting",
    "record_keys",
    "rewrite",
    "split_first",
]

MOST_BYTES = 256 << 20
"""Most bytes of a batch after decompression; brokers have no such limit.

A Java producer's record has at most max.request.size, 1 MiB unless raised; small records fill batch.size compressed.
"""
MOST_RECORDS = 1_000_000
"""Most records of a batch that is rewritten, which takes some seconds. Our own filler batches have as many records."""
_FULL = 16 << 20
"""Uncompressed size at which a rewritten batch is full, unless a single record is larger.

Otherwise a batch that the producer compressed better than we do could outgrow the size that the target accepts.
"""
_PIECE = 4 << 20
"""Bytes of memory that one step copies."""
_TOP = 1 << 63
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = _XERIAL + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10
_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Run:
    """A new batch for offsets start … end − 1 without a gap; the producer fields are blank."""

    start: int
    end: int
    max_timestamp: int
    view: memoryview


def needs_rewriting(batch: Batch) -> bool:
    """Return whether a data batch cannot be appended unchanged."""
    return batch.count != batch.last_offset_delta + 1 or bool(batch.attributes & LOG_APPEND_TIME)


def effort(batch: Batch) -> int:
    """Return the number of small records that take as long to rewrite as this batch, judged by the batch's header."""
    size = len(batch.view)
    return batch.count + (size if batch.codec else size // 64)


def rewrite(batch: Batch, start: int) -> list[Run]:
    """Return the records of `batch` from offset `start` on as batches without gaps; none if compaction left no record.

    Raise ProtocolViolation if the batch is not what its header says.
    """
    stamped = bool(batch.attributes & LOG_APPEND_TIME)
    packer = Packer(
        batch.attributes & ~LOG_APPEND_TIME,
        leader_epoch=batch.leader_epoch,
        base_timestamp=batch.max_timestamp if stamped else batch.base_timestamp,
    )
    for offset, timestamp, attributes, rest in _records(batch):
        if offset >= start:
            packer.add(offset, timestamp, attributes, rest)
    return packer.ended()


def split_first(batch: Batch) -> tuple[Run, Run] | None:
    """Return the first record of a batch without gaps, and the other records; None if there are no two such batches.

    The second batch is never larger than the whole batch, so that a broker that accepts the whole also accepts both.
    """
    if batch.count < 2 or needs_rewriting(batch):
        return None
    packers = [
        Packer(batch.attributes, leader_epoch=batch.leader_epoch, base_timestamp=batch.base_timestamp) for _ in range(2)
    ]
    for offset, timestamp, attributes, rest in _records(batch):
        packers[offset > batch.base_offset].add(offset, timestamp, attributes, rest)
    (first,), others = (packer.ended() for packer in packers)
    return (first, others[0]) if len(others) == 1 and len(others[0].view) <= len(batch.view) else None


def contents(batch: Batch) -> dict[int, tuple[int, bytes]]:
    """Return the data that readers see, by offset: the timestamp, and the bytes of key, value and headers."""
    return {offset: (timestamp, bytes(rest)) for offset, timestamp, _, rest in _records(batch)}


def record_keys(batch: Batch, most: int) -> Iterator[bytes | None]:
    """Yield the key of each record; raise ProtocolViolation if the records take more than `most` bytes uncompressed."""
    for _, _, _, rest in _records(batch, most):
        try:
            size, at = read_varint(rest, 0)
            key = None if size < 0 else bytes(rest[at : at + size])
        except IndexError:
            raise ProtocolViolation("short-record", f"a record at {batch.base_offset} has no key") from None
        yield key


class Packer:
    """Packs records, in the order of their offsets, into batches; a gap or a full batch begins a new batch.

    Timestamp deltas count from `base_timestamp`, or without it from the first record of each batch.
    """

    def __init__(self, attributes: int, *, leader_epoch: int, base_timestamp: int | None = None) -> None:
        self._attributes = attributes
        self._leader_epoch = leader_epoch
        self._fixed = base_timestamp
        self._runs: list[Run] = []
        self._records = bytearray()
        self._start = self._next = -1
        self._base_timestamp = self._newest = 0

    def add(self, offset: int, timestamp: int, attributes: int, rest: bytes | memoryview) -> None:
        """Add a record; `rest` is key, value and headers, lengths included."""
        records = self._records
        if offset != self._next or len(records) + len(rest) > _FULL:
            records = self._begin(offset, timestamp)
        if timestamp > self._newest:
            self._newest = timestamp
        delta = _signed(timestamp - self._base_timestamp)
        head = bytes((attributes,)) + zigzag(delta) + zigzag(offset - self._start)
        records += zigzag(len(head) + len(rest)) + head
        records += rest
        self._next = offset + 1

    def ended(self) -> list[Run]:
        """Return all batches."""
        self._end()
        return self._runs

    def _begin(self, offset: int, timestamp: int) -> bytearray:
        self._end()
        self._records = bytearray()
        self._start, self._newest = offset, timestamp
        self._base_timestamp = timestamp if self._fixed is None else self._fixed
        return self._records

    def _end(self) -> None:
        if not self._records:
            return
        payload = _compress(self._attributes & CODEC_MASK, self._records)
        made = assemble(
            payload,
            count=self._next - self._start,
            attributes=self._attributes,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._newest,
            leader_epoch=self._leader_epoch,
        )
        self._runs.append(Run(self._start, self._next, self._newest, memoryview(made)))


def _signed(value: int) -> int:
    """Return a number wrapped to 64 bits, as Java's readers wrap the distance of timestamps too far apart."""
    return value if -_TOP <= value < _TOP else (value + _TOP) % (2 * _TOP) - _TOP


def _records(batch: Batch, most: int = MOST_BYTES) -> Iterator[tuple[int, int, int, memoryview]]:
    """Yield offset, visible timestamp, attributes, and the bytes of key, value and headers of each record."""
    if batch.count > MOST_RECORDS:
        raise ProtocolViolation(
            "too-many-records", f"the batch at {batch.base_offset} says that it holds {batch.count} records"
        )
    stamped = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else None
    data = memoryview(decompress(batch.codec, batch.view[HEADER_SIZE:], most))
    at, before = 0, -1
    try:
        for _ in range(batch.count):
            size, at = read_varint(data, at)
            end = at + size
            attributes = data[at]
            timestamp_delta, at = read_varint(data, at + 1)
            offset_delta, at = read_varint(data, at)
            if at > end or end > len(data):
                raise IndexError
            if not before < offset_delta <= batch.last_offset_delta:
                raise ProtocolViolation(
                    "odd-record", f"a record of the batch at {batch.base_offset} says that it is number {offset_delta}"
                )
            before = offset_delta
            timestamp = _signed(batch.base_timestamp + timestamp_delta) if stamped is None else stamped
            yield batch.base_offset + offset_delta, timestamp, attributes, data[at:end]
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


def decompress(codec: int, payload: memoryview, most: int = MOST_BYTES) -> bytearray | memoryview:
    """Return a batch's records without compression; raise ProtocolViolation if they take more than `most` bytes."""
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


def _compress(codec: int, payload: bytearray) -> bytes | memoryview:
    return _PACK[codec](payload) if codec else memoryview(payload)


def _unpack_into(codec: ModuleType) -> Callable[[memoryview, int], bytearray]:
    """Return a decompressor into a map, whose pages cost memory only when filled: a header may lie about the size."""

    def unpack(payload: memoryview, most: int) -> bytearray:
        out = bytearray()
        with mmap(-1, most, MAP_PRIVATE | MAP_ANONYMOUS) as room:
            size = codec.decompress_into(payload, room)
            for at in range(0, size, _PIECE):
                out += room[at : min(at + _PIECE, size)]
        return out

    return unpack


def _snappy_unpack(payload: memoryview, most: int) -> memoryview | bytearray:
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


def _snappy_block(block: memoryview, most: int) -> memoryview:
    """Decompress a block after a check of its announced size, because the library allocates that size first."""
    if (size := cramjam.snappy.decompress_raw_len(block)) > most:
        raise ValueError(f"a snappy block of {size} bytes is too large")
    return memoryview(cramjam.snappy.decompress_raw(block))


def _snappy_pack(payload: bytearray) -> bytes:
    out = bytearray(_XERIAL_HEAD)
    for at in range(0, len(payload), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(payload[at : at + _XERIAL_BLOCK]))
        out += _SIZE.pack(len(block)) + block
    return bytes(out)


_UNPACK: dict[int, Callable[[memoryview, int], bytearray | memoryview]] = {
    _GZIP: _unpack_into(cramjam.gzip),
    _SNAPPY: _snappy_unpack,
    _LZ4: _unpack_into(cramjam.lz4),
    _ZSTD: _unpack_into(cramjam.zstd),
}


def _lz4_pack(payload: bytearray) -> bytes:
    # Java's reader refuses frames with linked blocks.
    packer = cramjam.lz4.Compressor(level=4, content_checksum=False, block_linked=False)
    for at in range(0, len(payload), _PIECE):
        packer.compress(bytes(payload[at : at + _PIECE]))
    return bytes(packer.finish())


_PACK: dict[int, Callable[[bytearray], bytes]] = {
    _GZIP: lambda payload: bytes(cramjam.gzip.compress(payload)),
    _SNAPPY: _snappy_pack,
    _LZ4: _lz4_pack,
    _ZSTD: lambda payload: bytes(cramjam.zstd.compress(payload, level=3)),
}
