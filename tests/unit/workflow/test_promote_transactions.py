"""The promote of topics that transactions write: nothing open is cut off, and none is fenced without its unit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kmigrate.cluster.client import ProducerState
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TransactionRecord
from kmigrate.net.clock import monotonic
from kmigrate.workflow import transactions
from kmigrate.workflow.transactions import wait_for_ends
from kmigrate.workflow.verbs.topics import _coupled
from tests.fakes.state_log import MemoryLog
from tests.unit.workflow.test_promote import LINK, PENDING, ROUTER, SHARED, Stage, promoted

TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))
BOTH = replace(TILL, topics=("t", "u"))
OTHER = replace(PENDING, topic="u")


@dataclass
class Coordinator:
    """What coordinators and partitions of the source tell, one answer after the other; the last one stays."""

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
    (finding,) = _coupled(MemoryLog(LINK, BOTH, mirroring).state, LINK, ["t"])
    assert (finding.level, finding.ref) == ("refuse", "coupled-topics")
    assert finding.next_step == "promote them together: kmigrate promote --link l t u"
    for fine in (replace(OTHER, phase=TopicPhase.PROMOTED), OTHER):
        assert _coupled(MemoryLog(LINK, BOTH, fine).state, LINK, ["t"]) == []


def test_a_topic_is_not_fenced_before_its_whole_unit_is_to_be_promoted() -> None:
    other = replace(OTHER, phase=TopicPhase.MIRRORING)
    record = promoted(Stage(log=MemoryLog(LINK, ROUTER, *SHARED, PENDING, BOTH, other)))
    assert record.phase is TopicPhase.MIRRORING
    assert "u, which is written together with t, is not being promoted" in record.reason
