"""A new router may take the name of a registered router only when the registered router has gone."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.errors import Refused
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import RouterRecord
from kmigrate.net.clock import monotonic
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.verbs import router_to_replace, routers
from tests.fakes.state_log import MemoryLog

ROUTER = RouterRecord("edge", "i1", "host", "host:9092", 1_700_000_000_000, "box", 4711, "boot/ns/4711/5")
WORD = RouterPresence("i1", "edge", 1, 500, bootstrap="host:9092")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return scripted answers at addresses and ended processes, and set short waits."""
    made = SimpleNamespace(leads=Leads.NOWHERE, ended=set(), asked=[])

    async def ask(_: object, addresses: list[str]) -> list[Bootstrap]:
        made.asked += addresses
        return [Bootstrap(each, made.leads, "") for each in addresses]

    async def taken(_: str) -> bool:
        return False

    monkeypatch.setattr(routers, "ask_bootstraps", ask)
    monkeypatch.setattr(routers, "takes_connections", taken)
    monkeypatch.setattr(routers, "has_ended", lambda process: process in made.ended)
    monkeypatch.setattr(routers, "_LEAVES_S", 0.6)
    monkeypatch.setattr(routers, "_SILENT_S", 0.3)
    monkeypatch.setattr(routers, "_LOOK_S", 0.02)
    return made


async def speaking(log: MemoryLog, times: int = 1000) -> None:
    """Announce a router again and again."""
    for _ in range(times):
        log.presence[WORD.key] = (WORD, monotonic())
        await asyncio.sleep(0.05)


def asked(log: MemoryLog, *meanwhile: Any, take_over: bool = False) -> str:
    async def run() -> str:
        connections = SimpleNamespace(log=log, target=None, asking=lambda _: nullcontext())
        tasks = [asyncio.create_task(each) for each in meanwhile]
        await asyncio.sleep(0.01)
        try:
            return await router_to_replace(cast("Connections", connections), "edge", take_over=take_over)
        finally:
            for task in tasks:
                task.cancel()

    return asyncio.run(run())


def test_a_name_that_nobody_has_is_free() -> None:
    assert asked(MemoryLog()) == ""
    assert asked(MemoryLog(replace(ROUTER, name="other"))) == ""


def test_a_router_that_speaks_is_not_replaced_and_its_process_is_named() -> None:
    log = MemoryLog(ROUTER)
    with pytest.raises(Refused) as refused:
        asked(log, speaking(log))
    assert refused.value.ref == "router-runs"
    assert "process 4711 on box, since 2023-11-14 22:13:20 UTC, at host:9092" in refused.value.what
    assert "--take-over" in refused.value.next_step
    assert list(log.state.routers()) == [ROUTER]


def test_a_person_who_means_it_replaces_a_router_that_speaks() -> None:
    log = MemoryLog(ROUTER)
    assert asked(log, speaking(log), take_over=True) == "i1"


def test_a_router_that_is_silent_and_answers_at_its_address_is_not_replaced(world: SimpleNamespace) -> None:
    """A silent router that answers at its address is cut off from the state log, but still has clients."""
    world.leads = Leads.ROUTER
    with pytest.raises(Refused, match="router-runs"):
        asked(MemoryLog(ROUTER))
    assert world.asked == ["host:9092"]


def test_a_router_that_is_silent_and_does_not_answer_is_replaced(world: SimpleNamespace) -> None:
    log = MemoryLog(ROUTER)
    assert asked(log, speaking(log, times=2)) == "i1"
    assert world.asked == ["host:9092"]


def test_a_process_of_this_machine_that_has_ended_is_replaced_at_once(world: SimpleNamespace) -> None:
    world.ended = {ROUTER.process}
    log = MemoryLog(ROUTER)
    log.presence[WORD.key] = (WORD, monotonic())
    began = monotonic()
    assert asked(log) == "i1"
    assert monotonic() - began < 0.2
    assert world.asked == []


def test_a_router_that_leaves_meanwhile_makes_way() -> None:
    """After SIGTERM a successor may start while the router still gives its clients their last answers."""
    log = MemoryLog(ROUTER)

    async def leave() -> None:
        await asyncio.sleep(0.2)
        await log.append(lambda _: (ROUTER.key, None))

    assert asked(log, speaking(log), leave()) == ""


def test_a_successor_that_registers_meanwhile_is_judged_in_turn(world: SimpleNamespace) -> None:
    log = MemoryLog(ROUTER)
    second = replace(ROUTER, instance="i2", process="boot/ns/4712/6")

    async def restart() -> None:
        await asyncio.sleep(0.2)
        await log.append(lambda _: second)

    world.ended = {second.process}
    assert asked(log, speaking(log), restart()) == "i2"
