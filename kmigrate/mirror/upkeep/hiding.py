"""The wait for routers that hide partitions from clients before the mirror writes fillers to them."""

from __future__ import annotations

from kmigrate.errors import Unreachable, WaitTimedOut
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import RouterRecord
from kmigrate.model.state import State
from kmigrate.state.log import StateLog

__all__ = ["wait_hidden"]

_PATIENCE_S = 5.0
"""Patience in seconds: longer than a router takes to report the state of a record."""


async def wait_hidden(log: StateLog, topic: str, epoch: int) -> None:
    """Wait until every router hides the topic (state `epoch`); else raise Unreachable: clients would read fillers."""
    missing: list[RouterRecord] = []

    def all_follow(state: State) -> bool | None:
        applied = {presence.instance: presence.applied for presence in log.alive(RouterPresence)}
        missing[:] = [router for router in state.routers() if applied.get(router.instance, -1) < epoch]
        return True if not missing else None

    try:
        await log.wait(all_follow, _PATIENCE_S, f"the routers to hide {topic}")
    except WaitTimedOut:
        names = ", ".join(f"{router.name} on {router.host}" for router in missing)
        name = missing[0].name if missing else "NAME"
        raise Unreachable(
            "router-unheard",
            f"router {names} has not said that it hides {topic}, which has to be filled up to its start",
            still_true="no filler was written, and the topic's clients go on as before",
            next_step=f"start that router again, or, if its process has ended: kmigrate router forget {name} --dead",
        ) from None
