"""The promote of topics that transactions write.

No open transaction is cut off, and no topic is fenced without its unit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.cluster.transactions import OpenTransaction
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord, TransactionRecord
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.workflow.base import open_transactions as transactions
from kmigrate.workflow.base.open_transactions import begun_elsewhere, wait_for_ends
from kmigrate.workflow.verbs.promote import coupled_findings
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.promote.test_topic import LINK, PENDING, ROUTER, SHARED, Stage, promoted

TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))
BOTH = replace(TILL, topics=("t", "u"))
OTHER = replace(PENDING, topic="u")


@dataclass
class Coordinator:
    """Scripted answers of the source's coordinators and partitions; the last answer repeats."""

    told: list[dict[str, frozenset[str]] | None]
    producers: list[tuple[ProducerState, ...]] = field(default_factory=lambda: [()])

    async def open_topics(self, _: Any, names: Any) -> dict[str, frozenset[str]] | None:
        assert list(names) == ["till"]
        return self.told.pop(0) if len(self.told) > 1 else self.told[0]

    async def describe_producers(self, keys: Any) -> Any:
        states = self.producers.pop(0) if len(self.producers) > 1 else self.producers[0]
        return dict.fromkeys(keys, (0, states))


def ends(monkeypatch: pytest.MonkeyPatch, coordinator: Coordinator, span: float = 5.0) -> None:
    monkeypatch.setattr(transactions, "open_topics", coordinator.open_topics)
    state = MemoryLog(LINK, TILL).state
    asyncio.run(wait_for_ends(state, coordinator, PENDING, monotonic() + span))  # type: ignore[arg-type]


def test_a_barrier_waits_until_the_coordinator_has_written_all_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = {"till": frozenset({"t"})}
    begun = ProducerState(9, 8, 5, 1, 50)
    coordinator = Coordinator([open_, open_, {"till": frozenset({"other"})}], [(begun,), (begun,), (begun,), ()])
    ends(monkeypatch, coordinator)
    assert (len(coordinator.told), len(coordinator.producers)) == (1, 1)


def test_before_kafka_3_0_the_partitions_alone_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator([None], [(ProducerState(9, 8, 5, 1, 50),), (ProducerState(9, 8, 5, 1, -1),)])
    ends(monkeypatch, coordinator)
    assert len(coordinator.producers) == 1


def test_a_transaction_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="till has a transaction open on t"):
        ends(monkeypatch, Coordinator([{"till": frozenset({"t"})}]), span=0.05)


def test_a_promote_names_the_topics_that_must_come_with_it() -> None:
    mirroring = replace(OTHER, phase=TopicPhase.MIRRORING)
    (finding,) = coupled_findings(MemoryLog(LINK, BOTH, mirroring).state, LINK, ["t"])
    assert (finding.level, finding.ref) == ("refuse", "coupled-topics")
    assert finding.next_step == "promote them together: kmigrate promote --link l t u"
    for fine in (replace(OTHER, phase=TopicPhase.PROMOTED), OTHER):
        assert coupled_findings(MemoryLog(LINK, BOTH, fine).state, LINK, ["t"]) == []


def test_a_topic_is_not_fenced_before_its_whole_unit_is_to_be_promoted() -> None:
    other = replace(OTHER, phase=TopicPhase.MIRRORING)
    record = promoted(Stage(log=MemoryLog(LINK, ROUTER, *SHARED, PENDING, BOTH, other)))
    assert record.phase is TopicPhase.MIRRORING
    assert "u, which is written together with t, is not being promoted" in record.reason


SINKS = ProducerState(7, 0, 0, 1, 60)
"""Transaction that a sink has begun at the source and left open long ago."""


async def _named(_: Any, keys: Any) -> dict[tuple[str, int], OpenTransaction]:
    return {key: OpenTransaction(60, 7, 1, "sink-0-5", 1) for key in keys if key[1] == 0}


def foreign(monkeypatch: pytest.MonkeyPatch, *told: tuple[ProducerState, ...]) -> tuple[TopicRecord, Stage, list[str]]:
    """Promote a topic; the source answers with these producers in turn, and the last answer repeats."""
    monkeypatch.setattr(transactions, "open_transactions", _named)
    stage, answers = Stage(), list(told)
    waits: list[str] = []
    promotion = stage.promotion

    async def describe_producers(keys: Any) -> Any:
        waits.extend(made.progress.waits.values())
        return dict.fromkeys(keys, (0, answers.pop(0) if len(answers) > 1 else answers[0]))

    made = promotion()
    stage.source.describe_producers = describe_producers  # type: ignore[method-assign]
    stage.promotion = lambda: made  # type: ignore[method-assign]
    return promoted(stage), stage, waits


def test_a_topic_is_not_fenced_while_a_transaction_is_open_that_began_past_the_routers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic with an open transaction from outside the routers is not fenced.

    No copy would reach the barrier, because only the sink can end the transaction. Writers would wait in vain.
    """
    record, stage, _ = foreign(monkeypatch, (SINKS,))
    phases = [r.phase for r in stage.log.history if isinstance(r, TopicRecord)]
    assert phases == [TopicPhase.PROMOTE_PENDING, TopicPhase.MIRRORING]
    assert record.reason.startswith("open-transaction: t-0 waits at offset 60 for the transaction of sink-0-5")
    assert record.reason.endswith("t-1 waits for a transaction of producer 7")


def test_a_promote_waits_until_the_sink_has_ended_its_transaction_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = replace(SINKS, last_timestamp=now_ms(), txn_start_offset=-1)
    record, _, waits = foreign(monkeypatch, (SINKS,), (SINKS,), (SINKS,), (marker,), (marker,), ())
    assert record.phase is TopicPhase.PROMOTED
    assert any("transaction of sink-0-5" in told for told in waits)
    assert any("producer id 7 wrote to t-0" in told for told in waits)


def test_a_transaction_that_a_router_has_begun_is_for_its_router_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "open_transactions", _named)
    routed = ProducerState(9, 8, 5, 1, 50)
    source: Any = Coordinator([], [(routed, SINKS)])
    told = asyncio.run(begun_elsewhere(MemoryLog(LINK, TILL).state, source, PENDING, 1))
    assert len(told) == 2
    assert "sink-0-5" in told[0]
    source.producers = [(routed,)]
    assert asyncio.run(begun_elsewhere(MemoryLog(LINK, TILL).state, source, PENDING, 1)) == []
