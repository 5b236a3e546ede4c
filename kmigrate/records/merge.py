"""Merging of many small batches, because a broker spends some 30 µs on every batch, however small.

A stretch of small plain batches is sent as a few larger batches. Plain batches follow each other without a gap, have no
codec and no transaction, and have their producers' timestamps. Records keep their offset and timestamp; attributes,
key, value and headers keep their bytes. The rewritten length and deltas mean the same to every reader.

numpy finds the records of a whole stretch at a time: the first record of every batch, then the second, and so on. numpy
also writes a field of all records at a time. So all batches share the cost of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import HEADER_SIZE, Batch, assemble, places
from kmigrate.records.old_messages import OldMessages, walk_all
from kmigrate.records.rewrite import Run

__all__ = ["LARGEST_MERGED", "Stretch", "merge", "pieces"]

_FEW = 16
"""Fewest batches that are worth the numpy calls."""
_MOST_RECORDS = 32
"""Most records of a small batch; more cost a broker little per record, and need many numpy steps for few batches."""
LARGEST_MERGED = 16 << 10
"""Most bytes of a small batch."""
_FULL = 64 << 10
"""Size of a full merged batch: the size that a well-tuned producer's batch.size gives."""
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_SUMMED_AT = 21
"""Position of the first byte under the CRC."""
_BEFORE_LENGTH = 12
"""Bytes of a batch that the batch length does not count."""
_WORD = np.dtype("<u8")
"""Bytes that are read at once: most varints and the bytes behind them."""
_LAST = (1 << 63) - 1
"""Largest possible offset; a batch that claims to go beyond has no valid end."""
_LONGEST = 10
"""Most bytes of a varint."""

_Ints = NDArray[np.int64]
_Raw = NDArray[np.uint64]
"""Varints as written; signed values are in zigzag."""
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive small plain batches with correct CRCs and without a gap in the offsets."""

    view: memoryview
    heads: NDArray[Any]
    """The headers of the batches, field by field."""

    @property
    def base_offset(self) -> int:
        return int(self.heads["base_offset"][0])

    @property
    def next_offset(self) -> int:
        return self.base_offset + int(self.heads["count"].sum())

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last batch."""
        return int(self.heads["leader_epoch"][-1])


def pieces(data: memoryview, start: int, barrier: int | None = None) -> Iterator[Batch | OldMessages | Stretch]:
    """Yield as `walk_all`, but long mergeable runs as `Stretch`; none begins before `start` or crosses `barrier`."""
    at = 0
    for begin, stretch in _stretches(data, start, barrier):
        yield from walk_all(data[at:begin])
        yield stretch
        at = begin + len(stretch.view)
    yield from walk_all(data[at:])


def _stretches(data: memoryview, start: int, barrier: int | None) -> Iterator[tuple[int, Stretch]]:
    """Yield the position and the stretch for each stretch of a records field."""
    bounds = places(data)
    if len(bounds) <= _FEW:
        return  # the usual case with large batches
    at = np.array(bounds)
    heads = _words(np.frombuffer(data, np.uint8), _HEADER)[at[:-1]]
    bases, counts = heads["base_offset"].astype(np.int64), heads["count"].astype(np.int64)
    fits = (heads["attributes"] == 0) & (counts == heads["last_offset_delta"].astype(np.int64) + 1)
    fits &= (counts > 0) & (counts <= _MOST_RECORDS) & (np.diff(at) <= LARGEST_MERGED) & (bases >= start)
    fits &= bases <= _LAST - counts
    small = np.flatnonzero(fits)
    if len(small) < _FEW:
        return
    sums = [crc32c(data[bounds[number] + _SUMMED_AT : bounds[number + 1]]) for number in small.tolist()]
    fits[small] = heads["crc"][small] == sums
    follows = fits[1:] & fits[:-1] & (bases[1:] == bases[:-1] + counts[:-1]) & (bases[1:] != barrier)
    firsts = np.flatnonzero(fits & ~np.append(False, follows)).tolist()
    ends = (np.flatnonzero(fits & ~np.append(follows, False)) + 1).tolist()
    for first, end in zip(firsts, ends, strict=True):
        if end - first >= _FEW:
            yield bounds[first], Stretch(data[bounds[first] : bounds[end]], heads[first:end])


@dataclass(frozen=True, slots=True)
class _Records:
    """All records of a stretch, column by column."""

    attributes: _Bytes
    timestamps: _Ints
    rest_at: _Ints
    """Position of key, value and headers in the stretch's data; `rest_sizes` has the number of bytes."""
    rest_sizes: _Ints


def merge(stretch: Stretch) -> list[Run]:
    """Return the stretch's records as batches of about 64 KiB; raise ProtocolViolation if a header is wrong."""
    heads = stretch.heads
    base_times = heads["base_timestamp"].astype(np.int64)
    data = np.frombuffer(b"".join((stretch.view, bytes(2 * _WORD.itemsize))), np.uint8)
    records = _find(data, heads, base_times)
    bounds = _bounds(heads["length"].tolist())
    first = np.append(0, np.cumsum(heads["count"], dtype=np.int64))[bounds]
    per_run = np.diff(first)
    time_deltas = records.timestamps - np.repeat(base_times[bounds[:-1]], per_run)
    payload, at = _written(data, records, time_deltas, np.arange(first[-1]) - np.repeat(first[:-1], per_run))
    newest = np.maximum.reduceat(heads["max_timestamp"].astype(np.int64), bounds[:-1]).tolist()
    ends, offsets = at[first].tolist(), (stretch.base_offset + first).tolist()
    runs = []
    for number, (one, next_) in enumerate(pairwise(bounds)):
        made = assemble(
            payload[ends[number] : ends[number + 1]],
            count=offsets[number + 1] - offsets[number],
            attributes=0,
            base_timestamp=int(base_times[one]),
            max_timestamp=newest[number],
            leader_epoch=int(heads["leader_epoch"][next_ - 1]),
        )
        runs.append(Run(offsets[number], offsets[number + 1], newest[number], memoryview(made)))
    return runs


def _bounds(lengths: list[int]) -> list[int]:
    """Return the index of each batch that begins a run, and the number of batches."""
    bounds = [0]
    size = 0
    for number, length in enumerate(lengths):
        size += length
        if size > _FULL and number > bounds[-1]:
            bounds.append(number)
            size = length
    bounds.append(len(lengths))
    return bounds


# reading


def _find(data: _Bytes, heads: NDArray[Any], base_times: _Ints) -> _Records:
    """Return the records of the batches in `data`; two words of padding follow the batches."""
    sizes = heads["length"].astype(np.int64) + _BEFORE_LENGTH
    counts = heads["count"].astype(np.int64)
    limits = np.cumsum(sizes)
    numbers = np.cumsum(counts) - counts
    try:
        bodies, ends = _extents(data, limits - sizes + HEADER_SIZE, limits, counts, numbers)
        raw_deltas, taken = _varints(data, bodies + 1)
        offsets_at = bodies + 1 + taken
        steps = np.arange(len(bodies)) - np.repeat(numbers, counts)
        # Offset deltas take a byte each: no batch has more than _MOST_RECORDS.
        if (data[offsets_at] != steps << 1).any() or (offsets_at + 1 >= ends).any():
            raise IndexError
    except IndexError:
        first = int(heads["base_offset"][0])
        raise ProtocolViolation(
            "odd-record", f"a batch at or after offset {first} does not hold the records that its header names"
        ) from None
    rest_at = offsets_at + 1
    timestamps = np.repeat(base_times, counts) + _signed(raw_deltas)
    return _Records(data[bodies], timestamps, rest_at, ends - rest_at)


def _extents(data: _Bytes, at: _Ints, limits: _Ints, counts: _Ints, numbers: _Ints) -> tuple[_Ints, _Ints]:
    """Return the position behind each record's length, and the position of each record's end.

    `at`, `limits`: where each batch's records begin and end; `counts`: their number; `numbers`: index of the first.
    """
    bodies, ends = np.empty((2, int(counts.sum())), np.int64)
    for step in range(int(counts.max())):
        if (done := counts == step).any():
            if (at[done] != limits[done]).any():
                raise IndexError
            at, limits, counts, numbers = (each[~done] for each in (at, limits, counts, numbers))
        length, taken = _varints(data, at)
        body = at + taken
        at = body + _signed(length)
        if (at <= body).any() or (at > limits).any():
            raise IndexError
        bodies[numbers + step] = body
        ends[numbers + step] = at
    if (at != limits).any():
        raise IndexError
    return bodies, ends


def _varints(data: _Bytes, at: _Ints) -> tuple[_Raw, _Ints]:
    """Return the varint at each position, and the number of bytes of each varint."""
    word: _Raw = _words(data, _WORD)[at]
    raw: _Raw = word & np.uint64(0x7F)
    sizes = np.ones(len(at), np.int64)
    more = word & 0x80 != 0
    for number in range(1, _LONGEST + 1):
        if not more.any():
            return raw, sizes
        word = word >> np.uint64(8) if number % _WORD.itemsize else _words(data, _WORD)[at + number]
        raw |= np.where(more, word & 0x7F, 0) << np.uint64(7 * number)
        sizes += more
        more &= word & 0x80 != 0
    raise IndexError


def _signed(raw: _Raw) -> _Ints:
    return (raw >> 1).astype(np.int64) ^ -(raw & 1).astype(np.int64)


# writing


def _written(data: _Bytes, records: _Records, time_deltas: _Ints, offset_deltas: _Ints) -> tuple[memoryview, _Ints]:
    """Return the records with these deltas in a row, the position of each record, and the end of the last."""
    times, offsets = _zigzag(time_deltas), _zigzag(offset_deltas)
    time_sizes, offset_sizes = _sizes(times), _sizes(offsets)
    sizes = 1 + time_sizes + offset_sizes + records.rest_sizes
    lengths = _zigzag(sizes)
    length_sizes = _sizes(lengths)
    at = np.concatenate(([0], np.cumsum(length_sizes + sizes)))
    out = np.empty(at[-1], np.uint8)
    place = at[:-1]
    _put(out, place, lengths, length_sizes)
    place = place + length_sizes
    out[place] = records.attributes
    place += 1
    _put(out, place, times, time_sizes)
    place += time_sizes
    _put(out, place, offsets, offset_sizes)
    place += offset_sizes
    _move(data, records.rest_at, out, place, records.rest_sizes)
    return out.data, at


def _move(data: _Bytes, at: _Ints, out: _Bytes, to: _Ints, sizes: _Ints) -> None:
    """Copy a piece of each size to its new position, as two words: one at the piece's start, one at the piece's end.

    The word is the widest power of two within the piece: numpy spends some 10 ns on each word of any width.
    """
    widths = np.frexp(sizes)[1]
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        word = np.dtype((np.void, 1 << (int(width) - 1)))
        source, sink = _words(data, word), _words(out, word)
        from_, place, rest = at[chosen], to[chosen], sizes[chosen] - word.itemsize
        sink[place] = source[from_]
        sink[place + rest] = source[from_ + rest]


def _words(data: _Bytes, word: np.dtype[Any]) -> NDArray[Any]:
    """Return the word that begins at each byte, up to the last whole word."""
    return np.ndarray((max(0, len(data) - word.itemsize + 1),), word, data, strides=(1,))


def _zigzag(values: _Ints) -> _Raw:
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _sizes(raw: _Raw) -> _Ints:
    """Return the number of bytes that each value takes as a varint."""
    sizes = np.ones(len(raw), np.int64)
    rest = raw >> 7
    while rest.any():
        sizes += rest > 0
        rest >>= 7
    return sizes


def _put(out: _Bytes, at: _Ints, raw: _Raw, sizes: _Ints) -> None:
    """Write each value as a varint of the given size at the given position."""
    for number in range(int(sizes.max())):
        if (done := sizes == number).any():
            at, raw, sizes = at[~done], raw[~done], sizes[~done]
        out[at + number] = (raw & 0x7F | (sizes > number + 1).astype(np.uint64) << 7).astype(np.uint8)
        raw = raw >> np.uint64(7)
