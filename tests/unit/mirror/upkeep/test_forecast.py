"""The outlook on a topic, before anything is written.

The outlook says whether identical offsets are possible, and how long the holes take.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.mirror.upkeep import forecast as module
from kmigrate.mirror.upkeep.forecast import Sample, filling_s, sample, why_mapped
from kmigrate.model.link_settings import LinkSettings
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched

SETTINGS = LinkSettings(hole_limit=100, align_limit=1_000)


class _Source:
    """A source whose partitions end at offset 5,000; `gaps` gives the widest gap of each partition."""

    def __init__(self, gaps: dict[int, int]) -> None:
        self.gaps = gaps

    async def list_offsets(self, wanted: Any, **_: Any) -> Any:
        return {key: LogOffset(0, 5_000, 0) for key in wanted}

    async def has_wide_gap(self, _: Any, __: str, partition: int, start: int, end: int, limit: int) -> bool:
        assert (start, end) == (partition, 5_000)
        return self.gaps[partition] > limit


def why(
    monkeypatch: pytest.MonkeyPatch,
    gaps: dict[int, int],
    starts: dict[int, int] | None = None,
    *,
    compacted: bool = True,
) -> str:
    source: Any = _Source(gaps)
    monkeypatch.setattr(module, "has_wide_gap", source.has_wide_gap)
    return asyncio.run(why_mapped(source, SETTINGS, "t", starts or {p: p for p in gaps}, compacted=compacted))


def test_every_partition_of_every_topic_is_probed_for_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty partitions are probed, and a gap that is too wide is found in any partition."""
    assert why(monkeypatch, dict.fromkeys(range(40), 100)) == ""
    told = why(monkeypatch, {**dict.fromkeys(range(40), 0), 33: 101})
    assert told == "compaction left gaps in partition 33 that are too wide to be filled"


def test_logs_that_are_not_compacted_are_probed_where_they_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs that are not compacted now are probed for at most 20 partitions, because a probe reads the source's disks.

    A gap that the probes miss later stops its partition, and the stop names the next step.
    """
    assert "partition 7" in why(monkeypatch, {**dict.fromkeys(range(20), 0), 7: 101}, compacted=False)
    assert why(monkeypatch, {**dict.fromkeys(range(21), 0), 7: 101}, compacted=False) == ""


def test_a_log_that_begins_beyond_the_limit_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    told = why(monkeypatch, {0: 0, 1: 0}, {0: 0, 1: 1_001})
    assert told == "partition 1 begins at 1001; padding ends at 1000"


MARKER = CONTROL | TRANSACTIONAL


class _Led:
    def leader(self, topic: str, partition: int) -> int:
        return 1


def look(monkeypatch: pytest.MonkeyPatch, log: list[bytes], each: int, *, stretches: int) -> Sample:
    """Return a sample of a log whose fetch answers hold `each` batches."""

    async def fetch(_: object, node: int, part: FetchPartition, **__: Any) -> FetchedPartition:
        first = next(n for n, data in enumerate(log) if int.from_bytes(data[:8], "big") >= part.offset)
        return fetched(b"".join(log[first : first + each]))

    monkeypatch.setattr(module, "fetch_one", fetch)
    end = int.from_bytes(log[-1][:8], "big") + 1
    return asyncio.run(sample(cast("ClusterClient", _Led()), "t", 0, 0, end, stretches=stretches))


def test_markers_in_a_row_are_one_run_of_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(0, 1), *(batch(n, 1, attributes=MARKER) for n in (1, 2)), batch(3, 1), batch(4, 1, attributes=MARKER)]
    found = look(monkeypatch, log, 5, stretches=2)
    assert (found.holes, found.exact, found.runs) == (3, True, 2)


def test_of_a_long_log_the_runs_are_estimated_from_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(n, 1, attributes=MARKER if n % 2 else 0) for n in range(100)]
    found = look(monkeypatch, log, 4, stretches=2)
    assert (found.holes, found.exact, found.runs) == (4, False, 50)


def test_a_partitions_holes_wait_for_each_other_and_those_of_many_partitions_for_the_broker() -> None:
    near, far = 0.0, 0.010
    assert filling_s([], far) == 0
    assert filling_s([Sample(0, True, 0, 1_000), Sample(0, True, 0, 10)], near) == pytest.approx(2.0)
    assert filling_s([Sample(0, True, 0, 1_000), Sample(0, True, 0, 10)], far) == pytest.approx(12.0)
    assert filling_s([Sample(0, True, 0, 1_280)], far, long=True) == pytest.approx(1.48)
    assert filling_s([Sample(0, True, 0, 1_000)] * 10, near) == pytest.approx(5.0)
