"""Waiting for what an intent asks for: who must run for it, and what is said meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kmigrate.cli.call import Call
from kmigrate.errors import Interrupted, WaitTimedOut
from kmigrate.model.presences import ControllerPresence, MirrorPresence
from kmigrate.model.records import CopyEngine
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.workflow.estate import Estate

__all__ = ["CONTROLLER_GOES_ON", "interruptible", "need_controller", "need_mirror", "watched_groups", "watched_topics"]

_GRACE_SECONDS = 4.0
"""A process that has just been started gets this long to say its first word."""


async def need_mirror(estate: Estate, link: str, timeout: float) -> None:
    """`no-mirror-running` (exit 5) unless a mirror of the link lives; what was written stays written."""

    def runs() -> bool:
        return any(
            each.link == link and each.engine is CopyEngine.DAEMON for each in estate.log.alive(MirrorPresence)
        )

    await _need(estate, runs, timeout, "no-mirror-running", "no mirror running: start kmigrate run")


async def need_controller(estate: Estate, timeout: float) -> None:
    """The same for the controller, which carries promotes out."""

    def runs() -> bool:
        return bool(estate.log.alive(ControllerPresence))

    await _need(estate, runs, timeout, "no-controller-running", "no controller running: start kmigrate run")


async def _need(estate: Estate, runs: Callable[[], bool], timeout: float, ref: str, what: str) -> None:
    deadline = monotonic() + min(timeout, _GRACE_SECONDS)
    while not runs():
        left = deadline - monotonic()
        if left <= 0:
            raise WaitTimedOut(
                ref,
                what,
                still_true="the intent stays in the state log and is taken up when one runs",
                next_step="kmigrate run",
            )
        await estate.log.changed(left)


CONTROLLER_GOES_ON = (
    "it goes on: the controller carries it out, or gives it up with the reason where a guard or a deadline says no"
)
"""What is true of a promote that nobody waits for."""


@contextmanager
def interruptible(what: str, still_true: str, next_step: str = "kmigrate status --watch") -> Iterator[None]:
    """Ctrl-C ends the wait and not what is waited for: others carry that out, so it has to be said."""
    try:
        yield
    except asyncio.CancelledError:
        raise Interrupted(
            "interrupted", f"stopped waiting for {what}", still_true=still_true, next_step=next_step
        ) from None


@contextmanager
def watched_topics(call: Call, estate: Estate, link: str, topics: list[str]) -> Iterator[Callable[[State], None]]:
    """A spinner that names each topic's phase and what it waits for."""
    with call.out.waiting("waiting") as waiting:

        def say(state: State) -> None:
            records = [state.topic(link, topic) for topic in topics]
            why = [(r, r.reason or estate.waits_for(r)) for r in records if r is not None]
            waiting.say("; ".join(f"{r.topic}: {r.phase}{f' ({reason})' if reason else ''}" for r, reason in why))

        yield say


@contextmanager
def watched_groups(call: Call, estate: Estate, link: str, groups: list[str]) -> Iterator[Callable[[State], None]]:
    """The same for groups."""
    with call.out.waiting("waiting") as waiting:

        def say(state: State) -> None:
            records = [state.group(link, group) for group in groups]
            why = [(r, r.reason or estate.waits_for(r)) for r in records if r is not None]
            waiting.say("; ".join(f"{r.group}: {r.phase}{f' ({reason})' if reason else ''}" for r, reason in why))

        yield say
