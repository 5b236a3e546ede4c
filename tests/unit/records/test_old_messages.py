"""Messages of magic 0 and 1, packed by hand, and the batches made from these messages, read by hand, too."""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import Batch
from kmigrate.records.old_messages import OldMessages, walk_all
from kmigrate.records.rewrite import Run
from tests.unit.mirror.batches import batch

GZIP, LZ4 = 1, 3
STAMPED = 0x08

# The records field that Kafka 2.8.2 answered for a topic with message.format.version=0.9.0 and lz4. The first offset is
# 4, the keys are k0, null, k2, k3, k4, the values v0 … v4 repeated twenty times, the third value null. The header
# checksum (1a) is the wrong checksum of KAFKA-3160.
LZ4_OF_2_8 = "04224d1860401a"


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 0,
    timestamp: int = 0,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">BB", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def wrapper(offset: int, inner: bytes, *, magic: int, timestamp: int = 0, attributes: int = GZIP) -> bytes:
    return message(offset, None, gzip.compress(inner, mtime=0), magic=magic, timestamp=timestamp, attributes=attributes)


def walked(data: bytes) -> list[Batch | OldMessages]:
    return list(walk_all(memoryview(bytearray(data))))


def sets(data: bytes) -> list[OldMessages]:
    return [entry for entry in walked(data) if isinstance(entry, OldMessages)]


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def read(run: Run) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return offset, timestamp, key and value of a batch's records, by Kafka's documented layout of magic 2."""
    data = bytes(run.view)
    crc, attributes, last, base_time, max_time = struct.unpack_from(">Ihiqq", data, 17)
    assert crc == crc32c(data[21:])
    (count,) = struct.unpack_from(">i", data, 57)
    assert (last, count) == (run.end - run.start - 1, run.end - run.start)
    body = gzip.decompress(data[61:]) if attributes & 7 == GZIP else data[61:]
    assert attributes & ~7 == 0
    out: list[tuple[int, int, bytes | None, bytes | None]] = []
    at = 0
    for _ in range(count):
        size, at = varint(body, at)
        end = at + size
        assert body[at] == 0
        time_delta, at = varint(body, at + 1)
        offset_delta, at = varint(body, at)
        parts: list[bytes | None] = []
        for _ in range(2):
            length, at = varint(body, at)
            parts.append(None if length < 0 else body[at : at + length])
            at += max(length, 0)
        assert (body[at], at + 1) == (0, end)
        at = end
        out.append((run.start + offset_delta, base_time + time_delta, parts[0], parts[1]))
    assert at == len(body)
    assert max_time == max(time for _, time, _, _ in out)
    return out


def test_plain_messages_in_a_row_become_one_batch_with_keys_values_and_times() -> None:
    data = message(5, b"k", None, magic=1, timestamp=900) + message(6, None, b"", magic=1, timestamp=40)
    (found,) = sets(data)
    assert (found.base_offset, found.next_offset, found.has_gaps) == (5, 7, False)
    (run,) = found.runs(0)
    assert read(run) == [(5, 900, b"k", None), (6, 40, None, b"")]


def test_messages_of_magic_0_have_no_time() -> None:
    (found,) = sets(message(0, b"k", b"v") + message(1, b"k", b"w"))
    assert read(found.runs(0)[0]) == [(0, -1, b"k", b"v"), (1, -1, b"k", b"w")]


def test_a_gap_between_messages_parts_the_batches() -> None:
    (found,) = sets(message(3, b"a", b"v") + message(4, b"b", b"v") + message(9, b"c", b"v"))
    assert [(run.start, run.end) for run in found.runs(0)] == [(3, 5), (9, 10)]
    assert [(run.start, run.end) for run in found.runs(4)] == [(4, 5), (9, 10)]
    assert found.has_gaps


def test_inner_offsets_are_absolute_in_magic_0_and_end_at_the_wrapper_in_magic_1() -> None:
    absolute = message(40, b"a", b"1") + message(41, b"b", b"2")
    relative = message(1, b"a", b"1", magic=1) + message(4, b"b", b"2", magic=1)
    first, second = sets(wrapper(41, absolute, magic=0) + wrapper(50, relative, magic=1))
    assert [(run.start, run.end) for run in first.runs(0)] == [(40, 42)]
    assert [(run.start, run.end) for run in second.runs(0)] == [(47, 48), (50, 51)]


def test_the_brokers_time_on_a_wrapper_is_the_time_of_all_its_messages() -> None:
    inner = message(0, b"a", b"1", magic=1, timestamp=5) + message(1, b"b", b"2", magic=1, timestamp=6)
    data = wrapper(1, inner, magic=1, timestamp=77, attributes=GZIP | STAMPED) + wrapper(
        3, inner, magic=1, timestamp=99
    )
    stamped, own = sets(data)
    assert [row[1] for row in read(stamped.runs(0)[0])] == [77, 77]
    assert [row[1] for row in read(own.runs(0)[0])] == [5, 6]


def test_the_same_message_gives_the_same_record_wherever_reading_began() -> None:
    inner = b"".join(message(n, b"k", b"v%d" % n, magic=1, timestamp=n) for n in range(4))
    (found,) = sets(wrapper(13, inner, magic=1))
    whole, late = (found.runs(start)[0] for start in (0, 12))
    assert read(late) == read(whole)[2:]
    assert bytes(found.runs(12)[0].view) == bytes(late.view)
    assert {offset: row[0] for offset, row in found.contents().items()} == {10: 0, 11: 1, 12: 2, 13: 3}


def test_a_log_of_several_formats_is_walked_in_order_and_a_cut_off_end_is_left_out() -> None:
    data = message(0, b"k", b"v") + batch(1, 2) + message(3, b"k", b"v", magic=1)
    assert [type(entry).__name__ for entry in walked(data)] == ["OldMessages", "Batch", "OldMessages"]
    assert [entry.next_offset for entry in walked(data)] == [1, 3, 4]
    assert [entry.next_offset for entry in walked(data[:-1])] == [1, 3]
    assert [entry.next_offset for entry in walked(data[:60])] == [1]


def test_plain_messages_are_taken_together_up_to_a_size() -> None:
    data = b"".join(message(n, b"k", bytes(100_000)) for n in range(8))
    assert [(entry.base_offset, entry.next_offset) for entry in walked(data)] == [(0, 3), (3, 6), (6, 8)]


def test_the_wrong_header_checksum_of_lz4_in_magic_0_is_seen_through() -> None:
    inner = message(0, b"k", b"v")
    block = struct.pack("<I", 0x8000_0000 | len(inner)) + inner + bytes(4)
    frame = bytes.fromhex(LZ4_OF_2_8) + block
    (found,) = sets(message(0, None, frame, attributes=LZ4))
    assert found.contents()[0][0] == -1
    with pytest.raises(ProtocolViolation, match="bad-compression"):
        sets(message(0, None, frame, magic=1, attributes=LZ4))


def _broken(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (_broken(message(0, b"k", b"v")), "corrupt-source-batch"),
        (struct.pack(">qi", 0, 3) + bytes(20), "bad-batch-length"),
        (message(0, None, b"no gzip", attributes=GZIP), "bad-compression"),
        (message(0, None, None, attributes=GZIP), "bad-compression"),
        (wrapper(0, b"", magic=0), "bad-wrapper"),
        (wrapper(0, message(0, b"k", b"v", magic=1), magic=0), "bad-wrapper"),
        (wrapper(0, wrapper(0, message(0, b"k", b"v"), magic=0), magic=0), "bad-wrapper"),
        (wrapper(1, message(1, b"k", b"v") + message(0, b"k", b"v"), magic=0), "bad-wrapper"),
        (wrapper(1, message(7, b"k", b"v", magic=1) + message(5, b"k", b"v", magic=1), magic=1), "bad-wrapper"),
        (wrapper(3, b"".join(message(n, None, None, magic=1) for n in range(5)), magic=1), "bad-wrapper"),
        (wrapper(0, message(0, b"k", b"v")[:-1], magic=0), "short-record"),
        (wrapper(0, message(0, b"k", b"v") + bytes(5), magic=0), "short-record"),
    ],
)
def test_a_set_that_is_not_what_it_says_is_refused_by_name(data: bytes, name: str) -> None:
    with pytest.raises(ProtocolViolation) as refused:
        walked(data)
    assert refused.value.ref == name


def test_a_wrapper_of_more_messages_than_memory_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmigrate.records.old_messages.MOST_RECORDS", 3)
    inner = [message(number, b"k", b"v") for number in range(4)]
    assert sets(wrapper(2, b"".join(inner[:3]), magic=0))[0].next_offset == 3
    with pytest.raises(ProtocolViolation, match="too-many-records: the compressed message at offset 3"):
        sets(wrapper(3, b"".join(inner), magic=0))


@given(
    st.integers(0, 1),
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=200),
            st.none() | st.binary(max_size=200),
            st.integers(-1, 2**62),
            st.integers(1, 70),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_any_messages_come_out_as_they_were(
    magic: int, drawn: list[tuple[bytes | None, bytes | None, int, int]], compressed: bool
) -> None:
    offset, wanted = 100, []
    for key, value, timestamp, step in drawn:
        offset += step
        wanted.append((offset, timestamp if magic else -1, key, value))
    first = wanted[0][0] if compressed and magic else 0
    data = b"".join(message(at - first, key, value, magic=magic, timestamp=time) for at, time, key, value in wanted)
    if compressed:
        data = wrapper(wanted[-1][0], data, magic=magic)
    assert [row for entry in sets(data) for run in entry.runs(0) for row in read(run)] == wanted


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_garbage_is_refused_and_never_an_error_of_ours(garbage: bytes, place: int, byte: int) -> None:
    data = bytearray(wrapper(3, message(3, b"key", b"value"), magic=0) + message(4, b"k", b"v", magic=1) + garbage)
    data[place % len(data)] = byte
    with contextlib.suppress(ProtocolViolation):
        for entry in walked(bytes(data)):
            assert entry.base_offset < entry.next_offset
