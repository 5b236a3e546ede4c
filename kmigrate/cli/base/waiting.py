"""Waiting for the result of an intent: the processes that must run, and the text shown meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from kmigrate.cli.base.call import Call
from kmigrate.errors import Interrupted, WaitTimedOut
from kmigrate.model.countdown import Countdown, about
from kmigrate.model.records import LinkRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, sleep
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.running import START_CONTROLLER, controller_runs, mirror_runs, no_mirror, start_mirror
from kmigrate.workflow.groups.uncopied import Uncopied, uncopied

__all__ = ["CONTROLLER_GOES_ON", "interruptible", "need_controller", "need_copy", "need_mirror", "watched"]

_SOON_S = 4.0
"""Seconds within which a just started process mostly reports; a longer wait is announced on stderr."""
_LOOK_S = 0.5
"""Seconds between two looks at the copy."""
_INTENT_STAYS = "the intent stays in the state log and is taken up when such a process runs"


async def need_mirror(
    call: Call, connections: Connections, link: str, timeout: float, still_true: str = _INTENT_STAYS
) -> None:
    """Wait until a mirror process of the link is heard of; raise WaitTimedOut after the configured time."""
    missing = _Missing("no-mirror-running", no_mirror(link), start_mirror(link), still_true)
    await _need(call, connections, lambda: mirror_runs(connections.log, link), timeout, missing)


async def need_controller(call: Call, connections: Connections, timeout: float) -> None:
    """Wait until a controller process is heard of; raise WaitTimedOut after the configured time."""
    what = "no controller process is heard of"
    missing = _Missing("no-controller-running", what, START_CONTROLLER, _INTENT_STAYS)
    await _need(call, connections, lambda: controller_runs(connections.log), timeout, missing)


@dataclass(frozen=True, slots=True)
class _Missing:
    """A process that a verb needs: the error without such a process, and the command that starts the process."""

    ref: str
    what: str
    start: str
    still_true: str


async def _need(
    call: Call, connections: Connections, runs: Callable[[], bool], timeout: float, missing: _Missing
) -> None:
    began = monotonic()
    limit = min(timeout, call.settings.defaults.process_wait_s)
    announced = False
    with call.out.waiting(missing.what) as waiting:
        while not runs():
            waited = monotonic() - began
            if waited >= limit:
                raise WaitTimedOut(
                    missing.ref,
                    f"{missing.what}, for {limit:g} s",
                    still_true=missing.still_true,
                    next_step=missing.start,
                )
            text = f"{missing.what}; waiting {limit - waited:.0f} s more. To start it: {missing.start}"
            waiting.say(text)
            if waited > _SOON_S and not announced:
                announced = True
                call.out.note(text)
            await connections.log.changed(min(1.0, limit - waited))


async def need_copy(
    call: Call, connections: Connections, link: LinkRecord, groups: Sequence[str], timeout: float, most: int
) -> None:
    """Wait until the target lacks at most that many records that the groups have read; nothing is written meanwhile."""
    again = advised("group promote", link.name, *groups)
    unchanged = f"nothing was changed: group {', '.join(groups)} is mirrored as before, and its members read on"
    deadline, countdown = monotonic() + timeout, Countdown()
    positions = Positions(connections.target, connections.log)
    with (
        interruptible("the copy that the promote needs", unchanged, again),
        call.out.waiting("looking how far the copy is") as waiting,
    ):
        while not _is_close(behind := await uncopied(connections, link, groups, positions), most):
            now = monotonic()
            estimate = about(countdown.seconds_left(now, _left(behind)))
            text = "; ".join(filter(None, (_named(behind), estimate)))
            if not mirror_runs(connections.log, link.name):
                await need_mirror(call, connections, link.name, timeout, unchanged)
            elif now >= deadline:
                raise WaitTimedOut(
                    "target-behind-group",
                    f"waited {timeout:g} s for the copy: {text}",
                    still_true=unchanged,
                    next_step=advised(f"group promote --timeout {max(1, 2 * timeout):g}", link.name, *groups),
                )
            waiting.say(f"waiting for the copy: {text}")
            await sleep(_LOOK_S)


def _is_close(behind: Sequence[Uncopied], most: int) -> bool:
    return all(each.left is not None for each in behind) and _left(behind) <= most


def _left(behind: Sequence[Uncopied]) -> int:
    """Return how many records are missing at most; a copy that has not begun lacks all that the group has read."""
    return sum(each.read_to if each.left is None else each.left for each in behind)


def _named(behind: Sequence[Uncopied]) -> str:
    """Name the partition that lacks most, and count the partitions if there are several."""
    worst = max(behind, key=lambda each: (each.left is None, each.left or 0))
    return f"{worst}{f'; partitions behind: {len(behind):,}' if len(behind) > 1 else ''}"


CONTROLLER_GOES_ON = (
    "it goes on: the controller carries it out, or gives it up with the reason where a guard or a deadline says no"
)
"""The state of a promote after its caller has stopped waiting."""


@contextmanager
def interruptible(what: str, still_true: str, next_step: str = "kmigrate status --watch") -> Iterator[None]:
    """Turn Ctrl-C into an error that says what goes on: other processes carry out the intent without this call."""
    try:
        yield
    except asyncio.CancelledError:
        raise Interrupted(
            "interrupted", f"stopped waiting for {what}", still_true=still_true, next_step=next_step
        ) from None


@contextmanager
def watched(
    call: Call, connections: Connections, link: str, noun: Literal["topic", "group"], names: Iterable[str]
) -> Iterator[Callable[[State], None]]:
    """Show a spinner that names the phase of each topic or group, and what each one waits for."""
    with call.out.waiting("waiting") as waiting:

        def say(state: State) -> None:
            lines = []
            for name in names:
                record = state.topic(link, name) if noun == "topic" else state.group(link, name)
                if record is not None:
                    reason = record.reason or connections.waits_for(record)
                    lines.append(f"{name}: {record.phase}{f' ({reason})' if reason else ''}")
            waiting.say("; ".join(lines))

        yield say
