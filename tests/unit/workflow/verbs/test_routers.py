"""A person may forget a router that does not answer or call that router dead; the state log remembers strays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from kmigrate.errors import Refused
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Plan
from kmigrate.workflow.verbs import forget_router, routers
from kmigrate.workflow.verbs.routers import unheard_routers
from tests.fakes.proposals import run_verb
from tests.fakes.state_log import MemoryLog

AT = "host:1"
ROUTER = RouterRecord("r", "i2", "host", AT, 1)
STRAY = StrayRecord("r", "host", ("i1",))


class Network:
    """The processes that are found at addresses; none by default."""

    def __init__(self) -> None:
        self.leads: dict[str, Leads] = {}
        self.listens: set[str] = set()
        self.silent: set[str] = set()
        self.asked: list[str] = []

    async def ask(self, _: object, addresses: list[str]) -> list[Bootstrap]:
        self.asked += addresses
        if self.silent.intersection(addresses):
            await asyncio.sleep(60)
        return [Bootstrap(each, self.leads.get(each, Leads.NOWHERE), "") for each in addresses]

    async def takes_connections(self, address: str) -> bool:
        return address in self.listens


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(routers, "ask_bootstraps", made.ask)
    monkeypatch.setattr(routers, "takes_connections", made.takes_connections)
    monkeypatch.setattr(routers, "_ANSWER_S", 0.05)
    return made


def forget(log: MemoryLog, *, dead: bool = False, plan: bool = False) -> Plan:
    connections = cast("Connections", SimpleNamespace(log=log, target=None))
    return asyncio.run(run_verb(forget_router(connections, "r", dead=dead), plan=plan))


def left(log: MemoryLog) -> dict[str, Record]:
    return dict(log.state.records)


def test_a_silent_router_that_is_forgotten_may_live_and_is_remembered() -> None:
    log = MemoryLog(ROUTER, STRAY)
    assert len(forget(log).changes) == 2
    assert left(log) == {"stray/r": StrayRecord("r", "host", ("i1", "i2"), "host:1")}
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


def test_a_router_that_was_started_again_has_the_address_of_its_earlier_process(network: Network) -> None:
    """A restarted router answers where its earlier process was, so the answer says nothing about that process."""
    log = MemoryLog(replace(ROUTER, bootstrap=AT), replace(STRAY, bootstrap=AT))
    log.say(RouterPresence("i2", "r", 1, 500))
    network.leads[AT] = Leads.ROUTER
    forget(log, dead=True)
    assert "stray/r" not in left(log)


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


@pytest.mark.parametrize("before", [[ROUTER], [StrayRecord("r", "host", ("i1",), AT)]], ids=["registered", "forgotten"])
def test_nobody_can_call_a_router_dead_that_answers_at_its_address(before: list[Record], network: Network) -> None:
    """A router that answers at its address cannot be called dead.

    The router has only lost the state log, and forwards until the router reads that it was called dead. No topic would
    be sealed for such a router.
    """
    log = MemoryLog(*before)
    network.leads[AT] = Leads.ROUTER
    for plan in (True, False):
        with pytest.raises(Refused, match="router r is called dead, and a router answers at host:1") as caught:
            forget(log, dead=True, plan=plan)
        assert caught.value.ref == "router-answers"
    assert left(log) == {each.key: each for each in before}
    assert forget(MemoryLog(ROUTER)).applied, "for one that may live topics are sealed"


def test_what_takes_connections_there_and_says_nothing_is_told_to_who_is_asked(network: Network) -> None:
    log = MemoryLog(ROUTER)
    network.listens, network.silent = {AT}, {AT}
    [told] = forget(log, dead=True, plan=True).findings
    assert (told.level, told.ref) == ("warn", "router-address-taken")
    assert forget(log, dead=True).applied
    assert left(log) == {}


def test_an_address_that_another_living_router_has_says_nothing(network: Network) -> None:
    network.leads[AT] = Leads.ROUTER
    log = MemoryLog(ROUTER, RouterRecord("well", "i9", "host", AT, 1))
    log.say(RouterPresence("i9", "well", 1, 500))
    assert forget(log, dead=True).findings == ()
    assert network.asked == []


def test_a_router_that_was_started_again_at_the_address_of_its_earlier_process_says_nothing(network: Network) -> None:
    network.leads[AT] = Leads.ROUTER
    log = MemoryLog(ROUTER, StrayRecord("r", "host", ("i1",), AT))
    log.say(RouterPresence("i2", "r", 1, 500, bootstrap=AT))
    assert forget(log, dead=True).findings == ()
    assert left(log) == {"router/r": ROUTER}
    log = MemoryLog(ROUTER, StrayRecord("r", "host", ("i1",), AT))
    log.say(RouterPresence("i1", "r", 1, 500, bootstrap=AT))
    with pytest.raises(Refused, match="a router answers"):
        forget(log, dead=True)  # the earlier process lives


@pytest.mark.parametrize("leads", [Leads.TARGET, Leads.ELSEWHERE, Leads.NOWHERE])
def test_an_address_that_somebody_else_has_by_now_or_nobody_says_nothing(leads: Leads, network: Network) -> None:
    network.leads[AT] = leads
    assert forget(MemoryLog(ROUTER), dead=True).findings == ()


def test_one_whose_address_nobody_wrote_down_is_believed_to_be_dead(network: Network) -> None:
    assert forget(MemoryLog(STRAY), dead=True).applied
    assert network.asked == []
