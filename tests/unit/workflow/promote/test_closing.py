"""The source topic is closed after its flip, so that late writers are refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.append import Takes
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import Closed, LatePolicy, PartitionBarrier, PromoteTerms, Seal, TopicRecord
from kmigrate.workflow.promote import size_limit
from kmigrate.workflow.promote.closing import SourceCloser
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

PROMOTED = TopicRecord("l", "t", TopicPhase.PROMOTED, 1, partitions=1, barrier={0: PartitionBarrier(100, 3)})
OPEN = replace(PROMOTED, terms=PromoteTerms(1, late=LatePolicy(seal=False)))


@dataclass
class Admin:
    """An admin client of the source; `own` is the topic's own `max.message.bytes`."""

    own: str = ""
    refuses: int = 0
    away: bool = False
    altered: list[Any] = field(default_factory=list)

    async def topic_configs(self, _: Any) -> Any:
        return {"t": {"max.message.bytes": ConfigValue(self.own or "1048588", bool(self.own))}}

    async def alter_topic_configs(self, _: str, put: Any, remove: Any = (), *, try_only: bool = False) -> None:
        if self.away:
            raise Unreachable("no-answer", "the source does not answer")
        if self.refuses:
            raise BrokerRefused("broker-refused", "not allowed", code=self.refuses)
        if not try_only:
            self.altered.append((dict(put), tuple(remove)))


def look(log: MemoryLog, admin: Admin, takes: Takes = Takes.NOTHING) -> TopicRecord:
    async def source_of(_: Any) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(topics={"t": None})), admin

    async def asked(*_: Any) -> dict[int, Takes]:
        return {0: takes}

    async def work() -> None:
        await SourceCloser(SimpleNamespace(log=log, source=source_of)).look()  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(size_limit, "ask_to_append", asked)
        asyncio.run(work())
    record = log.state.topic("l", "t")
    assert record is not None
    return record


def test_a_promoted_topic_s_source_lets_no_batch_pass_that_is_larger_than_a_marker() -> None:
    admin, log = Admin(own="2000"), MemoryLog(LINK, PROMOTED)
    assert look(log, admin).closed == Closed("2000", proven=True)
    assert admin.altered == [({"max.message.bytes": "78"}, ())]
    written = [record.closed for record in log.history if isinstance(record, TopicRecord)]
    assert written[1] == Closed("2000"), "the topic's own limit is known before it is changed"


def test_a_controller_that_died_in_between_is_followed_by_one_that_keeps_the_topic_s_own_limit() -> None:
    admin = Admin(own="78")
    log = MemoryLog(LINK, replace(PROMOTED, closed=Closed("2000")))
    assert look(log, admin).closed == Closed("2000", proven=True)


@pytest.mark.parametrize(
    ("before", "back"), [("2000", ({"max.message.bytes": "2000"}, ())), ("", ({}, ("max.message.bytes",)))]
)
def test_a_person_may_open_it_again(before: str, back: Any) -> None:
    admin, log = Admin(), MemoryLog(LINK, replace(OPEN, closed=Closed(before, proven=True)))
    assert look(log, admin, Takes.WRITES).closed is None
    assert admin.altered == [back]


def test_a_source_that_does_not_allow_it_stays_open_and_the_record_says_so() -> None:
    record = look(MemoryLog(LINK, PROMOTED), Admin(refuses=29))
    assert record.closed is not None
    assert record.closed.denied == "broker-refused: not allowed"


def test_a_source_that_does_not_answer_is_asked_again() -> None:
    log, admin = MemoryLog(LINK, PROMOTED), Admin(away=True)
    assert look(log, admin).closed is None
    admin.away = False
    assert look(log, admin).closed == Closed("", proven=True)


@pytest.mark.parametrize(
    "record", [OPEN, replace(PROMOTED, seal=Seal("", {"r1": "r"})), replace(PROMOTED, phase=TopicPhase.FENCED)]
)
def test_nothing_is_done_where_it_is_not_wanted_or_not_due(record: TopicRecord) -> None:
    admin = Admin()
    assert look(MemoryLog(LINK, record), admin) == record
    assert admin.altered == []


@pytest.mark.parametrize("closed", [None, Closed("2000")])
def test_nothing_is_closed_for_a_link_that_is_being_deleted(closed: Closed | None) -> None:
    admin, record = Admin(own="2000"), replace(PROMOTED, closed=closed)
    assert look(MemoryLog(replace(LINK, deleting_ms=5), record), admin) == record
    assert admin.altered == []


def test_a_topic_that_is_closed_while_its_link_is_deleted_gets_its_own_limit_back() -> None:
    log = MemoryLog(LINK, PROMOTED)

    class Slow(Admin):
        async def alter_topic_configs(self, name: str, put: Any, remove: Any = (), *, try_only: bool = False) -> None:
            if not try_only and not self.altered:
                await log.append(lambda _: replace(LINK, deleting_ms=5))
            await super().alter_topic_configs(name, put, remove, try_only=try_only)

    admin = Slow(own="2000")
    look(log, admin)
    assert admin.altered == [({"max.message.bytes": "78"}, ()), ({"max.message.bytes": "2000"}, ())]
