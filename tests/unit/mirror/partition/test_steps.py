"""Fetched batches become appends, holes, or a named reason to stop."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from itertools import chain

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.mirror.partition import steps
from kmigrate.mirror.partition.steps import Append, Hole, Reading, read_steps
from kmigrate.records.batch import row
from kmigrate.records.merge import LARGEST_MERGED
from tests.unit.mirror.batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, batch, record, zstd_of_zeros

TXN = TRANSACTIONAL
MARKER = CONTROL | TRANSACTIONAL


def read(data: bytes, *, read_at: int, aborted: tuple[tuple[int, int], ...] = ()) -> Reading:
    return read_steps(memoryview(bytearray(data)), aborted, read_at=read_at, leader_epoch=-1, hole_limit=100)


def shape(reading: Reading) -> list[tuple[str, int, int]]:
    return [(type(step).__name__, step.start, step.end) for step in reading.steps]


def test_plain_batches_are_appends_and_the_newest_epoch_is_kept() -> None:
    reading = read(batch(5, 3, epoch=4) + batch(8, 2, epoch=6), read_at=5)
    assert shape(reading) == [("Append", 5, 8), ("Append", 8, 10)]
    assert (reading.next_offset, reading.leader_epoch, reading.problem) == (10, 6, "")


def test_a_batch_cut_off_by_the_byte_limit_is_left_for_the_next_fetch() -> None:
    reading = read(batch(0, 3) + batch(3, 3)[:-1], read_at=0)
    assert shape(reading) == [("Append", 0, 3)]
    assert reading.next_offset == 3


def test_batches_below_the_wanted_offset_are_passed_over() -> None:
    assert shape(read(batch(0, 5) + batch(5, 1), read_at=5)) == [("Append", 5, 6)]


def test_a_commit_marker_is_a_hole_and_the_committed_data_is_copied() -> None:
    data = batch(0, 2, producer=7, attributes=TXN) + batch(2, 1, producer=7, attributes=MARKER)
    assert shape(read(data, read_at=0)) == [("Append", 0, 2), ("Hole", 2, 3)]


def test_aborted_data_and_its_marker_are_one_hole() -> None:
    data = (
        batch(0, 2, producer=7, attributes=TXN)
        + batch(2, 1, producer=8, attributes=TXN)
        + batch(3, 4, producer=7, attributes=TXN)
        + batch(7, 1, producer=7, attributes=MARKER)
        + batch(8, 1, producer=8, attributes=MARKER)
    )
    reading = read(data, read_at=0, aborted=((7, 0),))
    assert shape(reading) == [("Hole", 0, 2), ("Append", 2, 3), ("Hole", 3, 9)]


def test_a_later_abort_of_the_same_producer_does_not_touch_its_committed_data() -> None:
    # W9: a fetch at 9 lists an abort that begins at 14, while 9 to 12 belong to a transaction that commits.
    data = (
        batch(9, 4, producer=7, attributes=TXN)
        + batch(13, 1, producer=7, attributes=MARKER)
        + batch(14, 2, producer=7, attributes=TXN)
        + batch(16, 1, producer=7, attributes=MARKER)
        + batch(17, 1, producer=7, attributes=TXN)
    )
    reading = read(data, read_at=9, aborted=((7, 14),))
    assert shape(reading) == [("Append", 9, 13), ("Hole", 13, 17), ("Append", 17, 18)]


def test_the_aborted_list_may_come_in_any_order() -> None:
    data = b"".join(batch(n, 1, producer=7, attributes=MARKER if n % 2 else TXN) for n in range(6))
    assert shape(read(data, read_at=0, aborted=((7, 4), (7, 0)))) == [
        ("Hole", 0, 2),
        ("Append", 2, 3),
        ("Hole", 3, 6),
    ]


def test_data_without_transactional_bit_is_never_aborted() -> None:
    assert shape(read(batch(0, 2, producer=7), read_at=0, aborted=((7, 0),))) == [("Append", 0, 2)]


def test_a_small_gap_is_a_hole_and_a_large_one_stops_the_partition() -> None:
    assert shape(read(batch(0, 1) + batch(4, 1), read_at=0)) == [
        ("Append", 0, 1),
        ("Hole", 1, 4),
        ("Append", 4, 5),
    ]
    reading = read(batch(0, 1) + batch(102, 1), read_at=0)
    assert shape(reading) == [("Append", 0, 1)]
    assert reading.problem == (
        "large-gap: the source has no offsets 1 to 101 (compaction): 101 in a row, and hole_limit is 100"
    )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (batch(0, 5, records=3), "short-record"),
        (batch(0, 1, records=0), "surplus-bytes"),
        (batch(0, 1, attributes=7 | LOG_APPEND_TIME), "unknown-codec"),
        (batch(0, 1, attributes=1 | LOG_APPEND_TIME), "bad-compression"),
        (batch(0, 5, attributes=CONTROL)[:-1] + b"\xff", "corrupt-source-batch"),
        (batch(0, 5, attributes=LOG_APPEND_TIME)[:-1] + b"\xff", "corrupt-source-batch"),
        (batch(0, 5)[:16] + b"\x01" + batch(0, 5)[17:], "corrupt-source-batch"),
        (batch(0, 5)[:16] + b"\x03" + batch(0, 5)[17:], "unknown-message-format"),
    ],
)
def test_what_cannot_be_copied_as_it_is_stops_with_its_name(data: bytes, problem: str) -> None:
    reading = read(batch(-2, 2) + data, read_at=-2)
    assert shape(reading) == [("Append", -2, 0)]
    assert reading.problem.startswith(problem)
    assert reading.next_offset == 0


def test_a_batch_of_1_mib_that_says_it_holds_32_gib_stops_with_its_name() -> None:
    bomb = batch(3, 1, attributes=4 | LOG_APPEND_TIME, text=zstd_of_zeros(1 << 18))
    reading = read(batch(0, 3) + bomb, read_at=0)
    assert shape(reading) == [("Append", 0, 3)]
    assert reading.problem.startswith("bad-compression: a batch cannot be decompressed into 268435456 bytes")
    assert reading.next_offset == 3


def test_what_takes_longer_than_it_may_is_left_and_read_on_from_there() -> None:
    stamped = [batch(n, 1, epoch=n, attributes=LOG_APPEND_TIME, text=record(0)) for n in range(4)]
    aborted = batch(4, 2, producer=7, attributes=TXN) + batch(6, 1, producer=7, attributes=MARKER)
    data, listed = memoryview(bytearray(b"".join(stamped) + aborted)), ((7, 4),)
    part = read_steps(data, listed, read_at=0, leader_epoch=-1, hole_limit=100, most=5)
    assert shape(part) == [("Append", 0, 1), ("Append", 1, 2)]
    assert (part.next_offset, part.leader_epoch, part.effort) == (2, 1, 4)
    assert part.rest is not None
    rest = part.rest()
    assert shape(rest) == [("Append", 2, 3), ("Append", 3, 4), ("Hole", 4, 7)]
    assert (rest.next_offset, rest.leader_epoch, rest.rest) == (7, 3, None)


def test_messages_of_an_old_format_and_what_is_compressed_are_never_begun_where_little_is_allowed() -> None:
    body = struct.pack(">BBii", 0, 0, -1, -1)
    old = struct.pack(">qiI", 0, 4 + len(body), zlib.crc32(body)) + body
    packed = batch(0, 1, attributes=LOG_APPEND_TIME | 1, text=gzip.compress(record(0)))
    for data in (old, packed):
        reading = read_steps(memoryview(bytearray(data)), (), read_at=0, leader_epoch=-1, hole_limit=100, most=20)
        assert (reading.steps, reading.next_offset) == ([], 0)
        assert reading.rest is not None
        assert shape(reading.rest()) == [("Append", 0, 1)]


def test_an_answer_without_a_whole_batch_stops_with_its_name() -> None:
    """An answer whose first batch is incomplete stops the partition.

    Brokers give the first batch whole. Without the stop the reader would ask for the same answer for ever.
    """
    reading = read(batch(3, 5)[:-1], read_at=3)
    assert reading.problem == ("corrupt-source-batch: the batch at offset 3 says that it is longer than what there is")
    assert reading.next_offset == 3
    assert not read(b"", read_at=3).problem


def test_a_start_inside_a_data_batch_leaves_out_what_was_before_it() -> None:
    reading = read(batch(0, 3, text=record(0) + record(1) + record(2)), read_at=1)
    assert shape(reading) == [("Append", 1, 3)]
    assert bytes(reading.steps[0].view[61:]) == record(0) + record(1)  # type: ignore[union-attr]
    assert not reading.compacted


def test_a_thinned_batch_becomes_the_runs_that_are_left_with_holes_between() -> None:
    text = record(1, timestamp_delta=3) + record(2, timestamp_delta=1) + record(6)
    reading = read(batch(10, 9, records=3, text=text), read_at=10)
    assert shape(reading) == [
        ("Hole", 10, 11),
        ("Append", 11, 13),
        ("Hole", 13, 16),
        ("Append", 16, 17),
        ("Hole", 17, 19),
    ]
    run = reading.steps[1]
    assert bytes(run.view[61:]) == record(0, timestamp_delta=3) + record(1, timestamp_delta=1)  # type: ignore[union-attr]
    assert run.max_timestamp == 1_003  # type: ignore[union-attr]
    assert (reading.next_offset, reading.compacted) == (19, True)


def test_an_empty_batch_that_compaction_kept_is_a_hole() -> None:
    data = struct.pack(">hiqqqhii", 0, 4, 1_000, 1_000, 7, 0, 3, 0)
    empty = struct.pack(">qiibI", 5, 9 + len(data), 3, 2, crc32c(data)) + data
    assert shape(read(empty, read_at=5)) == [("Hole", 5, 10)]


def test_broker_times_are_written_into_every_record_as_readers_saw_them() -> None:
    text = record(0, timestamp_delta=3) + record(1, timestamp_delta=9)
    reading = read(batch(0, 2, attributes=LOG_APPEND_TIME, text=text), read_at=0)
    assert shape(reading) == [("Append", 0, 2)]
    assert bytes(reading.steps[0].view[61:]) == record(0) + record(1)  # type: ignore[union-attr]
    attributes, _, base, newest = struct.unpack_from(">hiqq", reading.steps[0].view, 21)  # type: ignore[union-attr]
    assert (attributes & LOG_APPEND_TIME, base, newest) == (0, 1_000, 1_000)
    assert not reading.compacted


def test_a_start_inside_aborted_data_leaves_the_rest_of_the_hole() -> None:
    reading = read(batch(0, 5, producer=7, attributes=TXN), read_at=2, aborted=((7, 0),))
    assert reading.steps == [Hole(2, 5)]


def test_batches_that_came_through_no_router_are_counted_by_producer_id_and_epoch() -> None:
    routed = (1 << 40) + 5
    direct = batch(0, 1, producer=9) + batch(1, 2, producer=9)
    assert read(batch(0, 1, producer=routed), read_at=0).direct == {}
    assert read(direct + batch(3, 1, producer=routed), read_at=0).direct == {(9, 0): (3, 1)}
    assert read(batch(0, 1, producer=9) + batch(1, 1), read_at=0).direct == {(9, 0): (1, 0), (-1, 0): (1, 1)}
    assert read(batch(0, 1, producer=9, attributes=MARKER), read_at=0).direct == {}
    in_transaction = read(batch(0, 1, producer=9, attributes=TXN), read_at=0).direct
    assert in_transaction == {(9, 0): (1, 0)}, "the state log tells whether it is a router's"
    assert isinstance(read(batch(0, 1), read_at=0).steps[0], Append)


def test_batches_from_before_the_link_are_nobody_s() -> None:
    data = memoryview(bytearray(batch(0, 1, producer=9) + batch(1, 1, producer=8)))
    reading = read_steps(data, (), read_at=0, leader_epoch=-1, hole_limit=100, direct_from=1)
    assert reading.direct == {(8, 0): (1, 1)}


def test_a_damaged_marker_among_good_ones_stops_the_partition_where_it_stands() -> None:
    good = batch(0, 2, attributes=TXN, epoch=3) + batch(2, 1, attributes=MARKER, epoch=3)
    damaged = bytearray(batch(3, 1, attributes=MARKER, epoch=4))
    damaged[-1] ^= 1
    reading = read(good + damaged, read_at=0)
    assert shape(reading) == [("Append", 0, 2), ("Hole", 2, 3)]
    assert reading.problem.startswith("corrupt-source-batch") and "offset 3 " in reading.problem
    assert (reading.next_offset, reading.leader_epoch) == (3, 3)


_LARGE = b"\0" * LARGEST_MERGED
_COUNTS, _PRODUCERS = st.integers(1, 3), st.sampled_from((-1, 7, 1 << 41))
_SENT_AS_IT_IS = st.sampled_from(((_LARGE, 0), (_LARGE, TXN), (b"", TXN), (b"", 4), (b"", MARKER)))
_PLAIN = st.builds(
    lambda form, count, producer: (form[0], count, form[1], 0, 0, producer), _SENT_AS_IT_IS, _COUNTS, _PRODUCERS
)
_ANY = st.tuples(
    st.sampled_from((_LARGE, b"", b"\1" * (LARGEST_MERGED - 61))),
    _COUNTS | st.sampled_from((0, 40)),
    st.sampled_from((0, TXN, MARKER, LOG_APPEND_TIME, 0x40)),
    st.integers(0, 1),  # missing offsets before the batch
    st.integers(-1, 0),  # missing records
    _PRODUCERS,
)
_ENTRIES = st.tuples(st.lists(_PLAIN, max_size=4), st.lists(_ANY, max_size=3), st.lists(_PLAIN, max_size=2))


_ABORTED = st.lists(st.tuples(_PRODUCERS, st.integers(0, 12)), max_size=2)


@given(_ENTRIES, _ABORTED, st.sampled_from((0, 0, 0, 1, 2)), st.booleans(), st.integers(0, 40))
@settings(max_examples=200)
def test_batches_in_front_are_read_as_each_would_be_alone(
    entries: tuple[list[tuple[bytes, int, int, int, int, int]], ...],
    aborted: list[tuple[int, int]],
    read_at: int,
    cut: bool,
    epoch: int,
) -> None:
    data, at = b"", 0
    for text, count, attributes, gap, missing, producer in chain(*entries):
        at += gap
        records = max(0, count + missing)
        held = {"attributes": attributes, "producer": producer, "epoch": epoch + at, "timestamp": 1_000 + at}
        data += batch(at, count, records=records, text=text, **held)
        at += count
    data = data[: len(data) - 5 * cut]

    def read_by(row: Callable[..., object]) -> tuple[object, ...]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(steps, "row", row)
            found = read(data, read_at=read_at, aborted=tuple(aborted))
        told = [
            (step.start, step.end, *([bytes(step.view), step.max_timestamp] if isinstance(step, Append) else []))
            for step in found.steps
        ]
        return told, found.next_offset, found.leader_epoch, found.direct, found.compacted, found.problem

    assert read_by(row) == read_by(lambda data, offset, until, more_than: ([], 0))
