"""What a look at a log's tail makes of a log that others write to meanwhile."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.producer import read_tail
from kmigrate.errors import Unreachable


class Growing:
    """A log that was empty when its end was asked for, and that somebody appends to without a pause."""

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
    """Another copier's first batch arrives right after the log was found to be empty."""

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked += 1
        return LogOffset(0, 0 if self.asked == 1 else 3, 0)

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, (ProducerState(77, 0, 2, 0, -1),)


def test_a_first_batch_that_comes_between_two_questions_is_not_taken_for_control_records() -> None:
    """It was: a copier that began at the same time as another one stopped its partition as diverged."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", WrittenOnce()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"


def test_a_log_that_grows_while_it_seemed_empty_is_looked_at_anew() -> None:
    """Its writer was never named: the partition waited, without a word, until that one rested."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", Growing()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"
