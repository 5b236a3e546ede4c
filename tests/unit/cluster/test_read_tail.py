"""Reads of a log's tail while other writers append to the log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from kmigrate.cluster import producer
from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.producer import read_tail, settled_end
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code


class Growing:
    """A log that was empty at the request for its end, and to which somebody appends without a pause."""

    def __init__(self) -> None:
        self.end = 0
        self.asked = 0

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked += 1
        assert self.asked < 100, "it asks for ever"
        end, self.end = self.end, self.end + 1
        return LogOffset(0, end, 0)

    async def log_start(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, 0, 0)

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, ()


class WrittenOnce(Growing):
    """A log that was found empty, and in which another copier's first batch then arrives."""

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked += 1
        return LogOffset(0, 0 if self.asked == 1 else 3, 0)

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, (ProducerState(77, 0, 2, 0, -1),)


def test_a_first_batch_that_comes_between_two_questions_is_not_taken_for_control_records() -> None:
    """The slower of two copiers started at the same time used to stop its partition as diverged."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", WrittenOnce()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"


def test_a_log_that_grows_while_it_seemed_empty_is_looked_at_anew() -> None:
    """The writer used to stay unnamed: the partition waited in silence until the writer paused."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", Growing()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"


class Replicating:
    """A log with a scripted end and high watermark for each look; the last values stay, and time passes by sleeping."""

    def __init__(self, *looks: tuple[int, int]) -> None:
        self.looks = list(looks)
        self.now = 0.0

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        mark = self.looks[0][1]
        return dict.fromkeys(wanted, LogOffset(0 if mark >= 0 else Code.OFFSET_NOT_AVAILABLE, mark, 0))

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        end, _ = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return LogOffset(0, end, 0)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def rested(monkeypatch: pytest.MonkeyPatch, log: Replicating, patience_s: float = 30.0) -> int:
    monkeypatch.setattr(producer, "sleep", log.sleep)
    monkeypatch.setattr(producer, "monotonic", lambda: log.now)
    return asyncio.run(settled_end(cast("ClusterClient", log), "t", 0, 1.0, patience_s, replicated=True))


def test_a_log_end_is_believed_once_all_replicas_have_had_it_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then a broker works on a request of ours, and another request may wait behind that request."""
    log = Replicating(*[(5, 4)] * 20, *[(5, -1)] * 3, *[(5, 5)] * 3, (6, 6))
    assert rested(monkeypatch, log) == 6
    assert log.now >= 0.25 * 26 + 1.0


def test_a_log_end_that_replicas_do_not_have_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable) as told:
        rested(monkeypatch, Replicating((5, 4)))
    assert told.value.ref == "unsettled-log"
