"""The verb that forgets a silent router, so that fences do not wait for the router, and findings about such routers.

No topic is sealed for a router that a person declares dead. But a router without the state log goes on forwarding
writes to the source until the router reads the log again, and only a seal stops such a router. So kmigrate first
checks what answers at its address.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kmigrate.errors import Refused
from kmigrate.model.nearest import nearest
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.model.registered import already_runs
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.process import has_ended
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.bootstraps import Leads, ask_bootstraps, takes_connections
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan, ok, refuse, warn
from kmigrate.workflow.verbs.proposal import Proposal

__all__ = ["forget_router", "router_to_replace", "unheard_routers"]

_ANSWER_S = 3.0
"""Longest wait for an answer at the address of a router called dead; most of these, or their hosts, are gone."""


_LEAVES_S = 6.0
"""Time for a running router to leave by itself: SIGTERM gives the clients of a router 3 s for their last answers."""
_SILENT_S = 3.0
"""Silence in the presence log after which the router is asked at its address."""
_LOOK_S = 0.2


async def router_to_replace(connections: Connections, name: str, *, take_over: bool = False) -> str:
    """Return a name's registered instance, '' for none; unless `take_over`, raise Refused while the router answers.

    A router that is ending gets the time to leave. A router whose process has ended, or that is silent in the presence
    log and at its address, may be replaced at once.
    """
    while (router := _registered(connections.log.state, name)) is not None:
        if take_over or has_ended(router.process) or not await _goes_on(connections, router):
            return router.instance
        if _registered(connections.log.state, name) == router:
            raise already_runs(router)
    return ""


def _registered(state: State, name: str) -> RouterRecord | None:
    return next((router for router in state.routers() if router.name == name), None)


async def _goes_on(connections: Connections, router: RouterRecord) -> bool:
    """Return True if a router goes on to answer after the time to leave, or has left."""
    log, began = connections.log, monotonic()
    with connections.asking(f"router {router.name} is registered: listening for it"):
        while _registered(log.state, router.name) == router:
            if has_ended(router.process):
                return False
            _, last = log.presence.get(f"router/{router.instance}", (None, float("-inf")))
            now = monotonic()
            if now - last > _SILENT_S:
                return await _answers(connections, router)
            if now - began > _LEAVES_S:
                return True
            await log.changed(_LOOK_S)
    return True


async def _answers(connections: Connections, router: RouterRecord) -> bool:
    """Return True if a router without presence messages answers at its address."""
    found = await _signs_of_life(connections, router.name, [router.bootstrap], silent=router.instance)
    return any(each.ref == "router-answers" for each in found)


async def forget_router(connections: Connections, name: str, *, dead: bool = False) -> Proposal:
    """Propose to take a silent router out of the fences' count; `dead` is a person's word that its process has ended.

    Refused while the router reports, or while a router that is called dead answers at its address. A router that may
    live is remembered (`StrayRecord`): promotes are sealed for that router.
    """
    record, stray = _known(connections.log.state, name)
    runs = record is not None and record.instance in {p.instance for p in connections.log.alive(RouterPresence)}
    gone = None if runs else record
    ended = stray if dead else None
    changes = [f"forget router {name} on {gone.host}"] if gone is not None else []
    if gone is not None and not dead:
        changes.append("remember that it may live: topics that are promoted are sealed on the source for it")
    if ended is not None:
        changes.append(f"believe that {len(ended.instances)} earlier process(es) of router {name} have ended")
    found = [] if changes else [_unchanged(name, runs=runs)]
    if dead and changes:
        found += await _signs_of_life(connections, name, {each.bootstrap for each in (gone, ended) if each is not None})
    plan = Plan.of("router forget", changes, found)
    plan.refuse()

    async def act() -> Iterable[Finding]:
        if gone is not None:
            if not dead:
                await connections.log.append(lambda now: now.with_stray(gone) if gone.key in now.records else None)
            await _drop(connections, gone)
        if ended is not None:
            await _drop(connections, ended)
        return ()

    return Proposal(plan, act)


def _known(state: State, name: str) -> tuple[RouterRecord | None, StrayRecord | None]:
    record = next((router for router in state.routers() if router.name == name), None)
    stray = state.stray(name)
    if record is None and stray is None:
        names = {router.name for router in state.routers()} | {left.name for left in state.strays()}
        raise Refused(
            "unknown-router",
            f"no router {name} is registered{nearest(name, names)}; routers: {', '.join(sorted(names)) or 'none'}",
            still_true="nothing was changed",
            next_step="kmigrate status",
        )
    return record, stray


def _unchanged(name: str, *, runs: bool) -> Finding:
    if runs:
        return refuse("router-alive", f"router {name} is running", "stop it: it then leaves by itself")
    known = f"router {name} is forgotten, and may live"
    return ok("router-forgotten", known, f"kmigrate router forget {name} --dead")


async def _signs_of_life(
    connections: Connections, name: str, addresses: Iterable[str], silent: str = ""
) -> list[Finding]:
    """Return findings for what answers or listens at a dead router's addresses, except those of known routers.

    A router that was killed and started again has the address of its earlier process. The last presence of the `silent`
    instance says nothing about its address.
    """
    instances = {router.instance: router.bootstrap for router in connections.log.state.routers()}
    alive = [router for router in connections.log.alive(RouterPresence) if router.instance != silent]
    heard = [router for router in alive if router.name != name or router.instance in instances]
    others = {router.bootstrap or instances.get(router.instance, "") for router in heard}
    found: list[Finding] = []
    for address in sorted(set(addresses) - others - {""}):
        try:
            async with asyncio.timeout(_ANSWER_S):
                leads = (await ask_bootstraps(connections.target, [address]))[0].leads
        except TimeoutError:
            leads = Leads.NOWHERE
        if leads is Leads.ROUTER:
            what = f"router {name} is called dead, and a router answers at {address}"
            found.append(refuse("router-answers", what, "stop that process, then repeat"))
        elif leads is Leads.NOWHERE and await _is_taken(address):
            what = f"something at {address}, where router {name} was, takes connections and does not answer as a router"
            remedy = "it may be that router, stopped: make sure that its process has ended"
            found.append(warn("router-address-taken", what, remedy))
    return found


async def _is_taken(address: str) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await takes_connections(address)
    except TimeoutError:
        return False


async def _drop(connections: Connections, record: RouterRecord | StrayRecord) -> None:
    await connections.log.append(lambda now: (record.key, None) if now.records.get(record.key) == record else None)


def unheard_routers(log: StateLog) -> list[Finding]:
    """Return a warning for each router, silent or gone without a report, that a promote would be sealed for now."""
    alive = {presence.instance for presence in log.alive(RouterPresence)}
    names = {router.name for router in log.state.routers() if router.instance not in alive}
    names |= {stray.name for stray in log.state.strays()}
    return [
        warn(
            "router-unheard",
            f"a process of router {name} may live and does not answer: topics are sealed on the source in its place",
            f"start it again, or, if it has ended: kmigrate router forget {name} --dead",
        )
        for name in sorted(names)
    ]
