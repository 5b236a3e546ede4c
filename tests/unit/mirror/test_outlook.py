"""What a plan tells of a partition: its holes, in how many runs, and how long they will take."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror import outlook
from kmigrate.mirror.outlook import Sample, filling_s, sample
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched

MARKER = CONTROL | TRANSACTIONAL


class Source:
    def leader(self, topic: str, partition: int) -> int:
        return 1


def look(monkeypatch: pytest.MonkeyPatch, log: list[bytes], each: int, *, stretches: int) -> Sample:
    """A sample of a log whose answers hold `each` batches."""

    async def fetch(_: object, node: int, part: FetchPartition, **__: Any) -> FetchedPartition:
        first = next(n for n, data in enumerate(log) if int.from_bytes(data[:8], "big") >= part.offset)
        return fetched(b"".join(log[first : first + each]))

    monkeypatch.setattr(outlook, "fetch_one", fetch)
    end = int.from_bytes(log[-1][:8], "big") + 1
    return asyncio.run(sample(cast("ClusterClient", Source()), "t", 0, 0, end, stretches=stretches))


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
    assert filling_s([Sample(0, True, 0, 1_000), Sample(0, True, 0, 10)], far) == pytest.approx(22.0)
    assert filling_s([Sample(0, True, 0, 1_000)] * 10, near) == pytest.approx(5.0)
