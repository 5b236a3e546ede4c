"""Batches that are taken from the source's log behind a barrier."""

from __future__ import annotations

from kmigrate.records.batch import TRANSACTIONAL, check_crc, walk
from kmigrate.records.late import LateBatch, late_batches
from tests.unit.mirror.batches import CONTROL, batch

TXN = TRANSACTIONAL
MARKER = CONTROL | TRANSACTIONAL


def read(data: bytes, at: int, *aborted: tuple[int, int]) -> tuple[list[LateBatch], int]:
    return late_batches(memoryview(bytearray(data)), aborted, at)


def shape(found: list[LateBatch]) -> list[tuple[int, int, int]]:
    return [(each.start, each.end, each.producer[0]) for each in found]


def test_markers_and_aborted_records_are_none() -> None:
    data = batch(5, 2, producer=9, attributes=TXN) + batch(7, 1, producer=9, attributes=MARKER)
    data += batch(8, 2, producer=9, attributes=TXN) + batch(10, 1, producer=9, attributes=MARKER)
    found, end = read(data, 5, (9, 5))
    assert (shape(found), end) == ([(8, 10, 9)], 11)


def test_what_lies_before_is_left_out() -> None:
    found, end = read(batch(5, 2) + batch(7, 3), 7)
    assert (shape(found), end) == ([(7, 10, -1)], 10)


def test_a_batch_is_stamped_as_another_producer_s_and_outside_its_transaction() -> None:
    found, _ = read(batch(5, 3, producer=9, attributes=TXN), 5)
    found[0].stamp(1 << 61, (1 << 31) + 4)
    (made,) = walk(found[0].view)
    assert (made.producer_id, made.producer_epoch, made.base_sequence, made.base_offset) == (1 << 61, 0, 4, 0)
    assert not made.is_transactional
    assert check_crc(made.view)
