"""Carries out the steps of an itinerary one by one: look, ask, act, and stop between steps wherever a person likes.

Each step is a step of a playbook and calls the verb itself. Before a verb acts, the guide shows the verb's own plan.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

from kmigrate.cli.base import wizard
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.playbook_run import Runner
from kmigrate.cli.commands.playbook_verbs import CALLS, parameter_of, verbs
from kmigrate.cli.guide.itinerary import Choices, command_of, playbook_text, step_json
from kmigrate.errors import Interrupted, KmigrateError, UsageError
from kmigrate.workflow.playbook.parse import parse_playbook
from kmigrate.workflow.playbook.steps import ApproveStep, ExecStep, Playbook, RunStep, Step

__all__ = ["Journey"]

_NO_PLAN = frozenset({"verify"})
"""Verbs that change nothing, and so have no plan."""
_STOP = "stop here"


class _Stopped(Exception):
    """Raised when the person stops before a step."""


@dataclass
class Journey:
    """The steps of one migration, and how they are carried out."""

    call: Call
    choices: Choices
    steps: Sequence[Mapping[str, Any]]
    asks: bool
    """True if a person confirms each step."""
    moved: bool
    """True if the person has said beforehand that all clients have moved."""
    go_on: Callable[[], str]
    """Returns the command that goes on after a stop."""
    clients_now: Callable[[], Text]
    """Returns a line about clients that are not at a router yet."""
    _book: Playbook = field(init=False)
    _runner: Runner = field(init=False)

    def __post_init__(self) -> None:
        self._book = parse_playbook(playbook_text(self.choices, self.steps), "kmigrate guide", verbs())
        self._runner = Runner(self.call, self._book, frozenset({"all"}))  # the journey itself asks for approvals

    def run(self, last: int | None = None) -> bool:
        """Carry out the steps up to number `last`; return False if the person stopped between two steps."""
        at = 0
        try:
            for at in range(len(self.steps) if last is None else last):
                self._one(at)
        except _Stopped:
            self._say_stopped(at)
            return False
        except (KeyboardInterrupt, asyncio.CancelledError, typer.Abort, Interrupted) as stop:
            raise self._interrupted(at, stop) from None
        return True

    def _one(self, at: int) -> None:
        step = self._book.steps[at]
        self._head(at)
        while True:
            try:
                skipped = self._runner.skipped(step)
                if skipped is None:
                    self._consent(step)
                self._show(at, *(skipped or self._runner.act(step)))
                return
            except Interrupted:
                raise
            except KmigrateError as error:
                if not self.asks:
                    error.still_true = "; ".join(filter(None, (error.still_true, "the steps before this step stand")))
                    raise
                self.call.out.error(error)
                self._choose("The step did not succeed. How do you go on?", "try the step again")

    def _show(self, at: int, result: Mapping[str, Any], view: Any) -> None:
        if self.call.json:
            fields = step_json(at + 1, self.steps[at], self.choices)
            self.call.out.line({**fields, "result": result}, "")
        elif view is not None:
            self.call.out.show(view)

    def _head(self, at: int) -> None:
        if self.call.json:
            return
        command = command_of(self.steps[at], self.choices)
        title = Text(f"Step {at + 1} of {len(self.steps)}: {self.steps[at]['title']}", style="bold")
        self.call.out.show(title)
        if command:
            self.call.out.show(Text(f"  $ {command}", style="cyan"), as_it_is=True)

    def _consent(self, step: Step) -> None:
        """Have the person agree to a step that changes something, or that only a person can judge."""
        if isinstance(step, ApproveStep):
            self._ask_approval(step)
        elif isinstance(step, ExecStep) and self.asks:
            self._choose("Run this step?", "run")
        elif isinstance(step, RunStep) and step.verb not in _NO_PLAN:
            looked = self._look(step)
            if not looked.json.get("changes"):
                return  # a step that is done already needs no answer
            if not self.call.json:
                self.call.out.show(looked.view)
            if self.asks:
                self._choose("Run this step?", "run")

    def _look(self, step: RunStep) -> Answer:
        options = {parameter_of(key): value for key, value in step.options.items()}
        result = CALLS[step.verb](self.call, **options, plan=True)
        answer: Answer = asyncio.run(result) if inspect.iscoroutine(result) else result
        return answer

    def _ask_approval(self, step: ApproveStep) -> None:
        if self.asks:
            self.call.out.show(self.clients_now())
            self._choose(step.question, "yes, go on")
        elif not self.moved:
            raise UsageError(
                "needs-yes",
                f"this needs a yes, and there is no terminal to ask on: {step.question}",
                still_true="the steps before this step stand",
                next_step=f"restart the clients, then: {self.go_on()} --clients-moved",
            )

    def _choose(self, question: str, go: str) -> None:
        if wizard.choose(question, [(go, False), (_STOP, True)]):
            raise _Stopped

    def _say_stopped(self, at: int) -> None:
        self.call.out.show(Text(f"Stopped before step {at + 1}. The steps before step {at + 1} stand."))
        self.call.out.show(Text.assemble(("to go on: ", "dim"), self.go_on()), as_it_is=True)

    def _interrupted(self, at: int, stop: BaseException) -> Interrupted:
        still = stop.still_true if isinstance(stop, Interrupted) else ""
        return Interrupted(
            "interrupted",
            f"stopped in step {at + 1} ({self.steps[at]['title']})",
            still_true="; ".join(filter(None, (still, "the steps before this step stand"))),
            next_step=self.go_on(),
        )
