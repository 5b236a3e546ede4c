"""Tests of the newest batches of a log's producers, and of probes for wide gaps."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.cluster import log_probes
from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.log_probes import RecentBatches, has_wide_gap
from kmigrate.errors import Unreachable
from kmigrate.model.records import ProducerMark
from kmigrate.net.clock import monotonic
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchAnswer, FetchedPartition, FetchPartition
from kmigrate.records.build import one_record_batch
from tests.unit.mirror.batches import batch, fetched

KEY = ("t", 0)


@dataclass
class ScriptedLog:
    """A log of one partition; an answer holds the batch at the asked offset, and as many more as fit."""

    batches: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    refuses: list[int] = field(default_factory=list)
    """Error codes of the next answers."""
    asked: list[int] = field(default_factory=list)

    def append(self, producer: int, sequence: int, size: int = 10) -> None:
        batch = one_record_batch(b"k", b"v" * size, timestamp=1, producer_id=producer, epoch=0, sequence=sequence)
        batch[0:8] = self.end.to_bytes(8, "big")
        self.batches[self.end] = bytes(batch)
        self.end += 1

    def leader(self, *_: Any) -> int:
        return 1

    async def refresh(self, _: Any) -> None: ...

    async def list_offsets(self, wanted: Iterable[Any]) -> dict[Any, LogOffset]:
        return {key: LogOffset(0, self.start, 3) for key in wanted}

    async def fetch(self, _: Any, __: int, parts: Sequence[FetchPartition], **___: Any) -> FetchAnswer:
        at = parts[0].offset
        self.asked.append(at)
        error = self.refuses.pop(0) if self.refuses else 0
        records = b"".join(self.batches.get(offset, b"") for offset in range(at, min(at + 1000, self.end)))
        view = memoryview(b"" if error else records)
        return FetchAnswer(0, 0, 0, [FetchedPartition(*KEY, error, self.end, self.end, self.start, (), -1, view)])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> ScriptedLog:
    scripted = ScriptedLog()
    monkeypatch.setattr(log_probes, "fetch_full", scripted.fetch)
    return scripted


def read(reader: RecentBatches, end: int, epoch: int = 3, patience_s: float = 5.0) -> set[ProducerMark]:
    ends = {KEY: LogOffset(0, end, epoch)}
    return set(asyncio.run(reader.read_to(ends, monotonic() + patience_s))[KEY])


def test_the_newest_sequence_of_each_producer_counts_also_where_a_broker_took_an_old_one_again(
    log: ScriptedLog,
) -> None:
    for producer, sequence in ((7, 0), (7, 1), (8, 5), (-1, -1), (7, 0)):
        log.append(producer, sequence)
    assert read(RecentBatches(log), log.end) == {ProducerMark(7, 0, 1), ProducerMark(8, 0, 5)}  # type: ignore[arg-type]


def test_a_later_look_reads_only_what_has_come_since(log: ScriptedLog) -> None:
    reader = RecentBatches(log)  # type: ignore[arg-type]
    log.append(7, 0)
    read(reader, log.end)
    log.append(8, 0)
    assert read(reader, log.end) == {ProducerMark(7, 0, 0), ProducerMark(8, 0, 0)}
    assert read(reader, log.end) == {ProducerMark(7, 0, 0), ProducerMark(8, 0, 0)}
    assert log.asked == [0, 1]


def test_what_was_read_under_another_leader_epoch_is_read_anew(log: ScriptedLog) -> None:
    reader = RecentBatches(log)  # type: ignore[arg-type]
    for sequence in range(3):
        log.append(7, sequence)
    read(reader, log.end)
    log.end = 2  # an unclean election has cut the last batch off
    assert read(reader, log.end, epoch=4) == {ProducerMark(7, 0, 1)}


def test_the_last_mebibyte_is_looked_at_however_small_its_batches_are(log: ScriptedLog) -> None:
    log.append(6, 0)
    for sequence in range(12_000):
        log.append(7 if sequence else 5, sequence)
    marks = read(RecentBatches(log), log.end)  # type: ignore[arg-type]
    assert {mark.producer_id for mark in marks} == {5, 6, 7}
    log.asked.clear()
    for sequence in range(3):
        log.append(9, sequence, size=1 << 20)
    for _ in range(100):
        log.append(-1, -1)
    marks = read(RecentBatches(log), log.end)  # type: ignore[arg-type]
    assert marks >= {ProducerMark(9, 0, 2)}
    assert min(log.asked) == log.end - 800, "it is enough"


def test_of_a_long_log_little_more_than_the_last_mebibyte_is_read(log: ScriptedLog) -> None:
    for sequence in range(5000):
        log.append(7, sequence, size=1000)
    assert read(RecentBatches(log), log.end) == {ProducerMark(7, 0, 4999)}  # type: ignore[arg-type]
    assert 1 << 20 <= sum(len(log.batches[at]) for at in range(min(log.asked), log.end)) < 3 << 19


def test_an_end_that_a_log_cleaner_has_emptied_is_no_reason_to_wait(log: ScriptedLog) -> None:
    log.append(7, 0)
    log.end = 5
    assert read(RecentBatches(log), log.end) == {ProducerMark(7, 0, 0)}  # type: ignore[arg-type]


def test_a_leader_that_moves_is_looked_for_until_there_is_no_time_left(log: ScriptedLog) -> None:
    log.append(7, 0)
    log.refuses = [Code.NOT_LEADER_OR_FOLLOWER]
    assert read(RecentBatches(log), log.end) == {ProducerMark(7, 0, 0)}  # type: ignore[arg-type]
    log.refuses = [Code.NOT_LEADER_OR_FOLLOWER] * 1000
    with pytest.raises(Unreachable, match="the end of the log of t-0 cannot be read"):
        read(RecentBatches(log), log.end, patience_s=0.05)  # type: ignore[arg-type]


def test_what_retention_takes_meanwhile_is_gone_on_behind(log: ScriptedLog) -> None:
    log.append(7, 0)
    log.append(7, 1)
    log.refuses = [Code.OFFSET_OUT_OF_RANGE]
    reader = RecentBatches(log)  # type: ignore[arg-type]
    fetch = log.fetch

    async def taken(*given: Any, **named: Any) -> FetchAnswer:
        answer = await fetch(*given, **named)
        log.start = 1
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_probes, "fetch_full", taken)
        assert read(reader, log.end) == {ProducerMark(7, 0, 1)}
    assert log.asked == [0, 1]


LIMIT = 20


def old_message(offset: int, count: int) -> bytes:
    """Return a message of magic 1, longer than a batch's header, in the place of a batch."""
    assert count == 1
    body = struct.pack(">BBqi", 1, 0, 0, -1) + struct.pack(">i", 100) + bytes(100)
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


class Log:
    """Batches at their offsets; like a broker, a fetch answers with the first batch that reaches the offset."""

    def __init__(self, batches: list[tuple[int, int]], made: Callable[[int, int], bytes] = batch) -> None:
        self.batches = batches
        self.made = made
        self.start = 0
        self.readable = 1 << 40
        self.asked = 0

    async def refresh(self, topics: list[str]) -> None: ...

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def fetch_one(self, client: Any, node: int, part: FetchPartition, *, purpose: str) -> Any:
        self.asked += 1
        if part.offset < self.start:
            return replace(fetched(b""), error=Code.OFFSET_OUT_OF_RANGE)
        found = next(((base, count) for base, count in self.batches if base + count > part.offset), None)
        return fetched(self.made(*found) if found is not None else b"", high_watermark=self.readable)


def probe(
    monkeypatch: pytest.MonkeyPatch, layout: list[tuple[int, int]], made: Callable[[int, int], bytes] = batch
) -> tuple[bool, list[int], Log]:
    """Probe a log of gaps and lengths in turn; return the answer, the gaps, and the log."""
    at, batches, wide = 0, [], []
    for gap, count in layout:
        batches.append((at + gap, count))
        wide.append(gap)
        at += gap + count
    log = Log(batches, made)
    monkeypatch.setattr(log_probes, "fetch_one", log.fetch_one)
    told = asyncio.run(has_wide_gap(log, "t", 0, 0, at, LIMIT))  # type: ignore[arg-type]
    assert all(left[0] + left[1] <= right[0] for left, right in pairwise(batches))
    return told, wide, log


@given(st.lists(st.tuples(st.one_of(st.integers(0, 3), st.integers(5, 30)), st.integers(1, 60)), max_size=20))
def test_no_gap_beyond_the_limit_is_missed_and_none_below_half_of_it_is_reported(layout: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        told, wide, _ = probe(patch, layout)
    widest = max(wide, default=0)
    assert told or widest <= LIMIT
    assert not told or widest >= LIMIT // 2


def test_a_long_log_is_probed_twice_a_limit_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _, log = probe(monkeypatch, [(0, 2)] * 5_000)
    assert not told
    assert log.asked <= 10_000 // (LIMIT // 2) + 1


def test_a_log_too_short_for_a_gap_beyond_the_limit_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _, log = probe(monkeypatch, [(0, 1)] * (LIMIT // 2))
    assert (told, log.asked) == (False, 0)


def test_what_was_deleted_since_the_start_was_asked_for_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention goes on while a long log is probed; otherwise the topic would be mapped without a reason."""
    log = Log([(5 * LIMIT + number, 1) for number in range(LIMIT)])
    log.start = 5 * LIMIT
    monkeypatch.setattr(log_probes, "fetch_one", log.fetch_one)
    assert not asyncio.run(has_wide_gap(log, "t", 0, 0, 6 * LIMIT, LIMIT))  # type: ignore[arg-type]


def test_what_a_new_leader_does_not_show_yet_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A high watermark may fall back for a moment at a leader election."""
    log = Log([(0, 1)])
    log.readable = 3 * LIMIT
    monkeypatch.setattr(log_probes, "fetch_one", log.fetch_one)
    with pytest.raises(Unreachable):
        asyncio.run(has_wide_gap(log, "t", 0, 0, 6 * LIMIT, LIMIT))  # type: ignore[arg-type]


@pytest.mark.parametrize(("gap", "wide"), [(0, False), (LIMIT + 1, True)])
def test_messages_of_old_formats_are_probed_as_batches_are(
    monkeypatch: pytest.MonkeyPatch, gap: int, wide: bool
) -> None:
    told, _, log = probe(monkeypatch, [(0, 1)] * 30 + [(gap, 1)] + [(0, 1)] * 30, old_message)
    assert told is wide
    assert wide or log.asked > 1
