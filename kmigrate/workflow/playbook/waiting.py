"""Waits until a condition on the status holds, for a step of a playbook and for `kmigrate wait`."""

from __future__ import annotations

from collections.abc import Callable

from kmigrate.errors import WaitTimedOut
from kmigrate.model.countdown import Countdown, about
from kmigrate.net.clock import monotonic, sleep
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.playbook.conditions import Condition, Scope, Verdict
from kmigrate.workflow.status.snapshot import snapshot

__all__ = ["judge", "wait_until"]

_LOOK_S = 0.25


async def judge(connections: Connections, condition: Condition, scope: Scope) -> Verdict:
    """Judge a condition on a new snapshot; clusters are asked only where the condition needs their figures."""
    shot = await snapshot(connections, figures=condition.needs_figures)
    return condition.judge(shot, scope)


async def wait_until(
    connections: Connections, condition: Condition, scope: Scope, timeout: float, say: Callable[[str], None]
) -> float:
    """Return the seconds until the condition held; `say` hears what is waited for, for which number, and how long."""
    began, countdown = monotonic(), Countdown()
    while True:
        verdict = await judge(connections, condition, scope)
        waited = monotonic() - began
        if verdict.holds:
            return waited
        left = None if verdict.left is None else countdown.seconds_left(waited, verdict.left)
        text = ", ".join(filter(None, (verdict.waits_for, about(left))))
        if waited >= timeout:
            raise WaitTimedOut(
                "wait-timed-out",
                f"waited {timeout:g} s for {condition.text}: {text}",
                still_true="the wait changed nothing, and what was asked for before goes on",
                next_step="kmigrate status --watch shows how it goes on; then wait again with a longer --timeout",
            )
        say(f"waiting for {condition.text}: {text}; {timeout - waited:.0f} s until this wait ends")
        await sleep(_LOOK_S)
