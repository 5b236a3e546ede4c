"""Probing for wide gaps: no gap beyond the limit is missed, no gap below half of the limit is reported."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmigrate.cluster import gap_probe
from kmigrate.cluster.gap_probe import has_wide_gap
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchPartition
from tests.unit.mirror.batches import batch, fetched

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
    monkeypatch.setattr(gap_probe, "fetch_one", log.fetch_one)
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
    monkeypatch.setattr(gap_probe, "fetch_one", log.fetch_one)
    assert not asyncio.run(has_wide_gap(log, "t", 0, 0, 6 * LIMIT, LIMIT))  # type: ignore[arg-type]


def test_what_a_new_leader_does_not_show_yet_is_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A high watermark may fall back for a moment at a leader election."""
    log = Log([(0, 1)])
    log.readable = 3 * LIMIT
    monkeypatch.setattr(gap_probe, "fetch_one", log.fetch_one)
    with pytest.raises(Unreachable):
        asyncio.run(has_wide_gap(log, "t", 0, 0, 6 * LIMIT, LIMIT))  # type: ignore[arg-type]


@pytest.mark.parametrize(("gap", "wide"), [(0, False), (LIMIT + 1, True)])
def test_messages_of_old_formats_are_probed_as_batches_are(
    monkeypatch: pytest.MonkeyPatch, gap: int, wide: bool
) -> None:
    told, _, log = probe(monkeypatch, [(0, 1)] * 30 + [(gap, 1)] + [(0, 1)] * 30, old_message)
    assert told is wide
    assert wide or log.asked > 1
