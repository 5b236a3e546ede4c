"""The growth of a batch without its codec: up to the allowed size, and not a byte beyond, in any codec."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from itertools import repeat
from pathlib import Path

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kmigrate.errors import ProtocolViolation
from kmigrate.records.batch import HEADER_SIZE, Batch, walk
from kmigrate.records.rewrite import MOST_RECORDS, contents, decompress, rewrite
from tests.unit.mirror.batches import LOG_APPEND_TIME, batch, record, zstd_of_zeros

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
MIB = 1 << 20
ROOM = 32 * MIB
ROOT = Path(__file__).resolve().parents[3]

MEASURE = """
import resource, sys
from kmigrate.errors import ProtocolViolation
from kmigrate.records.rewrite import decompress

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

payload = memoryview(sys.stdin.buffer.read())
before = peak()
try:
    decompress(int(sys.argv[1]), payload, int(sys.argv[2]))
except ProtocolViolation as refused:
    print(refused.ref, peak() - before)
"""


def xerial(*blocks: bytes) -> bytes:
    """Return Snappy bytes framed as Java's producers frame Snappy."""
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def lz4(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress(data))


PLAIN = b"".join(b"a record of many, %d" % number for number in range(9_000))
PACKED = {
    "gzip": (GZIP, gzip.compress(PLAIN)),
    "snappy": (SNAPPY, snappy(PLAIN)),
    "xerial": (SNAPPY, xerial(snappy(PLAIN[:50_000]), snappy(PLAIN[50_000:]))),
    "lz4": (LZ4, lz4(PLAIN)),
    "zstd": (ZSTD, bytes(cramjam.zstd.compress(PLAIN))),
}


@pytest.mark.parametrize("framing", PACKED)
def test_a_batch_may_grow_to_just_what_is_allowed(framing: str) -> None:
    codec, packed = PACKED[framing]
    assert bytes(decompress(codec, memoryview(packed), len(PLAIN))) == PLAIN
    with pytest.raises(ProtocolViolation, match=f"bad-compression.* into {len(PLAIN) - 1} bytes"):
        decompress(codec, memoryview(packed), len(PLAIN) - 1)


@pytest.mark.parametrize("framing", PACKED)
def test_room_is_made_for_batches_that_shrink_very_well(framing: str) -> None:
    codec, _ = PACKED[framing]
    data = bytes(3 * MIB)
    packed = {
        "gzip": lambda: gzip.compress(data),
        "snappy": lambda: snappy(data),
        "xerial": lambda: xerial(*repeat(snappy(data[:MIB]), 3)),
        "lz4": lambda: lz4(data),
        "zstd": lambda: zstd_of_zeros(24),
    }[framing]()
    assert len(packed) < len(data) / 20
    assert bytes(decompress(codec, memoryview(packed))) == data


@pytest.mark.parametrize("framing", [*PACKED, "a lie"])
def test_a_batch_that_would_grow_without_end_takes_no_more_memory_than_it_may(framing: str) -> None:
    zeros = bytes(16 * MIB)
    codec, packed = {
        "gzip": lambda: (GZIP, gzip.compress(zeros, 6) * 32),
        "snappy": lambda: (SNAPPY, snappy(zeros * 16)),
        "xerial": lambda: (SNAPPY, xerial(*repeat(snappy(zeros[:MIB]), 256))),
        "lz4": lambda: (LZ4, lz4(zeros) * 32),
        "zstd": lambda: (ZSTD, zstd_of_zeros(MIB // 4)),  # 32 GiB
        "a lie": lambda: (SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(100)),  # the first number announces 4 GiB
    }[framing]()
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(codec), str(ROOM)],
        input=packed, capture_output=True, check=True, timeout=60, cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    ref, grown = ran.stdout.split()
    assert ref == b"bad-compression"
    assert int(grown) < ROOM + 16 * MIB


def stamped(*deltas: int, last: int, codec: int = 0) -> Batch:
    """Return a batch with broker times whose records have these offset deltas."""
    text = b"".join(record(delta) for delta in deltas)
    made = batch(7, last + 1, records=len(deltas), attributes=LOG_APPEND_TIME | codec, text=text)
    (found,) = walk(memoryview(bytearray(made)))
    return found


@pytest.mark.parametrize("deltas", [(0, 4, 9), (0, 0, 1), (1, 0, 2)])
def test_records_that_belie_their_batch_are_refused_by_name(deltas: tuple[int, ...]) -> None:
    """A broker accepts such records without compression (A4); a map of falling offsets used to end the copier."""
    with pytest.raises(ProtocolViolation, match="odd-record: a record of the batch at 7"):
        rewrite(stamped(*deltas, last=2), 7)


def read_by_another(view: memoryview, base: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = DefaultRecordBatch(bytearray(view))
    assert found.validate_crc()
    return [(base + record.offset, record.timestamp, record.key, record.value) for record in found]


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_large_batch_becomes_several_which_hold_the_same(monkeypatch: pytest.MonkeyPatch, codec: int) -> None:
    """A batch that is compressed again may be larger than the producer's batch, and larger than the target's limit."""
    monkeypatch.setattr("kmigrate.records.rewrite._FULL", 40)
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    values = [b"v" * size for size in (3, 3, 3, 300, 3, 3)]
    for number, value in enumerate(values):
        assert builder.append(number, 1_000 + number, b"k%d" % number, value, [])
    (found,) = walk(memoryview(bytearray(builder.build())))
    runs = rewrite(found, 1)
    assert [(run.start, run.end) for run in runs] == [(1, 3), (3, 4), (4, 6)]
    told = [each for run in runs for each in read_by_another(run.view, run.start)]
    assert told == [(number, 1_000 + number, b"k%d" % number, values[number]) for number in range(1, 6)]
    assert [run.max_timestamp for run in runs] == [1_002, 1_003, 1_005]


def test_times_whose_distance_no_number_holds_stay_what_they_are() -> None:
    """Readers add a record's time delta to the batch's time in 64 bits, and the sum wraps around."""
    greatest = (1 << 63) - 1
    text = record(0) + record(1, timestamp_delta=4)
    (found,) = walk(memoryview(bytearray(batch(0, 2, timestamp=greatest, text=text))))
    assert [time for time, _ in contents(found).values()] == [greatest, 3 - (1 << 63)]
    (run,) = rewrite(found, 1)
    base, newest = struct.unpack_from(">qq", run.view, 27)
    assert (base, newest, run.max_timestamp) == (greatest, 3 - (1 << 63), 3 - (1 << 63))
    assert bytes(run.view[HEADER_SIZE:]) == record(0, timestamp_delta=4)


def test_a_batch_of_more_records_than_memory_is_not_begun() -> None:
    (found,) = walk(memoryview(batch(7, 5, records=MOST_RECORDS + 1, text=record(0))))
    for look in (contents, lambda found: rewrite(found, 7)):
        with pytest.raises(ProtocolViolation, match="too-many-records: the batch at 7 says that it holds 1000001"):
            look(found)
