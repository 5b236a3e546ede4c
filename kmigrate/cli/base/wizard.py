"""Questions to a person, asked on a terminal only; no other module uses questionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

from kmigrate.errors import Refused, UsageError
from kmigrate.model.words import one_line

__all__ = ["agree", "ask", "ask_list", "choose", "choose_some", "confirm", "type_in", "type_secret"]

T = TypeVar("T")


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


def choose(question: str, choices: Sequence[tuple[str, T]]) -> T:
    """Return the value of the chosen title; the first title is marked."""
    import questionary

    shown = [questionary.Choice(one_line(title), value) for title, value in choices]
    answer: T = _answered(questionary.select(one_line(question), shown))
    return answer


def choose_some(question: str, choices: Sequence[tuple[str, str]], chosen: Sequence[str] = ()) -> list[str]:
    """Return the values of the chosen titles, in the order of the list; letters narrow the list."""
    import questionary

    shown = [questionary.Choice(one_line(title), value, checked=value in chosen) for title, value in choices]
    help_text = "(space: choose, letters: filter, enter: go on)"
    asked = questionary.checkbox(
        one_line(question), shown, instruction=help_text, use_search_filter=True, use_jk_keys=False
    )
    return [str(each) for each in _answered(asked)]


def type_in(question: str, default: str = "", wrong: Callable[[str], str] = lambda _: "") -> str:
    """Return a typed text; `wrong` says what is wrong with a text, and '' for a text that is fine."""
    import questionary

    asked = questionary.text(one_line(question), default, validate=lambda text: wrong(text.strip()) or True)
    return str(_answered(asked)).strip()


def type_secret(question: str) -> str:
    import questionary

    return str(_answered(questionary.password(one_line(question), validate=lambda text: bool(text) or "nothing yet")))


def agree(question: str, *, default: bool = True) -> bool:
    """Return whether the person says yes."""
    import questionary

    return bool(_answered(questionary.confirm(one_line(question), default=default)))


def _said(question: Any) -> Any:
    answer = _answered(question)
    if answer == "":  # nothing was typed
        raise typer.Abort
    return answer


def _answered(question: Any) -> Any:
    """Return the answer; within a verb's loop a thread asks, because questionary runs an event loop of its own."""
    with _abort():
        return question.application.run(in_thread=asyncio._get_running_loop() is not None)


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
