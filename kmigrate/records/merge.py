"""Many small batches made one: what makes small batches dear is a broker's work on each of them, not their bytes.

A broker spends some 30 µs on every batch it stores, however small. A stretch of small, plain batches that follow each
other without a gap (no codec, no transaction, producer times) is therefore sent as few larger ones. Every record keeps
its offset, its timestamp and, byte for byte, its attributes, key, value and headers; what is rewritten of it (length,
timestamp delta, offset delta) says the same to every reader.

Records are found in numpy, a whole stretch at a time: the first record of every batch, then the second of every batch,
and so on, so that all batches share the cost of a step. They are written in numpy, too: a field of all records at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import HEADER_SIZE, Batch, assemble, check_crc
from kmigrate.records.rewrite import Run

__all__ = ["Stretch", "merge", "pieces"]

_FEW = 16
"""Fewer batches than this are not worth the numpy calls."""
_MOST_RECORDS = 32
"""Batches of more records cost a broker little per record, and would make the steps many and thin."""
_MOST_BYTES = 16 << 10
_FULL = 64 << 10
"""Size that merged batches grow to: what a well-tuned producer's batch.size would have given."""
_WORDS = (32, 8, 1)
"""Bytes that are moved at once, the widest first: numpy spends some 10 ns on each move, whatever its width."""

_Other = TypeVar("_Other")
_Ints = NDArray[np.int64]
_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Small plain batches in a row whose CRCs fit, offsets without a gap."""

    batches: list[Batch]


def pieces(
    walked: Iterable[Batch | _Other], start: int, barrier: int | None = None
) -> Iterator[Batch | _Other | Stretch]:
    """What was walked over, but long stretches of mergeable batches as one piece each.

    A batch that begins before offset `start` belongs to no stretch, and none goes on across `barrier`.
    """
    found: list[Batch] = []
    try:
        for each in walked:
            if not isinstance(each, Batch):
                yield from _as_pieces(found)
                found = []
                yield each
                continue
            if found and (each.base_offset != found[-1].next_offset or each.base_offset == barrier):
                yield from _as_pieces(found)
                found = []
            # The first of these is looked at here since most batches are too large for the others to be asked.
            if (
                each.count <= _MOST_RECORDS
                and _is_mergeable(each)
                and each.base_offset >= start
                and check_crc(each.view)
            ):
                found.append(each)
                continue
            if found:
                yield from _as_pieces(found)
                found = []
            yield each
    except ProtocolViolation:
        yield from _as_pieces(found)
        raise
    yield from _as_pieces(found)


def _as_pieces(found: list[Batch]) -> Iterator[Batch | Stretch]:
    if len(found) < _FEW:
        yield from found
    else:
        yield Stretch(found)


def _is_mergeable(batch: Batch) -> bool:
    return (
        0 < batch.count <= _MOST_RECORDS
        and batch.attributes == 0
        and batch.count == batch.last_offset_delta + 1
        and len(batch.view) <= _MOST_BYTES
    )


@dataclass(frozen=True, slots=True)
class _Records:
    """All records of a stretch, column by column."""

    attributes: _Bytes
    timestamps: _Ints
    rest_at: _Ints
    """Where key, value and headers begin in the stretch's data, and where they end."""
    rest_end: _Ints


def merge(stretch: Stretch) -> list[Run]:
    """The stretch's records as batches of about 64 KiB; raises ProtocolViolation where a batch belies its header."""
    batches = stretch.batches
    data = b"".join([batch.view for batch in batches])
    records = _find(data, batches)
    bounds = _bounds(batches)
    counts = np.array([batch.count for batch in batches], np.int64)
    first = np.concatenate(([0], np.cumsum(counts)))[bounds]
    per_run = np.diff(first)
    base_times = np.repeat([batches[at].base_timestamp for at in bounds[:-1]], per_run)
    offsets = np.arange(first[-1]) - np.repeat(first[:-1], per_run)
    payload, at = _written(data, records, records.timestamps - base_times, offsets)
    ends = at[first].tolist()
    return [
        _run(batches[one:next_], payload[start:end])
        for (one, next_), (start, end) in zip(pairwise(bounds), pairwise(ends), strict=True)
    ]


def _bounds(batches: list[Batch]) -> list[int]:
    """Numbers of the batches at which runs begin, and the number of batches."""
    bounds = [0]
    size = 0
    for number, batch in enumerate(batches):
        size += len(batch.view) - HEADER_SIZE
        if size > _FULL and number > bounds[-1]:
            bounds.append(number)
            size = len(batch.view) - HEADER_SIZE
    bounds.append(len(batches))
    return bounds


def _run(batches: list[Batch], payload: memoryview) -> Run:
    start, end = batches[0].base_offset, batches[-1].next_offset
    newest = max(batch.max_timestamp for batch in batches)
    made = assemble(
        payload,
        count=end - start,
        attributes=0,
        base_timestamp=batches[0].base_timestamp,
        max_timestamp=newest,
        leader_epoch=batches[-1].leader_epoch,
    )
    return Run(start, end, newest, memoryview(made))


# reading


def _find(raw: bytes, batches: list[Batch]) -> _Records:
    data = np.frombuffer(raw, np.uint8)
    sizes = np.array([len(batch.view) for batch in batches], np.int64)
    counts = np.array([batch.count for batch in batches], np.int64)
    base_times = np.array([batch.base_timestamp for batch in batches], np.int64)
    limits = np.cumsum(sizes)
    at = limits - sizes + HEADER_SIZE
    numbers = np.cumsum(counts) - counts
    total = int(counts.sum())
    found = _Records(np.empty(total, np.uint8), *(np.empty(total, np.int64) for _ in range(3)))
    alive = np.arange(len(counts))
    try:
        for step in range(int(counts.max())):
            alive = alive[counts[alive] > step]
            length, body = _varints(data, at[alive])
            end = body + length
            time_delta, after = _varints(data, body + 1)
            offset_delta, after = _varints(data, after)
            if (offset_delta != step).any() or (after > end).any() or (end > limits[alive]).any():
                raise IndexError
            number = numbers[alive] + step
            found.attributes[number] = data[body]
            found.timestamps[number] = base_times[alive] + time_delta
            found.rest_at[number] = after
            found.rest_end[number] = end
            at[alive] = end
        if (at != limits).any():
            raise IndexError
    except IndexError:
        first = batches[0].base_offset
        raise ProtocolViolation(
            "odd-record", f"a batch at or after offset {first} does not hold the records that its header names"
        ) from None
    return found


def _varints(data: _Bytes, at: _Ints) -> tuple[_Ints, _Ints]:
    """The signed varint at each of these places, and the places after them."""
    byte = data[at]
    after = at + 1
    raw = (byte & 0x7F).astype(np.uint64)
    more = byte >= 0x80
    shift = 7
    while more.any():
        if shift > 63:
            raise IndexError
        byte = np.where(more, data[np.where(more, after, at)], 0)
        raw |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after += more
        more = byte >= 0x80
        shift += 7
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), after


# writing


def _written(
    data: bytes, records: _Records, time_deltas: _Ints, offset_deltas: _Ints
) -> tuple[memoryview, _Ints]:
    """The records with these deltas, one behind the other, and where each begins and the last one ends."""
    times, offsets = _zigzag(time_deltas), _zigzag(offset_deltas)
    rests = records.rest_end - records.rest_at
    sizes = 1 + _sizes(times) + _sizes(offsets) + rests
    lengths = _zigzag(sizes)
    at = np.concatenate(([0], np.cumsum(_sizes(lengths) + sizes)))
    out = np.empty(at[-1], np.uint8)
    place = _put(out, at[:-1], lengths)
    out[place] = records.attributes
    place = _put(out, place + 1, times)
    place = _put(out, place, offsets)
    _move(np.frombuffer(data, np.uint8), records.rest_at, out, place, rests)
    return out.data, at


def _move(data: _Bytes, at: _Ints, out: _Bytes, to: _Ints, sizes: _Ints) -> None:
    """Copy a piece of each size from its place to its place, in words; the last word of a piece ends where it does."""
    left = np.arange(len(sizes))
    for width in _WORDS:
        wide = sizes[left] >= width
        chosen, left = left[wide], left[~wide]
        size = sizes[chosen]
        words = -(-size // width)
        numbers = np.arange(words.sum()) - np.repeat(np.cumsum(words) - words, words)
        shift = np.minimum(numbers * width, np.repeat(size - width, words))
        taken = _words(data, width)[np.repeat(at[chosen], words) + shift]
        _words(out, width)[np.repeat(to[chosen], words) + shift] = taken


def _words(data: _Bytes, width: int) -> NDArray[np.void]:
    """The words that begin at each byte, up to the last that is whole."""
    return np.ndarray((max(0, len(data) - width + 1),), np.dtype((np.void, width)), data, strides=(1,))


def _zigzag(values: _Ints) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def _sizes(raw: NDArray[np.uint64]) -> _Ints:
    """Bytes that each value takes as a varint."""
    size = np.ones(len(raw), np.int64)
    rest = raw >> np.uint64(7)
    while rest.any():
        size += rest > 0
        rest >>= np.uint64(7)
    return size


def _put(out: _Bytes, at: _Ints, raw: NDArray[np.uint64]) -> _Ints:
    """Write each value as a varint at its place; the places after them."""
    at = at.copy()
    left = np.arange(len(at))
    while True:
        more = raw >= 0x80
        out[at[left]] = (raw & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        at[left] += 1
        if not more.any():
            return at
        left, raw = left[more], raw[more] >> np.uint64(7)
