"""A walk over any bytes in a records field ends with batches within the bounds, or with the walk's own error."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import HEADER_SIZE, check_crc, stamp, walk
from kmigrate.records.build import one_record_batch

_ONE = bytes(one_record_batch(b"k", b"v" * 30, timestamp=7, producer_id=5, epoch=1, sequence=9))
_LENGTHS = [-(1 << 31), -1, 0, 1, 48, 49, len(_ONE) - 13, len(_ONE) - 11, (1 << 31) - 1]


@settings(max_examples=300)
@given(
    at=st.integers(0, 2 * len(_ONE) - 1),
    junk=st.binary(min_size=1, max_size=8),
    cut=st.integers(0, 2 * len(_ONE)),
    until_old=st.booleans(),
)
def test_the_batches_of_a_changed_field_lie_within_it_one_behind_the_other(
    at: int, junk: bytes, cut: int, until_old: bool
) -> None:
    data = bytearray(_ONE * 2)
    data[at : at + len(junk)] = junk
    view = memoryview(data)[:cut]
    seen = 0
    with contextlib.suppress(ProtocolViolation):
        for batch in walk(view, until_old=until_old):
            assert len(batch.view) >= HEADER_SIZE
            assert bytes(batch.view) == bytes(view[seen : seen + len(batch.view)])
            seen += len(batch.view)
            check_crc(batch.view)
    assert seen <= len(view)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_can_be_walked(data: bytes, until_old: bool) -> None:
    with contextlib.suppress(ProtocolViolation):
        assert sum(len(batch.view) for batch in walk(memoryview(data), until_old=until_old)) <= len(data)


@pytest.mark.parametrize("length", _LENGTHS)
def test_a_length_that_lies_never_leads_out_of_the_field(length: int) -> None:
    data = bytearray(_ONE)
    struct.pack_into(">i", data, 8, length)
    with contextlib.suppress(ProtocolViolation):
        assert all(len(batch.view) == 12 + length for batch in walk(memoryview(data)))


@settings(max_examples=100)
@given(st.integers(HEADER_SIZE, len(_ONE) - 1), st.integers(1, 255))
def test_a_stamp_never_heals_a_broken_batch(at: int, flip: int) -> None:
    data = bytearray(_ONE)
    data[at] ^= flip
    stamp(memoryview(data), producer_id=6, epoch=2, sequence=10)
    assert not check_crc(memoryview(data))
