"""The router's records of transactional ids.

A record is merged with other routers' records, and the routing table follows before the router uses the record.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.errors import Unreachable
from kmigrate.model.records import TransactionRecord
from kmigrate.net.tasks import TaskOwner
from kmigrate.router.process.transaction_store import StateLogTransactionStore
from tests.fakes.state_log import MemoryLog

THEIRS = TransactionRecord("l", "till", 50, 2, 9, 1, ("a",))
OURS = TransactionRecord("l", "till", 50, 1, 9, 2, ("b",))


def scene(log: MemoryLog, *records: TransactionRecord, begins: bool = False) -> list[Any]:
    """Return the events in order: "followed" when the table followed the log, and the answers."""
    heard: list[Any] = []

    async def act() -> None:
        tasks, done = TaskOwner(), asyncio.Event()

        def answered(kept: bool) -> None:
            heard.append(kept)
            done.set()

        store = StateLogTransactionStore(log, tasks, lambda: heard.append("followed"))  # type: ignore[arg-type]
        for record in records:
            store.remember(record, begins=begins).then(answered)
        if not records:
            store.catch_up().then(answered)
        async with asyncio.timeout(5):
            await done.wait()
        await tasks.close()

    asyncio.run(act())
    return heard


def test_what_two_routers_say_is_merged_and_followed_before_the_answer() -> None:
    log = MemoryLog(THEIRS)
    assert scene(log, OURS) == ["followed", True]
    assert log.state.transaction("l", "till") == TransactionRecord("l", "till", 50, 2, 9, 2, ("a", "b"))
    before = len(log.history)
    assert scene(log, OURS) == ["followed", True]
    assert len(log.history) == before, "what stands is not written again"


@pytest.mark.parametrize("producer_id", [50, 60])
def test_identities_that_cross_are_not_written_and_what_stands_is_followed(producer_id: int) -> None:
    """The recorded producer may have begun a transaction at the source, which the new identity would continue."""
    standing = TransactionRecord("l", "till", 50, 1, 9, 2, ("b",))
    log = MemoryLog(standing)
    assert scene(log, TransactionRecord("l", "till", producer_id, 2, 9, 1)) == ["followed", False]
    assert log.state.transaction("l", "till") == standing


def test_an_identity_that_begins_is_in_use_since_its_own_record() -> None:
    """The position is compared with a topic's newest flip; a repetition keeps the first position."""
    log = MemoryLog(THEIRS)
    assert scene(log, replace(OURS, epoch=3), begins=True) == ["followed", True]
    first = log.state.transaction("l", "till")
    assert first is not None and (first.since, log.state.epoch) == (1, 1)
    assert scene(log, replace(OURS, epoch=3), begins=True) == ["followed", True]
    assert log.state.transaction("l", "till") == first


def test_a_state_log_that_is_away_is_told() -> None:
    log = MemoryLog()

    def away(_: Any) -> None:
        raise Unreachable("away", "the state log is away")

    log.on_append = away
    assert scene(log, OURS) == [False]


def test_catching_up_reads_before_it_is_said() -> None:
    assert scene(MemoryLog(THEIRS)) == ["followed", True]
