"""Small batches merged, judged by another project's codec, which builds the batches and reads the merged batches."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import Batch, check_crc, walk
from kmigrate.records.merge import Stretch, merge, pieces

_DAY = 86_400_000
_NOW = 1_760_000_000_000


@dataclass(frozen=True)
class Plain:
    """A record as a producer writes a record."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def built(base: int, records: list[Plain], *, epoch: int = 3) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, 0, 0, 4711, 0, 0, 1 << 24)
    for number, record in enumerate(records):
        assert builder.append(number, record.timestamp, record.key, record.value, list(record.headers))
    data = bytearray(builder.build())
    struct.pack_into(">qii", data, 0, base, len(data) - 12, epoch)
    return data


def read(view: memoryview, base: int) -> list[tuple[int, Plain]]:
    batch = DefaultRecordBatch(bytearray(view))
    assert batch.validate_crc()
    return [
        (base + record.offset, Plain(record.timestamp, record.key, record.value, tuple(record.headers)))
        for record in batch
    ]


def log_of(batches: list[list[Plain]], start: int = 0) -> tuple[memoryview, list[tuple[int, Plain]]]:
    """Return a partition's bytes, and the records that a reader gets from each batch."""
    data, told, base = bytearray(), [], start
    for records in batches:
        batch = built(base, records)
        data += batch
        told += read(memoryview(batch), 0)
        base += len(records)
    return memoryview(data), told


def _records(count: int, size: int = 20, at: int = _NOW) -> list[Plain]:
    return [Plain(at + number, b"k%d" % number, b"v" * size) for number in range(count)]


_PLAIN = st.builds(
    Plain,
    timestamp=st.one_of(
        st.integers(_NOW - 400 * _DAY, _NOW + 400 * _DAY), st.sampled_from([0, -1, 1, (1 << 62), _NOW])
    ),
    key=st.none() | st.binary(max_size=80),
    value=st.none() | st.binary(max_size=300),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=10)), max_size=3).map(tuple),
)


@settings(max_examples=60)
@given(st.lists(st.lists(_PLAIN, min_size=1, max_size=12), min_size=16, max_size=40), st.integers(0, 1 << 40))
def test_every_record_keeps_offset_time_key_value_and_headers(batches: list[list[Plain]], start: int) -> None:
    data, told = log_of(batches, start)
    (stretch,) = pieces(data, start)
    assert isinstance(stretch, Stretch)
    runs = merge(stretch)
    assert [found for run in runs for found in read(run.view, run.start)] == told
    assert [run.start for run in runs[1:]] == [run.end for run in runs[:-1]]
    assert max(run.max_timestamp for run in runs) == max(record.timestamp for _, record in told)


def test_merged_batches_grow_to_64_kib_and_no_further() -> None:
    data, told = log_of([_records(8, 100)] * 300)
    (stretch,) = pieces(data, 0)
    assert isinstance(stretch, Stretch)
    runs = merge(stretch)
    sizes = [len(run.view) for run in runs]
    assert max(sizes) <= (64 << 10) + (2 << 10)
    assert min(sizes[:-1]) > 60 << 10
    assert sum(run.end - run.start for run in runs) == len(told)


def test_offset_deltas_wider_than_a_byte_are_read_and_written() -> None:
    data, told = log_of([_records(32, 1)] * 40)
    (stretch,) = pieces(data, 0)
    assert isinstance(stretch, Stretch)
    assert [found for run in merge(stretch) for found in read(run.view, run.start)] == told


def test_the_same_stretch_gives_the_same_bytes() -> None:
    data, _ = log_of([_records(8)] * 40)
    once, again = (merge(piece) for _ in range(2) for piece in pieces(data, 0) if isinstance(piece, Stretch))
    assert [bytes(run.view) for run in once] == [bytes(run.view) for run in again]


def _attributes(data: bytearray, value: int) -> bytearray:
    struct.pack_into(">h", data, 21, value)
    _seal(memoryview(data))
    return data


def _seal(view: memoryview) -> None:
    """Make the CRC fit, as the producer of such a batch would."""
    struct.pack_into(">I", view, 17, crc32c(view[21:]))


@pytest.mark.parametrize(
    ("what", "odd"),
    [
        ("transactional", lambda base: _attributes(built(base, _records(8)), 0x10)),
        ("control", lambda base: _attributes(built(base, _records(8)), 0x30)),
        ("broker time", lambda base: _attributes(built(base, _records(8)), 0x08)),
        ("delete horizon", lambda base: _attributes(built(base, _records(8)), 0x40)),
        ("compressed", lambda base: _attributes(built(base, _records(8)), 0x04)),
        ("many records", lambda base: built(base, _records(33))),
        ("large", lambda base: built(base, _records(8, 4000))),
    ],
)
def test_other_batches_are_left_alone_and_end_a_stretch(what: str, odd: object) -> None:
    assert callable(odd)
    before, _ = log_of([_records(4)] * 20)
    lone = odd(80)
    count = next(walk(memoryview(lone))).count
    after, _ = log_of([_records(4)] * 20, 80 + count)
    found = list(pieces(memoryview(bytearray(before) + lone + bytearray(after)), 0))
    assert [type(piece) for piece in found] == [Stretch, Batch, Stretch], what
    assert isinstance(found[1], Batch) and bytes(found[1].view) == bytes(lone)


def test_a_gap_a_barrier_and_the_start_each_end_a_stretch() -> None:
    first, _ = log_of([_records(4)] * 20)
    second, _ = log_of([_records(4)] * 20, 100)
    gapped = memoryview(bytearray(first) + bytearray(second))
    assert [len(piece.heads) for piece in pieces(gapped, 0) if isinstance(piece, Stretch)] == [20, 20]
    whole, _ = log_of([_records(4)] * 40)
    assert [len(piece.heads) for piece in pieces(whole, 0, 80) if isinstance(piece, Stretch)] == [20, 20]
    from_inside = list(pieces(whole, 6))
    assert [isinstance(piece, Batch) for piece in from_inside] == [True, True, False]


def test_batches_up_to_the_last_offset_there_is_come_one_by_one() -> None:
    """No broker has such batches; an end beyond 64 bits would also end the copy of all other partitions."""
    start = (1 << 63) - 80
    data, _ = log_of([_records(4)] * 20, start)
    found = list(pieces(data, 0))
    assert [piece.base_offset for piece in found] == [start, (1 << 63) - 4]
    assert isinstance(found[0], Stretch) and merge(found[0])[-1].end == (1 << 63) - 4


def test_few_batches_and_a_damaged_one_come_one_by_one() -> None:
    few, _ = log_of([_records(4)] * 15)
    assert all(isinstance(piece, Batch) for piece in pieces(few, 0))
    data = bytearray(log_of([_records(4)] * 40)[0])
    victim = list(walk(memoryview(data)))[20]
    victim.view[-1] ^= 1
    kinds = [piece for piece in pieces(memoryview(data), 0) if isinstance(piece, Batch)]
    assert [batch.base_offset for batch in kinds] == [80]
    assert not check_crc(kinds[0].view)


@pytest.mark.parametrize("at", [61, 64])
def test_a_batch_that_belies_its_header_is_refused(at: int) -> None:
    """The CRC fits, so a producer sent these bytes; byte 61 is the first record's length, 64 its offset delta."""
    data = bytearray(log_of([_records(4)] * 40)[0])
    batch = list(walk(memoryview(data)))[7]
    batch.view[at] ^= 0x02
    _seal(batch.view)
    (stretch,) = pieces(memoryview(data), 0)
    assert isinstance(stretch, Stretch)
    with pytest.raises(ProtocolViolation, match="does not hold the records"):
        merge(stretch)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 39), st.integers(61, 400), st.integers(1, 255)), min_size=1, max_size=3))
def test_bytes_that_a_broker_never_looked_at_are_refused_or_say_the_same(flips: list[tuple[int, int, int]]) -> None:
    """The batches fit their CRC, whatever the contents: a merged batch holds what a reader finds in the originals."""
    data, _ = log_of([_records(4, 3)] * 40)
    batches = list(walk(data))
    for number, at, bits in flips:
        view = batches[number].view
        view[61 + (at - 61) % (len(view) - 61)] ^= bits
        _seal(view)
    (stretch,) = pieces(data, 0)
    assert isinstance(stretch, Stretch)
    try:
        runs = merge(stretch)
    except ProtocolViolation:
        return
    made = [DefaultRecordBatch(bytearray(run.view)) for run in runs]
    assert all(batch.validate_crc() for batch in made)
    try:
        told = [found for batch in batches for found in read(batch.view, 0)]
    except (CorruptRecordException, UnicodeDecodeError, ValueError):
        return  # unreadable records are passed on unchanged
    assert [found for run in runs for found in read(run.view, run.start)] == told
