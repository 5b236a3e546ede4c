"""`kmigrate playbook`: reads a file of steps and makes the calls that a person would make."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Group, RenderableType

from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.options import PlanOnly, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands import finish, group, link, promote, topic, verify
from kmigrate.cli.commands.wait import hold_on
from kmigrate.cli.views.tables import table
from kmigrate.errors import (
    Failed,
    Interrupted,
    KmigrateError,
    ParityMismatch,
    Refused,
    UsageError,
    WaitTimedOut,
)
from kmigrate.net.clock import monotonic
from kmigrate.workflow.playbook.conditions import Condition, Scope
from kmigrate.workflow.playbook.steps import (
    DANGEROUS,
    ExecStep,
    Playbook,
    RunStep,
    Step,
    WaitStep,
    parse_playbook,
)
from kmigrate.workflow.playbook.waiting import judge

__all__ = ["CALLS", "act", "app", "holds_now", "parameter_of", "plan", "run"]

app = typer.Typer(name="playbook", help="Migrations written down as steps.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Playbook (TOML, docs/playbooks.md).")]

CALLS: Mapping[str, Callable[..., Any]] = {
    "link create": link.create,
    "link check": link.check,
    "link delete": link.delete,
    "link finish": finish.finish,
    "link throttle": link.throttle,
    "topic forget": topic.forget,
    "topic mirror": topic.mirror,
    "topic pause": topic.pause,
    "topic resume": topic.resume,
    "group forget": group.forget,
    "group mirror": group.mirror,
    "group promote": group.promote,
    "promote": promote.promote,
    "verify": verify.verify,
}

_INTERRUPTED_SECONDS = 5.0
"""Seconds that a command may take to end by itself after Ctrl-C."""


def parameter_of(key: str) -> str:
    """Return the name of a verb's parameter for a playbook's key."""
    return "from_" if key == "from" else key.replace("-", "_")


def _load(file: Path) -> Playbook:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "no-playbook",
            f"{file} cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            still_true="no step was run",
            next_step="expected: the path of a playbook, for example playbooks/quickstart.toml",
        ) from error
    return parse_playbook(text, str(file))


class _Reached(Exception):
    """Raised when a verb has checked its values and would now contact a cluster."""


class _Unsent(Call):
    """A call that ends where a verb would contact a cluster; a verb checks its own values before that point."""

    @property
    def interactive(self) -> bool:
        return False

    def connections(self, target: str | None = None, *, create: bool = False) -> NoReturn:
        raise _Reached


def _check_values(call: Call, book: Playbook) -> None:
    """Check every verb's values before the first step: a misspelled rate must not be found after all the promotes."""
    unsent = _Unsent(call.config, call.target, call.json, call.debug, call.overrides)
    prepared = False
    for step in book.steps:
        prepared = prepared or isinstance(step, ExecStep)
        if not isinstance(step, RunStep):
            continue
        try:
            _called(unsent, step)
        except _Reached:
            continue
        except KmigrateError as error:
            if prepared and error.ref in _A_COMMAND_MAY_MEND:
                continue
            if error.ref in _OF_THE_CONFIGURATION and not unsent.settings.clusters:
                continue  # a playbook may be looked at on another machine than its own
            if error.ref == "missing-value" and call.interactive:
                continue  # the step itself asks for the missing value
            error.what = f"{book.file}, step {step.number} ({step.text}): {error.what}"
            error.still_true = "no step was run"
            raise


_A_COMMAND_MAY_MEND = frozenset({"report-not-writable"})
"""Errors whose cause a command of the playbook may remove before the step that fails."""
_OF_THE_CONFIGURATION = frozenset({"unknown-cluster", "missing-value"})


@command(app, "plan")
def plan(call: Call, file: File) -> Answer:
    """Check a playbook, with all values of its steps, and print the steps; contacts nothing."""
    book = _load(file)
    _check_values(call, book)
    return _printed(book)


def _printed(book: Playbook) -> Answer:
    made = table("step", "what", "why", right=("step",))
    for step in book.steps:
        made.add_row(str(step.number), step.text, step.title)
    head = [Text(book.title, style="bold")] if book.title else []
    return Answer(
        {"file": book.file, "title": book.title, "steps": [_step_json(step) for step in book.steps]}, Group(*head, made)
    )


def _step_json(step: Step) -> dict[str, Any]:
    kind = {RunStep: "run", ExecStep: "exec", WaitStep: "wait"}[type(step)]
    return {"step": step.number, "kind": kind, "what": step.text, "title": step.title}


@command(app, "run")
def run(call: Call, file: File, plan: PlanOnly = False, yes: Yes = False) -> Answer | None:
    """Run a playbook from its first step.

    Steps that are done already change nothing. With --json prints one line per step.
    """
    book = _load(file)
    _check_values(call, book)
    if plan:
        return _printed(book)
    if book.dangerous:
        steps = ", ".join(str(step.number) for step in book.dangerous)
        asyncio.run(call.confirm(yes, f"{file} promotes or deletes in steps {steps}. Run it?"))
    call.out.as_lines()
    began = monotonic()
    for step in book.steps:
        with _named(step):
            _one(call, step, len(book.steps))
    fields = {"file": book.file, "steps": len(book.steps), "seconds": round(monotonic() - began, 3)}
    call.out.line(fields, f"✓ {len(book.steps)} steps in {fields['seconds']} s")
    return None


@contextmanager
def _named(step: Step) -> Iterator[None]:
    """Add to any error the step in which the playbook ended, and that the steps before it stand."""
    stand = "the steps before it stand"
    try:
        yield
    except KmigrateError as error:
        if not error.what.startswith("step "):
            error.what = f"step {step.number} ({step.text}): {error.what}"
        if stand not in error.still_true:
            error.still_true = "; ".join(filter(None, (error.still_true, stand)))
        raise
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted",
            f"stopped in step {step.number} ({step.text})",
            still_true=f"{stand}, and what this one had written",
            next_step="run the playbook again: it goes on here",
        ) from None


def _one(call: Call, step: Step, count: int) -> None:
    """Run a step; with --json print a line when the step has ended."""
    started = monotonic()
    if not call.json:
        call.out.show(Text(f"[{step.number}/{count}] {step.text}", style="bold"))
    if call.out.reader_left:
        raise Failed(
            "nobody-reads",
            f"the reader of this call's output has left before step {step.number}",
            still_true="the steps before it stand",
            next_step="run the playbook again, with its output to where it stays: it goes on here",
        )
    result, view = act(call, step)
    if not call.json:
        if view is not None:
            call.out.show(view)
        return
    outcome = "skipped" if "skipped" in result else "nothing to do" if result.get("changes") == [] else "done"
    seconds = round(monotonic() - started, 3)
    call.out.line({**_step_json(step), "outcome": outcome, "seconds": seconds, "result": result}, "")


def act(call: Call, step: Step) -> tuple[Mapping[str, Any], RenderableType | None]:
    """Carry out a step, and return its result as JSON and as a view."""
    match step:
        case RunStep():
            return _run_verb(call, step)
        case ExecStep():
            return _execute(call, step)
        case WaitStep():
            return asyncio.run(hold_on(call, step.condition, step.scope, step.timeout)), None


def _run_verb(call: Call, step: RunStep) -> tuple[Mapping[str, Any], RenderableType | None]:
    try:
        answer = _called(call, step)
    except Refused as refused:
        if step.verb == "link delete" and refused.ref in ("unknown-link", "no-link", "no-state-log"):
            return {"already": "there is no such link"}, None
        raise
    if answer.exit is Exit.OK:
        return answer.json, answer.view
    if not call.json:
        call.out.show(answer.view)
    kinds = {Exit.PARITY_MISMATCH: ParityMismatch, Exit.REFUSED: Refused}
    raise kinds.get(answer.exit, Failed)(
        "step-failed",
        f"step {step.number} ({step.verb}) ended with exit code {int(answer.exit)}",
        still_true="the steps before it stand",
        next_step="mend the cause and run the playbook again: it goes on here",
    )


def _called(call: Call, step: RunStep) -> Answer:
    options = {parameter_of(key): value for key, value in step.options.items()}
    if step.verb in DANGEROUS:
        options["yes"] = True  # the user was asked once, for the whole playbook
    result = CALLS[step.verb](call, **options)
    answer: Answer = asyncio.run(result) if inspect.iscoroutine(result) else result
    return answer


def _execute(call: Call, step: ExecStep) -> tuple[Mapping[str, Any], RenderableType | None]:
    """Run a command; with --json the command's output goes to stderr, because stdout belongs to the result."""
    if step.unless is not None and asyncio.run(holds_now(call, step.unless, step.scope)):
        return {"skipped": step.unless.text}, Text(f"  skipped: {step.unless.text}", style="dim")
    words = list(step.command)
    if words[0] == "kmigrate":
        words[:1] = [sys.executable, "-m", "kmigrate"]
    environment = dict(os.environ)
    if call.settings.path is not None:
        environment["KMIGRATE_CONFIG"] = str(call.settings.path.resolve())
    sys.stdout.flush()
    try:
        code = _ended(words, environment, sys.stderr if call.json else None, step.timeout)
    except OSError as error:
        raise _exec_failed(step, f"cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as late:
        raise WaitTimedOut(
            "exec-timed-out",
            f"step {step.number}: {step.text} did not end within {step.timeout:g} s and was killed",
            still_true="the steps before it stand",
            next_step="see what the command waits for, or give it a longer timeout, and run the playbook again",
        ) from late
    if code:
        raise _exec_failed(step, f"ended with exit code {code}")
    return {"exit_code": 0}, None


def _ended(words: list[str], environment: dict[str, str], out: TextIO | None, timeout: float) -> int:
    """Run the command and return its exit code; if late or interrupted kill its processes: none may restart clients."""
    with _ended_with_us() as ours:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True)
        ours.append(process)
        try:
            return process.wait(timeout)
        except KeyboardInterrupt:
            try:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, signal.SIGINT)  # as the terminal signals its own process group
                    process.wait(_INTERRUPTED_SECONDS)
            finally:  # also after a second Ctrl-C
                _kill_all_of(process)
            raise
        except subprocess.TimeoutExpired:
            _kill_all_of(process)
            raise


@contextmanager
def _ended_with_us() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield a list of processes to kill at SIGTERM or SIGHUP: neither signal reaches their own sessions otherwise."""
    ours: list[subprocess.Popen[bytes]] = []

    def end(number: int, _: object) -> None:
        for process in ours:
            _kill_all_of(process)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = [number for number, handler in before.items() if handler is signal.SIG_DFL]  # not under nohup
    for number in heeded:
        signal.signal(number, end)
    try:
        yield ours
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _kill_all_of(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _exec_failed(step: ExecStep, why: str) -> Failed:
    return Failed(
        "exec-failed",
        f"step {step.number}: {step.text}: {why}",
        still_true="the steps before it stand",
        next_step="mend the cause and run the playbook again: what is done stays done",
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
