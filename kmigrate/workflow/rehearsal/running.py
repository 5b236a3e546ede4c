"""The heartbeat of a rehearsal, and the rehearsals that nobody runs any more."""

from __future__ import annotations

from contextlib import suppress

from kmigrate.errors import Unreachable
from kmigrate.model.presences import RehearsalPresence
from kmigrate.model.records import LinkRecord
from kmigrate.model.rehearsals import is_rehearsal
from kmigrate.net.retry import every
from kmigrate.state.log import StateLog

__all__ = ["announce", "beat", "dead_rehearsals", "running_rehearsals"]

_BEAT_S = 1.0
_SILENT_S = 10.0
"""Seconds without a heartbeat after which nobody runs a rehearsal any more."""


async def announce(log: StateLog, link: str, instance: str) -> None:
    """Write one heartbeat."""
    await log.announce(RehearsalPresence(instance, link, log.state.epoch, round(_BEAT_S * 1000)))


async def beat(log: StateLog, link: str, instance: str) -> None:
    """Write heartbeats until cancelled; a lost heartbeat is followed by the next."""
    async for _ in every(_BEAT_S):
        with suppress(Unreachable):
            await announce(log, link, instance)


def _runs(log: StateLog, link: str) -> bool:
    """Return whether a call still runs the rehearsal of a link."""
    return any(each.link == link for each in log.alive(RehearsalPresence, _SILENT_S))


def dead_rehearsals(log: StateLog) -> list[LinkRecord]:
    """Return the links of rehearsals that nobody runs any more."""
    return [link for link in log.state.links() if is_rehearsal(link.name) and not _runs(log, link.name)]


def running_rehearsals(log: StateLog) -> list[str]:
    """Return the links of rehearsals that a call still runs."""
    return [link.name for link in log.state.links() if is_rehearsal(link.name) and _runs(log, link.name)]
