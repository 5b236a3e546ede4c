"""`kmigrate wait`: waits until a condition of playbooks holds."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Any

import typer

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import Link
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.errors import Interrupted, Refused, UsageError, WaitTimedOut
from kmigrate.model.nearest import nearest
from kmigrate.model.state import State
from kmigrate.model.words import as_words
from kmigrate.net.clock import monotonic, sleep
from kmigrate.workflow import verbs
from kmigrate.workflow.playbook.conditions import EXPECTED, Condition, Scope, meant_condition, parse_condition
from kmigrate.workflow.playbook.waiting import wait_until

__all__ = ["app", "hold_on", "wait"]

app = typer.Typer()

_NOT_CREATED_YET = frozenset({"no-state-log", "no-link"})
"""References of errors that end when somebody creates the link, as an earlier job of a pipeline does."""
_LOOK_S = 1.0


@command(app, "wait")
async def wait(
    call: Call,
    condition: Annotated[
        str | None, typer.Argument(metavar="CONDITION", help="A sentence in quotes: 'lag <= 1000', 'topics mirroring'.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Topics or groups (else all that are mirrored).")
    ] = None,
    link: Link = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.", min=0.0)] = 120.0,
) -> Answer:
    """Wait until a condition holds; changes nothing.

    Conditions: 'lag <= N', 'topics PHASE', 'groups PHASE', 'mirror running', 'router running', 'controller running',
    'seconds N' (docs/playbooks.md). A link that is not created yet is waited for, too. The exit code is 5 if the
    condition does not hold in time.
    """
    sentence = call.required(condition, "CONDITION", f"the condition: {EXPECTED}")
    parsed = parse_condition(sentence)
    if parsed is None:
        raise _no_condition(sentence, names or [])
    scope = _scope(parsed, names or [], call.link(link))
    again = shlex.join(["kmigrate", "wait", *(["--link", scope.link] if scope.link else []), sentence])
    try:
        fields = await hold_on(call, parsed, scope, timeout)
    except asyncio.CancelledError:
        raise Interrupted(
            "interrupted",
            f"stopped waiting for {sentence}",
            still_true="the wait changed nothing, and what was asked for before goes on",
            next_step=f"{again} {as_words(*names or [])}".rstrip(),
        ) from None
    return Answer(fields, Text(f"✓ {sentence}, after {fields['seconds']:g} s"))


def _no_condition(sentence: str, names: list[str]) -> UsageError:
    """Return the error for a sentence that states no condition; a sentence without its quotes is put in quotes."""
    whole = next(
        (text for n in range(len(names), 0, -1) if parse_condition(text := " ".join([sentence, *names[:n]]))), ""
    )
    rest = names[len(whole.split()) - len(sentence.split()) :] if whole else []
    return UsageError(
        "bad-condition",
        f"{sentence!r} is no condition{': the quotes are missing' if whole else meant_condition(sentence)}",
        still_true="nothing was contacted or changed",
        next_step=shlex.join(["kmigrate", "wait", whole, *rest]) if whole else f"expected: {EXPECTED}",
    )


def _scope(condition: Condition, names: list[str], link: str | None) -> Scope:
    match condition.kind:
        case "lag" | "topics":
            return Scope(link, topics=tuple(names))
        case "groups":
            return Scope(link, groups=tuple(names))
    if names:
        raise UsageError(
            "bad-condition",
            f"{condition.text} is about no topic and no group, and {names[0]!r} is given",
            still_true="nothing was contacted or changed",
            next_step=shlex.join(["kmigrate", "wait", condition.text]),
        )
    return Scope(link)


async def hold_on(call: Call, condition: Condition, scope: Scope, timeout: float) -> dict[str, Any]:
    """Wait until a condition holds, and show on a terminal what is waited for; return the JSON document."""
    if condition.kind == "seconds":
        with call.out.waiting(condition.text):
            await sleep(condition.number)
        return {"condition": condition.text, "seconds": condition.number}
    began = monotonic()
    with call.out.waiting(f"waiting for {condition.text}") as waiting:
        while True:
            waited = monotonic() - began
            left = round(max(0.0, timeout - waited), 1)
            try:
                async with call.connections() as connections:
                    _find_link(connections.log.state, scope.link)
                    await wait_until(connections, condition, scope, left, waiting.say)
                return {"condition": condition.text, "seconds": round(monotonic() - began, 3)}
            except Refused as refused:
                if refused.ref not in _NOT_CREATED_YET:
                    raise
                if waited >= timeout:
                    raise _never_created(condition, timeout, refused) from None
                waiting.say(f"waiting for {condition.text}: {refused.what}; {left:.0f} s until this wait ends")
                await sleep(min(_LOOK_S, timeout - waited))


def _find_link(state: State, link: str | None) -> None:
    """Raise `no-link` for a link that is not created yet, and `unknown-link` for a misspelt link."""
    if link is None or state.link(link) is not None:
        return
    if nearest(link, (each.name for each in state.links())):
        verbs.resolve_link(state, link)
    raise Refused("no-link", f"there is no link {link} yet")


def _never_created(condition: Condition, timeout: float, refused: Refused) -> WaitTimedOut:
    return WaitTimedOut(
        "wait-timed-out",
        f"waited {timeout:g} s for {condition.text}: {refused.what}",
        still_true="the wait changed nothing, and what was asked for before goes on",
        next_step="kmigrate link create NAME --source CLUSTER --target CLUSTER; then wait again",
    )
