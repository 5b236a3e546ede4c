"""The record batch (magic 2): kmigrate reads and writes the header by hand, and never touches the records.

    offset  size  field
         0     8  base offset                  not under the CRC
         8     4  batch length (bytes after this field)
        12     4  partition leader epoch       not under the CRC
        16     1  magic (2)
        17     4  CRC-32C of all bytes after this field
        21     2  attributes: 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
        23     4  last offset delta
        27     8  base timestamp
        35     8  max timestamp
        43     8  producer id
        51     2  producer epoch
        53     4  base sequence
        57     4  record count
        61     …  records

All hand-written offsets live in this package. `Batch` is a view that copies nothing; `stamp` writes in place.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from crc32c import crc32c

from kmigrate.errors import ProtocolViolation
from kmigrate.model.ids import SEQUENCES
from kmigrate.records.crc import crc_of_change_again, crc_of_changed_head

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "DELETE_HORIZON",
    "HEADER_SIZE",
    "LOG_APPEND_TIME",
    "TRANSACTIONAL",
    "Batch",
    "Plain",
    "assemble",
    "check_crc",
    "extent",
    "next_sequence",
    "places",
    "producer_epoch",
    "row",
    "stamp",
    "translate",
    "walk",
    "whole_batch",
]

HEADER_SIZE = 61
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qii")
"""Base offset, length and leader epoch."""
_LENGTH = struct.Struct(">8xi4xb")
"""Length and magic."""
_EXTENT = struct.Struct(">qiib6xi")
"""Base offset, length, leader epoch, magic, last offset delta."""
_HEAD = struct.Struct(">qiibI")
_TAIL = struct.Struct(">hiqqqhii")
"""The header fields behind the CRC field; `_HEAD` has the fields up to the CRC."""
_PRODUCER = struct.Struct(">qhi")
_EPOCH = struct.Struct(">h")
_PLAIN = struct.Struct(">qiib4xhi8xqq6xi")
"""Base offset, length, leader epoch, magic, attributes, last offset delta, max timestamp, producer id, count."""
_CRC = struct.Struct(">I")
_SUMMED = struct.Struct(">Ih")
"""CRC and attributes."""
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER_ID = struct.Struct(">q")
_WRITTEN = struct.Struct(">8xi4xb4xhi16xqhi")
"""Length, magic, attributes, last offset delta, producer id, epoch and base sequence."""


Plain = tuple[int, int, int, int, int, int, memoryview]
"""First offset, next offset, max timestamp, producer id, attributes, leader epoch, all bytes."""


@dataclass(slots=True)
class Batch:
    """A batch as its header fields and a view of all its bytes; not frozen, because that doubles the cost of a walk."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    view: memoryview

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; −1 if the batch has no producer id."""
        if self.base_sequence < 0:
            return -1
        return next_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records later, wrapped as brokers wrap sequences."""
    return (sequence + count) % SEQUENCES


def walk(data: memoryview, *, until_old: bool = False) -> Iterator[Batch]:
    """Yield batches up to a cut-off last batch (A11); with `until_old` magic 0 or 1 ends the walk, else is an error."""
    at = 0
    end = len(data)
    while at + HEADER_SIZE <= end:
        (
            base,
            length,
            epoch,
            magic,
            _,
            attributes,
            delta,
            first,
            newest,
            producer,
            producer_epoch,
            sequence,
            count,
        ) = _HEADER.unpack_from(data, at)
        stop = at + 12 + length
        if stop > end and length >= HEADER_SIZE - 12:
            return
        if magic < 2 and until_old:
            return
        if magic < 2:
            raise ProtocolViolation("old-message-format", f"the batch at offset {base} has message format {magic}")
        if length < HEADER_SIZE - 12:
            raise ProtocolViolation("bad-batch-length", f"the batch at offset {base} says length {length}")
        if magic > 2:
            raise ProtocolViolation("unknown-message-format", f"the batch at offset {base} has message format {magic}")
        yield Batch(
            base,
            epoch,
            attributes,
            delta,
            first,
            newest,
            producer,
            producer_epoch,
            sequence,
            count,
            data[at:stop],
        )
        at = stop


def row(data: memoryview, offset: int, until: int, more_than: int) -> tuple[list[Plain], int]:
    """Return the leading batches of a records field that need no change, and the position in bytes behind them.

    All batches end at the offset `until` at the latest.
    From `offset` on there is no gap. Each batch has all its records, and none has broker timestamps. A batch without
    attributes has over `more_than` bytes, because smaller batches can be merged. A control batch has a correct CRC.
    `walk` reads the rest; `row` is much cheaper than `walk`.
    """
    found: list[Plain] = []
    at, end = 0, len(data)
    while at + HEADER_SIZE <= end:
        base, length, epoch, magic, attributes, delta, newest, producer, count = _PLAIN.unpack_from(data, at)
        stop = at + 12 + length
        if base != offset or magic != 2 or count != delta + 1 or count <= 0 or base + count > until or stop > end:
            break
        if length < HEADER_SIZE - 12 or attributes & LOG_APPEND_TIME or not (attributes or stop - at > more_than):
            break
        view = data[at:stop]
        if attributes & CONTROL and not check_crc(view):
            break
        offset += count
        found.append((base, offset, newest, producer, attributes, epoch, view))
        at = stop
    return found, at


def places(data: memoryview) -> list[int]:
    """Return each whole batch's byte position, and the end; all but magic 2 ends the list. Much cheaper than `walk`."""
    out = [0]
    at, end = 0, len(data)
    while at + HEADER_SIZE <= end:
        length, magic = _LENGTH.unpack_from(data, at)
        at += 12 + length
        if magic != 2 or length < HEADER_SIZE - 12 or at > end:
            break
        out.append(at)
    return out


def extent(data: bytearray, at: int, stop: int, most: int) -> tuple[int, int, int] | None:
    """Return first offset, next offset and leader epoch of the whole batches between two positions, or −1 for each.

    Return None for more than `most`, an old format, or a wrong length. `extent` is much cheaper than `walk`.
    """
    first = end = epoch = -1
    while at + HEADER_SIZE <= stop:
        base, length, leader_epoch, magic, delta = _EXTENT.unpack_from(data, at)
        most -= 1
        if magic != 2 or length < HEADER_SIZE - 12 or most < 0:
            return None
        at += 12 + length
        if at > stop:
            break
        end, epoch = base + delta + 1, leader_epoch
        if first < 0:
            first = base
    return first, end, epoch


def whole_batch(data: memoryview) -> tuple[int, int, int, int, int] | None:
    """Return attributes, last offset delta, producer id, epoch and base sequence of exactly one batch; else None."""
    if len(data) < HEADER_SIZE:
        return None
    length, magic, attributes, delta, producer_id, epoch, sequence = _WRITTEN.unpack_from(data)
    if magic != 2 or length != len(data) - 12:
        return None
    return attributes, delta, producer_id, epoch, sequence


def producer_epoch(view: memoryview) -> int:
    """Return the producer epoch in a batch's header."""
    return int(_EPOCH.unpack_from(view, 51)[0])


def assemble(
    payload: bytes | memoryview,
    *,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    leader_epoch: int = -1,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytearray:
    """Return a new batch around `count` records without a gap, with base offset 0 as Produce demands (A1)."""
    tail = _TAIL.pack(attributes, count - 1, base_timestamp, max_timestamp, producer_id, epoch, sequence, count)
    crc = crc32c(payload, crc32c(tail))
    head = _HEAD.pack(0, 9 + len(tail) + len(payload), leader_epoch, 2, crc)
    return bytearray().join((head, tail, payload))


def check_crc(view: memoryview) -> bool:
    """Return whether the batch's CRC fits its bytes."""
    return bool(_CRC.unpack_from(view, 17)[0] == crc32c(view[21:]))


def stamp(
    view: memoryview,
    *,
    producer_id: int,
    epoch: int,
    sequence: int,
    clear: int = 0,
    base_offset: int | None = 0,
) -> None:
    """Write a batch's producer fields, clear attribute bits, and adjust the CRC, all in place; a wrong CRC stays wrong.

    Produce demands `base_offset` 0 (A1, M6). With None, base offset and leader epoch stay as they are.
    """
    if base_offset is not None:
        _PLACE.pack_into(view, 0, base_offset, len(view) - 12, -1)
    head = view[21:HEADER_SIZE]
    before = crc32c(head)
    crc, attributes = _SUMMED.unpack_from(view, 17)
    if attributes & clear:
        _ATTRIBUTES.pack_into(view, 21, attributes & ~clear)
    _PRODUCER.pack_into(view, 43, producer_id, epoch, sequence)
    _CRC.pack_into(view, 17, crc_of_changed_head(crc, before, crc32c(head), len(view) - HEADER_SIZE))


def translate(view: memoryview, producer_id: int, shown: int) -> None:
    """Replace a batch's producer id `producer_id` by `shown`, and adjust the CRC as `stamp` does."""
    (crc,) = _CRC.unpack_from(view, 17)
    _PRODUCER_ID.pack_into(view, 43, shown)
    _CRC.pack_into(view, 17, crc_of_change_again(crc, _of_an_id(producer_id, shown), len(view) - HEADER_SIZE))


@lru_cache(maxsize=4096)
def _of_an_id(before: int, after: int) -> int:
    """Return the CRC difference of a new producer id in a batch's head, which the other fields do not change."""
    head = bytearray(HEADER_SIZE - 21)
    _PRODUCER_ID.pack_into(head, 43 - 21, before)
    crc = crc32c(head)
    _PRODUCER_ID.pack_into(head, 43 - 21, after)
    return crc ^ crc32c(head)
