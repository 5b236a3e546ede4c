"""Transactional ids are kept alive on the target while all their transactions run on the source.

An id that nobody uses any more is not kept alive for ever.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import Refused, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.record_json import Record
from kmigrate.model.records import LinkRecord, TransactionRecord
from kmigrate.workflow.base import open_transactions as transactions
from kmigrate.workflow.base.open_transactions import refuse_lost_ids
from kmigrate.workflow.controller import keepalive
from kmigrate.workflow.controller.keepalive import IdKeeper
from tests.fakes.state_log import MemoryLog
from tests.unit.cluster.test_transactions import coordinators
from tests.unit.workflow.promote.test_topic import LINK, PENDING

TILL = TransactionRecord("l", "till", 50, 3, 9, 8, ("t",))
MIRRORING = replace(PENDING, phase=TopicPhase.MIRRORING)


@dataclass
class Target:
    """A target with the start time of each id's last transaction; empty transactions are noted."""

    begun: dict[str, int | None] = field(default_factory=lambda: {"till": -1})
    used: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    code: int = 0
    at_source: dict[str, int | None] = field(default_factory=dict)
    """Start time of each id's last transaction at the source; a missing id has none."""
    source_away: bool = False
    kept: list[str] = field(default_factory=list)
    """Ids in the state log after the look."""

    async def source_of(self, link: LinkRecord) -> tuple[Any, Any]:
        assert link == LINK
        if self.source_away:
            raise Unreachable("away", "the source is away")
        return "source", None

    async def last_begun(self, cluster: Any, name: str) -> int | None:
        return self.begun[name] if cluster is self else self.at_source.get(name, -1)

    async def begin_and_abort(self, _: Any, name: str, producer: tuple[int, int]) -> int:
        self.used.append((name, producer))
        return self.code


def connections(log: MemoryLog, target: Any, used: Target) -> Any:
    return SimpleNamespace(log=log, target=target, target_admin=used, source=used.source_of)


def look(monkeypatch: pytest.MonkeyPatch, target: Target, *records: Record, idle_s: float = 0.0) -> Target:
    monkeypatch.setattr(keepalive, "last_begun", target.last_begun)
    monkeypatch.setattr(keepalive, "begin_and_abort", target.begin_and_abort)
    log = MemoryLog(LINK, *records)
    asyncio.run(IdKeeper(connections(log, target, target)).look(idle_s))
    target.kept = [record.name for record in log.state.transactions()]
    return target


def test_an_idle_id_is_used_in_its_holders_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, Target(), MIRRORING, TILL).used == [("till", (50, 3))]
    assert look(monkeypatch, Target({"till": 1000}), MIRRORING, TILL).used == [("till", (50, 3))]


@pytest.mark.parametrize("begun", [1 << 60, None])
def test_an_id_in_use_and_one_that_is_gone_are_left_alone(monkeypatch: pytest.MonkeyPatch, begun: int | None) -> None:
    target = look(monkeypatch, Target({"till": begun}), MIRRORING, TILL)
    assert (target.used, target.kept) == ([], ["till"])


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_an_open_transaction_is_nobody_elses_to_end_whatever_our_clock_says(
    monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """An id with an open transaction is left alone, although the local clock differs from the state log's clock.

    With a wrong clock the transaction looks old. An empty transaction with its id would abort the client's writes.
    """
    log, used = MemoryLog(LINK, MIRRORING, TILL), Target(source_away=True)
    log.ahead_ms = ahead_ms
    monkeypatch.setattr(keepalive, "begin_and_abort", used.begin_and_abort)
    for state, expected in (("Ongoing", []), ("CompleteCommit", [("till", (50, 3))])):
        keeper = IdKeeper(connections(log, coordinators(till=(0, state, 900)), used))
        keeper._since[TILL.key, 50, 3] = -1e9
        asyncio.run(keeper.look(60.0))
        assert used.used == expected


def test_an_id_whose_topic_was_promoted_while_the_controller_stood_still_is_left_to_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller reads the state log to its end before a look, so a promote that was missed counts."""
    target, log = Target(), MemoryLog(LINK, MIRRORING, TILL)
    promoted = replace(MIRRORING, phase=TopicPhase.PROMOTED)

    async def read_to_end(_: float = 30.0) -> Any:
        return await log.append(lambda state: promoted if state.topic("l", "t") != promoted else None)

    monkeypatch.setattr(log, "read_to_end", read_to_end)
    monkeypatch.setattr(keepalive, "last_begun", target.last_begun)
    monkeypatch.setattr(keepalive, "begin_and_abort", target.begin_and_abort)
    asyncio.run(IdKeeper(connections(log, target, target)).look(0.0))
    assert target.used == []


def test_an_id_that_its_source_has_forgotten_is_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    target = look(monkeypatch, Target(at_source={"till": None}), MIRRORING, TILL)
    assert (target.used, target.kept) == ([], ["till"])


def test_an_id_whose_topic_is_promoted_while_its_source_answers_is_left_to_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty transaction after the promote would abort the client's own transaction on the target."""
    target, log = Target(), MemoryLog(LINK, MIRRORING, TILL)

    async def last_begun(cluster: Any, name: str) -> int | None:
        if cluster is not target:
            await log.append(lambda _: replace(MIRRORING, phase=TopicPhase.PROMOTED))
        return -1

    monkeypatch.setattr(keepalive, "last_begun", last_begun)
    monkeypatch.setattr(keepalive, "begin_and_abort", target.begin_and_abort)
    asyncio.run(IdKeeper(connections(log, target, target)).look(0.0))
    assert target.used == []


def test_a_source_that_is_away_has_forgotten_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, Target(source_away=True), MIRRORING, TILL).used == [("till", (50, 3))]
    assert look(monkeypatch, Target({"till": None}, source_away=True), MIRRORING, TILL).kept == ["till"]


@pytest.mark.parametrize("phase", [TopicPhase.MIRRORING, TopicPhase.PROMOTED])
def test_an_id_that_both_clusters_have_forgotten_is_remembered_no_more(
    monkeypatch: pytest.MonkeyPatch, phase: TopicPhase
) -> None:
    gone = Target({"till": None}, at_source={"till": None})
    assert look(monkeypatch, gone, replace(PENDING, phase=phase), TILL).kept == []


def test_an_id_that_has_a_new_holder_meanwhile_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(TILL, epoch=4, source_epoch=9)
    log, target = MemoryLog(LINK, MIRRORING, TILL), Target({"till": None})

    async def last_begun(cluster: Any, _: str) -> None:
        if cluster == "source":
            await log.append(lambda _: newer if log.state.transactions() == [TILL] else None)

    monkeypatch.setattr(keepalive, "last_begun", last_begun)
    asyncio.run(IdKeeper(connections(log, target, target)).look(0.0))
    assert log.state.transactions() == [newer]


def test_who_has_just_come_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, Target(), MIRRORING, TILL, idle_s=60.0).used == []


@pytest.mark.parametrize(
    "phase", [TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED, TopicPhase.PROMOTED]
)
def test_from_its_promote_on_an_id_is_its_clients_alone(monkeypatch: pytest.MonkeyPatch, phase: TopicPhase) -> None:
    others = replace(MIRRORING, topic="u")
    assert look(monkeypatch, Target(), replace(PENDING, phase=phase), others, TILL).used == []


def test_what_cannot_be_kept_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kmigrate.controller"):
        look(monkeypatch, Target(code=51), MIRRORING, TILL)
        assert caplog.messages == []
        look(monkeypatch, Target(code=47), MIRRORING, TILL)
    assert caplog.messages == ["transactional id till: till cannot be kept alive on the target: INVALID_PRODUCER_EPOCH"]


def lost(monkeypatch: pytest.MonkeyPatch, source: int | None, target: int | None, *listed: str) -> None:
    told = {"source": source, "target": target}

    async def last_begun(cluster: Any, _: str) -> int | None:
        return told[cluster]

    async def listed_ids(cluster: Any) -> set[str]:
        assert cluster == "target"
        return set(listed)

    monkeypatch.setattr(transactions, "last_begun", last_begun)
    monkeypatch.setattr(transactions, "listed_ids", listed_ids)
    asyncio.run(refuse_lost_ids(MemoryLog(LINK, TILL).state, "source", "target", PENDING))  # type: ignore[arg-type]


def test_a_promote_is_refused_that_a_live_holder_would_not_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="the target has forgotten transactional id till"):
        lost(monkeypatch, 1000, None)
    lost(monkeypatch, None, None)
    lost(monkeypatch, -1, -1)
    lost(monkeypatch, 1000, None, "till")


def test_a_look_that_fails_as_nobody_foresaw_is_told_and_not_the_last_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look that fails unexpectedly is logged, and the keeper looks again.

    Otherwise the keeper would stop silently, and after a week the target would have forgotten every id.
    """
    keeper = IdKeeper(cast("Any", None))
    failures: list[BaseException] = [KeyError("till"), asyncio.CancelledError()]
    pauses: list[float] = []

    async def idle_s(_: IdKeeper) -> float:
        raise failures.pop(0)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(IdKeeper, "_idle_s", idle_s)
    monkeypatch.setattr(keepalive, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keeper.run())
    assert pauses == [1.0]
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError]
