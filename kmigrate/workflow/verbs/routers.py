"""The verb that takes a silent router out of the fences' count, and what a promote is told of such routers."""

from __future__ import annotations

from kmigrate.errors import Refused
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import RouterRecord, StrayRecord
from kmigrate.model.state import State
from kmigrate.state.log import StateLog
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Finding, Plan

__all__ = ["forget_router", "unheard_routers"]


async def forget_router(estate: Estate, name: str, *, dead: bool = False, plan: bool = False) -> Plan:
    """Take a silent router out of the fences' count; with `dead`, say for a person that its process has ended.

    Refused while the router is heard of. One that may live is remembered (`StrayRecord`): promotes are sealed for it.
    """
    record, stray = _known(estate.log.state, name)
    runs = record is not None and record.instance in {p.instance for p in estate.log.alive(RouterPresence)}
    gone = None if runs else record
    ended = stray if dead else None
    changes = [f"forget router {name} on {gone.host}"] if gone is not None else []
    if gone is not None and not dead:
        changes.append("remember that it may live: topics that are promoted are sealed on the source for it")
    if ended is not None:
        changes.append(f"believe that {len(ended.instances)} earlier process(es) of router {name} have ended")
    made = Plan.of("router forget", changes, [] if changes else [_unchanged(name, runs=runs)])
    made.refuse()
    if plan:
        return made
    if gone is not None:
        if not dead:
            await estate.log.append(lambda now: now.with_stray(gone) if gone.key in now.records else None)
        await _drop(estate, gone)
    if ended is not None:
        await _drop(estate, ended)
    return made.done()


def _known(state: State, name: str) -> tuple[RouterRecord | None, StrayRecord | None]:
    record = next((router for router in state.routers() if router.name == name), None)
    stray = state.stray(name)
    if record is None and stray is None:
        names = {router.name for router in state.routers()} | {left.name for left in state.strays()}
        raise Refused(
            "unknown-router",
            f"no router {name} is registered; routers: {', '.join(sorted(names)) or 'none'}",
            still_true="nothing was changed",
            next_step="kmigrate status",
        )
    return record, stray


def _unchanged(name: str, *, runs: bool) -> Finding:
    if runs:
        return Finding("refuse", "router-alive", f"router {name} is running", "stop it: it then leaves by itself")
    known = f"router {name} is forgotten, and may live"
    return Finding("ok", "router-forgotten", known, f"kmigrate router forget {name} --dead")


async def _drop(estate: Estate, record: RouterRecord | StrayRecord) -> None:
    await estate.log.append(lambda now: (record.key, None) if now.records.get(record.key) == record else None)


def unheard_routers(log: StateLog) -> list[Finding]:
    """Routers that a promote is sealed for as things stand: silent ones, and those that left without a word."""
    alive = {presence.instance for presence in log.alive(RouterPresence)}
    names = {router.name for router in log.state.routers() if router.instance not in alive}
    names |= {stray.name for stray in log.state.strays()}
    return [
        Finding(
            "warn",
            "router-unheard",
            f"a process of router {name} may live and does not answer: topics are sealed on the source in its place",
            f"start it again, or, if it has ended: kmigrate router forget {name} --dead",
        )
        for name in sorted(names)
    ]
