"""Transactions on a topic that is rolled back: what they couple, who writes past the routers, and what is open."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import CopyIdentity, GroupRecord, TopicRecord, TransactionRecord, WayBack
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.workflow.promote import transactions
from kmigrate.workflow.promote.transactions import (
    is_transactional,
    left_behind,
    open_on,
    unrecorded_writers,
    wait_until_none_open,
)
from tests.fakes.scripted_cluster import FakeCluster
from tests.fakes.state_log import MemoryLog

TOPIC = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, partitions=2, copy=CopyIdentity(8, 0))
IN_TRANSACTIONS = ProducerState(7, 0, 1, 1, -1, 0)
"""A producer with data and with a control marker."""


def state_of(*writers: TransactionRecord) -> State:
    return MemoryLog(TOPIC, *writers).state


def writer(name: str, *topics: str, groups: tuple[str, ...] = ()) -> TransactionRecord:
    return TransactionRecord("l", name, 1, 0, 2, 0, topics, groups)


def test_a_topic_alone_in_its_transactions_is_left_behind_nothing() -> None:
    state = state_of(writer("till", "t"), writer("shop", "n", "m"))
    assert (is_transactional(state, TOPIC), left_behind(state, TOPIC)) == (True, "")
    assert not is_transactional(state_of(writer("shop", "n")), TOPIC)


def test_what_cannot_go_back_with_a_topic_is_named_with_a_transactional_id() -> None:
    together = "topic t is written in transactions together with"
    told = left_behind(state_of(writer("till", "t", "n"), writer("shop", "n", groups=("g",))), TOPIC)
    assert told == f"{together} topic n, which link l does not mirror (transactional id till)"
    told = left_behind(state_of(writer("till", "t", groups=("g",))), TOPIC)
    assert told == f"{together} the offsets of group g, which link l does not mirror (transactional id till)"
    holds = GroupRecord("l", "g", GroupPhase.PROMOTED, 1)
    coupled = writer("till", "t", groups=("g",))
    told = left_behind(MemoryLog(TOPIC, holds, coupled).state, TOPIC)
    assert "the offsets of group g, which holds its members while it is mirrored" in told
    assert left_behind(MemoryLog(TOPIC, replace(holds, mode=GroupMode.FOLLOW), coupled).state, TOPIC) == ""
    final = replace(TOPIC, topic="u")
    told = left_behind(MemoryLog(TOPIC, final, writer("till", "t", "u")).state, TOPIC)
    assert told == f"{together} topic u, which has no way back (transactional id till)"


@pytest.mark.parametrize("other", [replace(TOPIC, way_back=WayBack({})), replace(TOPIC, phase=TopicPhase.MIRRORING)])
def test_a_topic_that_has_a_way_back_or_is_mirrored_keeps_no_other_topic_at_the_target(other: TopicRecord) -> None:
    assert left_behind(MemoryLog(TOPIC, replace(other, topic="u"), writer("till", "t", "u")).state, TOPIC) == ""


@pytest.mark.parametrize(
    ("producer", "told"),
    [
        (IN_TRANSACTIONS, "topic t is written in transactions at the target (producer id 7)"),
        (ProducerState(7, 0, 1, 1, -1), ""),
        (ProducerState(8, 0, 1, 1, -1, 0), ""),
    ],
)
def test_a_transactional_producer_that_no_record_has_is_named(producer: ProducerState, told: str) -> None:
    """The mirror's own producer writes markers, too."""
    cluster: Any = FakeCluster(producers=(producer,))
    assert asyncio.run(unrecorded_writers(state_of(), cluster, TOPIC)) == told
    assert asyncio.run(unrecorded_writers(state_of(writer("till", "t")), cluster, TOPIC)) == ""
    after_rollbacks = replace(TOPIC, former_copies_at_target=(7,))
    assert asyncio.run(unrecorded_writers(state_of(), cluster, after_rollbacks)) == ""


def with_open(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    async def open_writers(*_: Any) -> dict[str, frozenset[int]]:
        return {name: frozenset({1}) for name in names}

    monkeypatch.setattr(transactions, "open_writers", open_writers)


def test_open_transactions_are_named_by_id_and_a_hanging_one_by_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging: Any = FakeCluster(producers=(ProducerState(7, 0, 1, 1, 50),))
    with_open(monkeypatch)
    assert asyncio.run(open_on(FakeCluster(), TOPIC)) == ""  # type: ignore[arg-type]
    assert asyncio.run(open_on(hanging, TOPIC)) == "producer 7 has a transaction open on t at the target"
    with_open(monkeypatch, "e", "d", "c", "b")
    assert asyncio.run(open_on(hanging, TOPIC)) == "b, c, d and 1 more has a transaction open on t at the target"


def test_a_transaction_that_does_not_end_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with_open(monkeypatch, "till")
    with pytest.raises(Refused) as caught:
        asyncio.run(wait_until_none_open(FakeCluster(), TOPIC, monotonic() + 0.02))  # type: ignore[arg-type]
    assert caught.value.summary == "open-transaction: till has a transaction open on t at the target"
