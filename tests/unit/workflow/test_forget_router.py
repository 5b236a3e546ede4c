"""What a person may say of a router that does not answer, and what is remembered of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import Refused
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.state.log import StateLog
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Plan
from kmigrate.workflow.verbs import forget_router
from kmigrate.workflow.verbs.routers import unheard_routers
from tests.fakes.state_log import MemoryLog

ROUTER = RouterRecord("r", "i2", "host", "host:1", 1)
STRAY = StrayRecord("r", "host", ("i1",))


def forget(log: MemoryLog, **given: Any) -> Plan:
    return asyncio.run(forget_router(cast("Estate", SimpleNamespace(log=log)), "r", **given))


def left(log: MemoryLog) -> dict[str, Record]:
    return dict(log.state.records)


def test_a_silent_router_that_is_forgotten_may_live_and_is_remembered() -> None:
    log = MemoryLog(ROUTER, STRAY)
    assert len(forget(log).changes) == 2
    assert left(log) == {"stray/r": StrayRecord("r", "host", ("i1", "i2"))}
    assert forget(log).changes == ()


def test_a_router_that_is_called_dead_leaves_nothing_behind() -> None:
    log = MemoryLog(ROUTER, STRAY)
    forget(log, dead=True)
    assert left(log) == {}


def test_of_a_router_that_runs_only_its_earlier_processes_can_be_called_dead() -> None:
    log = MemoryLog(ROUTER, STRAY)
    log.say(RouterPresence("i2", "r", 1, 500))
    with pytest.raises(Refused, match="router r is running"):
        forget(log)
    forget(log, dead=True)
    assert left(log) == {"router/r": ROUTER}
    with pytest.raises(Refused, match="router r is running"):
        forget(log, dead=True)


def test_a_plan_changes_nothing_and_an_unknown_router_is_refused() -> None:
    log = MemoryLog(ROUTER)
    assert forget(log, plan=True).changes
    assert left(log) == {"router/r": ROUTER}
    with pytest.raises(Refused, match="no router r is registered; routers: none"):
        forget(MemoryLog())


def test_a_plan_names_the_routers_that_a_promote_is_sealed_for() -> None:
    log = MemoryLog(ROUTER, StrayRecord("old", "host", ("i0",)), RouterRecord("well", "i9", "host", "host:1", 1))
    log.say(RouterPresence("i9", "well", 1, 500))
    told = unheard_routers(cast("StateLog", log))
    assert [(each.level, each.next_step.split()[-2]) for each in told] == [("warn", "old"), ("warn", "r")]
