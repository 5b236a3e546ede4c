"""Batch headers: walking, stamping and bounds; the CRC's own judge is a real broker (integration tests)."""

from __future__ import annotations

import contextlib
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import (
    HEADER_SIZE,
    TRANSACTIONAL,
    check_crc,
    next_sequence,
    stamp,
    translate,
    walk,
    whole_batch,
)
from kmigrate.records.build import filler_batch, one_record_batch, read_header, read_single_record
from kmigrate.records.crc import crc_of_changed_head


def record(key: bytes = b"k", value: bytes | None = b"v", sequence: int = 3) -> bytearray:
    return one_record_batch(key, value, timestamp=5, producer_id=1, epoch=2, sequence=sequence)


def test_walking_gives_every_whole_batch_and_leaves_a_cut_one_out() -> None:
    data = record() + record(b"longer key") + record()[:-3]
    found = list(walk(memoryview(data)))
    assert [read_single_record(b)[0] for b in found] == [b"k", b"longer key"]


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_batch_length_that_cannot_be_is_refused(length: int) -> None:
    data = record()
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(ProtocolViolation):
        list(walk(memoryview(data)))


def test_an_old_message_format_is_named() -> None:
    data = record()
    data[16] = 1
    with pytest.raises(ProtocolViolation) as caught:
        list(walk(memoryview(data)))
    assert caught.value.ref == "old-message-format"


def test_stamping_changes_the_envelope_and_nothing_else() -> None:
    data = record()
    struct.pack_into(">h", data, 21, TRANSACTIONAL)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    before = bytes(data[HEADER_SIZE:])
    stamp(memoryview(data), producer_id=77, epoch=4, sequence=123, clear=TRANSACTIONAL)
    (batch,) = walk(memoryview(data))
    assert (batch.base_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence) == (0, 77, 4, 123)
    assert not batch.is_transactional
    assert check_crc(batch.view)
    assert bytes(data[HEADER_SIZE:]) == before


@given(at=st.integers(21, 70), bit=st.integers(0, 7))
def test_stamping_does_not_vouch_for_a_batch_that_was_damaged_before(at: int, bit: int) -> None:
    data = record(value=b"x" * 20)
    data[at] ^= 1 << bit
    stamp(memoryview(data), producer_id=77, epoch=4, sequence=123, clear=TRANSACTIONAL)
    assert not check_crc(memoryview(data))


@given(producer=st.integers(-1, 1 << 40), shown=st.integers(0, (1 << 62)), size=st.integers(0, 20_000))
def test_a_translated_batch_is_the_one_that_is_stamped_with_the_other_id(producer: int, shown: int, size: int) -> None:
    data = record(value=b"x" * size)
    stamp(memoryview(data), producer_id=producer, epoch=4, sequence=123)
    expected = bytearray(data)
    stamp(memoryview(expected), producer_id=shown, epoch=4, sequence=123, base_offset=None)
    translate(memoryview(data), producer, shown)
    assert data == expected
    assert check_crc(memoryview(data))


@given(at=st.integers(17, 87), bit=st.integers(0, 7))
def test_translating_does_not_vouch_for_a_damaged_batch(at: int, bit: int) -> None:
    data = record(value=b"x" * 20)
    data[at] ^= 1 << bit
    (producer,) = struct.unpack_from(">q", data, 43)
    translate(memoryview(data), producer, 77)
    assert not check_crc(memoryview(data))


@given(st.binary(max_size=90), st.integers(0, 3))
def test_a_whole_batch_is_what_a_walk_finds_alone(noise: bytes, times: int) -> None:
    data = memoryview(bytearray(record() * times + noise))
    told = whole_batch(data)
    try:
        found = list(walk(data))
    except ProtocolViolation:
        found = []
    if len(found) == 1 and len(found[0].view) == len(data):
        one = found[0]
        assert told == (
            one.attributes, one.last_offset_delta, one.producer_id, one.producer_epoch, one.base_sequence
        )  # fmt: skip
    else:
        assert told is None


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=400), st.integers(0, 5000))
def test_the_crc_of_a_changed_head_is_that_of_the_whole(head: bytes, changed: bytes, tail: bytes, times: int) -> None:
    changed = changed[: len(head)].ljust(len(head), b"-")
    told = crc_of_changed_head(crc32c(head + tail * times), crc32c(head), crc32c(changed), len(tail) * times)
    assert told == crc32c(changed + tail * times)


def test_a_changed_byte_breaks_the_crc() -> None:
    data = record()
    data[-1] ^= 1
    assert not check_crc(memoryview(data))


def test_sequences_wrap_to_zero() -> None:
    assert next_sequence(2**31 - 1, 1) == 0
    assert next_sequence(2**31 - 5, 10) == 5
    (batch,) = walk(memoryview(record(sequence=2**31 - 1)))
    assert batch.last_sequence == 2**31 - 1


@given(st.binary(max_size=300), st.none() | st.binary(max_size=3000))
def test_a_single_record_comes_back(key: bytes, value: bytes | None) -> None:
    (batch,) = walk(memoryview(record(key, value)))
    assert read_single_record(batch) == (key, value)


@given(st.binary(max_size=300), st.none() | st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=9))
def test_the_header_of_a_single_record_comes_back(key: bytes, value: bytes | None, held: bytes, other: bytes) -> None:
    data = one_record_batch(key, value, timestamp=5, producer_id=1, epoch=2, sequence=3, header=(b"name", held))
    (batch,) = walk(memoryview(data))
    assert read_single_record(batch) == (key, value)
    assert read_header(batch, b"name") == held
    assert read_header(batch, other) is None
    assert read_header(next(walk(memoryview(record(key, value)))), b"name") is None


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_record_that_ends_too_early_is_refused(cut: int) -> None:
    whole = one_record_batch(b"key", b"value", timestamp=5, producer_id=1, epoch=2, sequence=3, header=(b"name", b"v"))
    data = whole[:-cut]
    struct.pack_into(">i", data, 8, len(data) - 12)
    for batch in walk(memoryview(data)):
        with pytest.raises(ProtocolViolation):
            read_header(batch, b"name")


def test_a_filler_takes_its_offsets_in_few_bytes() -> None:
    data = filler_batch(100_000, timestamp=1, producer_id=1, epoch=0, sequence=0)
    (batch,) = walk(memoryview(data))
    assert (batch.count, batch.last_offset_delta) == (100_000, 99_999)
    assert len(data) < 200_000
    with pytest.raises(ProtocolViolation):
        read_single_record(batch)


@given(st.binary(max_size=200))
def test_rubbish_never_escapes_as_another_error(data: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        list(walk(memoryview(bytearray(data))))
