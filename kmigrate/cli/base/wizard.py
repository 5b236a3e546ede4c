"""Questions to a person, asked on a terminal only; no other module uses questionary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from kmigrate.errors import Refused, UsageError
from kmigrate.model.words import one_line

__all__ = ["ask", "ask_list", "confirm"]


def ask(interactive: bool, flag: str, what: str, choices: list[str]) -> str:
    """Return a missing value: chosen or typed on a terminal, a usage error elsewhere."""
    if not interactive:
        raise _missing(flag, what)
    import questionary  # few calls ask anything, and questionary takes long to import

    question = one_line(f"{what[0].upper()}{what[1:]}?")
    shown = [questionary.Choice(one_line(each), each) for each in choices]
    return str(_said(questionary.select(question, shown) if shown else questionary.text(question)))


def ask_list(interactive: bool, flag: str, what: str) -> list[str]:
    if not interactive:
        raise _missing(flag, what)
    import questionary

    return str(_said(questionary.text(f"{what[0].upper()}{what[1:]} (separated by spaces)?"))).split()


async def confirm(interactive: bool, question: str) -> None:
    """Go on only if the person says yes; meanwhile the process reads the state log for the verb's new decision."""
    if not interactive:
        raise UsageError(
            "needs-yes",
            f"this needs a yes, and there is no terminal to ask on: {question}",
            next_step="repeat it with --yes, or look first with --plan",
        )
    import questionary

    with _abort():
        sure = await questionary.confirm(one_line(question), default=False).application.run_async()
    if not sure:
        raise Refused("not-confirmed", "not confirmed", still_true="nothing was changed")


def _said(question: Any) -> Any:
    """Return the answer; within a verb's loop a thread asks, because questionary runs an event loop of its own."""
    with _abort():
        answer = question.application.run(in_thread=asyncio._get_running_loop() is not None)
    if answer == "":  # nothing was typed
        raise typer.Abort
    return answer


@contextmanager
def _abort() -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, EOFError):  # Ctrl-C, Ctrl-D
        raise typer.Abort from None


def _missing(flag: str, what: str) -> UsageError:
    return UsageError(
        "missing-value",
        f"{flag} is missing: {what}",
        still_true="nothing was contacted or changed",
        next_step=f"give {flag}",
    )
