"""The run of a playbook: step by step, with conditions, further tries, approvals, and the steps after a failure."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text, hidden
from kmigrate.cli.commands.playbook_exec import run_command
from kmigrate.cli.commands.playbook_verbs import CALLS, parameter_of
from kmigrate.cli.commands.wait import hold_on
from kmigrate.errors import (
    AuthenticationFailed,
    Diverged,
    Failed,
    Interrupted,
    KmigrateError,
    ParityMismatch,
    ProtocolViolation,
    Refused,
    StateLogBroken,
    WaitTimedOut,
)
from kmigrate.net.clock import block, monotonic
from kmigrate.report.playbook_junit import StepOutcome
from kmigrate.workflow.playbook.conditions import Condition, Scope
from kmigrate.workflow.playbook.steps import DANGEROUS, ApproveStep, ExecStep, Playbook, RunStep, Step, WaitStep
from kmigrate.workflow.playbook.waiting import judge

__all__ = ["Runner", "call_verb", "holds_now", "step_json"]

_LOOK_SECONDS = 0.25
_PROGRESS_SECONDS = {True: 1.0, False: 10.0}
"""Least time between two lines of progress, with --json and without."""
_TRIED_AGAIN = (Failed, WaitTimedOut)
_NEVER_AGAIN = (AuthenticationFailed, Diverged, ProtocolViolation, StateLogBroken)
"""Failures that a further try cannot end."""
_WITHOUT_A_YES = frozenset({"not-approved", "not-confirmed", "approval-timed-out", "exec-timed-out"})
"""Ends of an approval that are no failure: the run waits for a yes."""
_GO_ON = "run the playbook again: it goes on here"

Result = tuple[Mapping[str, Any], RenderableType | None]


def step_json(step: Step, book: Playbook) -> dict[str, Any]:
    kind = {RunStep: "run", ExecStep: "exec", WaitStep: "wait", ApproveStep: "approve"}[type(step)]
    fields = {"step": step.number, "kind": kind, "what": book.values.hide(step.text), "title": step.title}
    return {**book.values.hide_json(fields), **({"after_failure": True} if step.after_failure else {})}


def call_verb(call: Call, step: RunStep) -> Answer:
    """Call the verb of a step as the command line does."""
    options = {parameter_of(key): value for key, value in step.options.items()}
    if step.verb in DANGEROUS:
        options["yes"] = True  # the user was asked once, for the whole playbook
    result = CALLS[step.verb](call, **options)
    answer: Answer = asyncio.run(_within(step, result)) if inspect.iscoroutine(result) else result
    return answer


async def _within(step: RunStep, verb: Any) -> Any:
    """Return the verb's result; end a verb that takes longer than the step's own timeout."""
    try:
        async with asyncio.timeout(step.timeout) as limit:
            return await verb
    except (TimeoutError, Interrupted):
        if not limit.expired():
            raise
        raise WaitTimedOut(
            "step-timed-out",
            f"{step.name}: {step.what} did not end within {step.timeout:g} s",
            still_true="what this step had written before stays",
            next_step=f"kmigrate status, then {_GO_ON}",
        ) from None


class Runner:
    """Runs the steps of one playbook, and keeps the outcome of each."""

    def __init__(self, call: Call, book: Playbook, approved: frozenset[str] = frozenset()) -> None:
        self._call, self._book, self._approved = call, book, approved
        self.outcomes: list[StepOutcome] = []
        self._progress_at = 0.0

    def run(self) -> None:
        """Run all steps; after a failure run the steps of `on_failure`, and raise the failure."""
        for step in self._book.steps:
            try:
                self._one(step)
            except Interrupted:
                raise
            except KmigrateError as failure:
                if not isinstance(step, ApproveStep) or failure.ref not in _WITHOUT_A_YES:
                    self._after(failure)
                raise

    def _after(self, failure: KmigrateError) -> None:
        """Run the steps of `on_failure`; a failure among them is printed and stops none of the others."""
        for step in self._book.on_failure:
            try:
                self._one(step)
            except Interrupted:
                raise
            except KmigrateError as error:
                self._call.out.note(f"{error.what}; the failure before is: {failure.ref}")

    def _one(self, step: Step) -> None:
        """Run a step; with --json print a line when the step starts and a line when the step has ended."""
        started = monotonic()
        with self._recorded(step, started), self._named(step), hidden(self._book.values.hide):
            self._announce(step)
            result, view = self.skipped(step) or self._tried(step)
            outcome = "skipped" if "skipped" in result else "nothing to do" if result.get("changes") == [] else "done"
        seconds = round(monotonic() - started, 3)
        self.outcomes.append(self._outcome(step, outcome, seconds))
        if not self._call.json:
            if view is not None:
                self._call.out.show(view)
            return
        result = self._book.values.hide_json(result)
        fields = {"event": "step-ended", **self._json(step), "outcome": outcome, "seconds": seconds, "result": result}
        self._call.out.line(fields, "")

    def _json(self, step: Step) -> dict[str, Any]:
        return step_json(step, self._book)

    def _outcome(self, step: Step, outcome: str, seconds: float, error: Exception | None = None) -> StepOutcome:
        hide, ref = self._book.values.hide, ""
        if error is not None:
            ref = error.ref if isinstance(error, KmigrateError) else "internal-error"
        return StepOutcome(step.name, hide(step.text), outcome, seconds, ref, hide(str(error or "")))

    @contextmanager
    def _recorded(self, step: Step, started: float) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.outcomes.append(self._outcome(step, "failed", round(monotonic() - started, 3), error))
            raise

    @contextmanager
    def _named(self, step: Step) -> Iterator[None]:
        """Add to any error the step in which the playbook ended, and that the steps before it stand; hide secrets."""
        stand, hide = "the steps before it stand", self._book.values.hide
        try:
            yield
        except KmigrateError as error:
            if not error.what.startswith(step.name):
                error.what = f"{step.name} ({step.text}): {error.what}"
            if stand not in error.still_true:
                error.still_true = "; ".join(filter(None, (error.still_true, stand)))
            error.what, error.still_true, error.next_step = map(hide, (error.what, error.still_true, error.next_step))
            raise
        except (KeyboardInterrupt, typer.Abort):  # the second from a question that the person left
            raise Interrupted(
                "interrupted",
                hide(f"stopped in {step.name} ({step.text})"),
                still_true=f"{stand}, and what this one had written",
                next_step=_GO_ON,
            ) from None

    def _announce(self, step: Step) -> None:
        out = self._call.out
        if self._call.json:
            out.line({"event": "step-started", **self._json(step)}, "")
        else:
            total = len(self._book.on_failure if step.after_failure else self._book.steps)
            mark = "after the failure, " if step.after_failure else ""
            out.show(Text(f"[{mark}{step.number}/{total}] {self._book.values.hide(step.text)}", style="bold"))
        if out.reader_left:
            raise Failed(
                "nobody-reads",
                f"the reader of this call's output has left before {step.name}",
                still_true="the steps before it stand",
                next_step="run the playbook again, with its output to where it stays: it goes on here",
            )
        self._progress_at = 0.0
        out.heard = None if out.err.is_terminal and not self._call.json else lambda text: self._progress(step, text)

    def _progress(self, step: Step, text: str) -> None:
        """Print what a step waits for, in JSON or in the log of a CI job, but not often."""
        now = monotonic()
        if not self._progress_at or now - self._progress_at >= _PROGRESS_SECONDS[self._call.json]:
            first, self._progress_at = not self._progress_at, now
            if self._call.json or not first:
                shown = self._book.values.hide(text)
                self._call.out.line({"event": "progress", "step": step.number, "text": shown}, f"  … {shown}")

    def skipped(self, step: Step) -> Result | None:
        """Return the result of a step that a condition leaves out; None for a step that has to run."""
        for guard in step.guards:
            holds = guard.holds
            if guard.condition is not None:
                holds = asyncio.run(holds_now(self._call, guard.condition, step.scope))
            if guard.skips(holds):
                why = guard.text if guard.key == "unless" else f"not {guard.text}"
                return {"skipped": why}, Text(f"  skipped: {self._book.values.hide(why)}", style="dim")
        return None

    def _tried(self, step: Step) -> Result:
        """Run a step until it succeeds or its tries are used up."""
        for left in range(step.retries, 0, -1):
            try:
                return self.act(step)
            except _TRIED_AGAIN as error:
                if isinstance(error, _NEVER_AGAIN):
                    raise
                text = self._book.values.hide(f"{step.name} failed: {error.summary}")
                more = f"trying again in {step.retry_delay:g} s, {left} {'tries' if left > 1 else 'try'} left"
                self._call.out.note(f"{text}; {more}")
                if self._call.json:
                    fields = {"event": "try-failed", **self._json(step), "error": error.ref, "left": left}
                    self._call.out.line(fields, "")
                block(step.retry_delay)
        return self.act(step)

    def act(self, step: Step) -> Result:
        """Run a step once; return the JSON document and the view for a person."""
        match step:
            case RunStep():
                return self._verb(step)
            case ExecStep():
                return self._execute(step), None
            case WaitStep():
                return asyncio.run(hold_on(self._call, step.condition, step.scope, step.timeout)), None
            case ApproveStep():
                return self._approve(step)

    def _verb(self, step: RunStep) -> Result:
        try:
            answer = call_verb(self._call, step)
        except Refused as refused:
            if step.verb == "link delete" and refused.ref in ("unknown-link", "no-link", "no-state-log"):
                return {"already": "there is no such link"}, None
            raise
        if answer.exit is Exit.OK:
            return answer.json, answer.view
        if not self._call.json:
            self._call.out.show(answer.view)
        kinds = {Exit.PARITY_MISMATCH: ParityMismatch, Exit.REFUSED: Refused}
        raise kinds.get(answer.exit, Failed)(
            "step-failed",
            f"{step.name} ({step.verb}) ended with exit code {int(answer.exit)}",
            still_true="the steps before it stand",
            next_step="mend the cause and run the playbook again: it goes on here",
        )

    def _execute(self, step: ExecStep) -> Mapping[str, Any]:
        code = self._command(step, step.command, step.timeout)
        if code:
            raise _exec_failed(step, f"ended with exit code {code}")
        return {"exit_code": 0}

    def _command(self, step: ExecStep | ApproveStep, command: tuple[str, ...], timeout: float) -> int:
        try:
            return run_command(self._call, command, self._book.values.environment, timeout)
        except OSError as error:
            raise _exec_failed(step, f"cannot be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as late:
            raise WaitTimedOut(
                "exec-timed-out",
                f"{step.name}: {step.what} did not end within {timeout:g} s and was killed",
                still_true="the steps before it stand",
                next_step="see what the command waits for, or give it a longer timeout, and run the playbook again",
            ) from late

    def _approve(self, step: ApproveStep) -> Result:
        """Return who approved; refuse the step where nobody can be asked, or the answer is no."""
        if self._approved & {str(step.number), "all"}:
            return {"approved": "--approve"}, None
        if step.file:
            return self._wait_for_file(step), None
        if step.command:
            if code := self._command(step, step.command, step.timeout):
                raise _not_approved(step, self._book.file, f"the command ended with exit code {code}")
            return {"approved": "command"}, None
        if not self._call.interactive:
            raise _not_approved(step, self._book.file, "there is no terminal to ask on")
        asyncio.run(self._call.confirm(False, self._book.values.hide(step.question)))
        return {"approved": self._call.who}, None

    def _wait_for_file(self, step: ApproveStep) -> Mapping[str, Any]:
        deadline = monotonic() + step.timeout
        with self._call.out.waiting(f"waiting for the file {step.file}") as waiting:
            while not Path(step.file).exists():
                if monotonic() > deadline:
                    raise WaitTimedOut(
                        "approval-timed-out",
                        f"{step.name}: no file {step.file} within {step.timeout:g} s: {step.question}",
                        still_true="the steps before it stand",
                        next_step=_approving(step, self._book.file),
                    )
                block(_LOOK_SECONDS)
                waiting.say(f"waiting for the file {step.file}")
        return {"approved": f"file {step.file}"}


def _exec_failed(step: ExecStep | ApproveStep, why: str) -> Failed:
    return Failed(
        "exec-failed",
        f"{step.name}: {step.what}: {why}",
        still_true="the steps before it stand",
        next_step="mend the cause and run the playbook again: what is done stays done",
    )


def _approving(step: ApproveStep, file: str) -> str:
    return f"to approve the step: kmigrate playbook run {file} --approve {step.number}"


def _not_approved(step: ApproveStep, file: str, why: str) -> Refused:
    return Refused(
        "not-approved",
        f"{step.name} is not approved: {step.question}: {why}",
        still_true="the steps before it stand, and nothing after it was begun",
        next_step=_approving(step, file),
    )


async def holds_now(call: Call, condition: Condition, scope: Scope) -> bool:
    """Return whether a condition holds now; a target without a state log fulfils no condition."""
    try:
        async with call.connections() as connections:
            return (await judge(connections, condition, scope)).holds
    except Refused as refused:
        if refused.ref != "no-state-log":
            raise
        return False
