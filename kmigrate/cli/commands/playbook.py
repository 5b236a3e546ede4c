"""`kmigrate playbook`: reads a file of steps and makes the calls that a person would make."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Group

from kmigrate.cli.base import completion
from kmigrate.cli.base.call import Call, command
from kmigrate.cli.base.options import PlanOnly, Yes
from kmigrate.cli.base.output import Answer
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.playbook_run import Runner, call_verb, step_json
from kmigrate.cli.commands.playbook_verbs import verbs
from kmigrate.cli.views.tables import table
from kmigrate.errors import Failed, KmigrateError, UsageError
from kmigrate.extras import EXTRA_MISSING
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.report.playbook_junit import StepOutcome, playbook_junit
from kmigrate.verify.report_files import ReportFiles
from kmigrate.workflow.playbook.parse import parse_playbook
from kmigrate.workflow.playbook.schema import playbook_schema
from kmigrate.workflow.playbook.shipped import read_playbook, shipped_playbooks, title_of
from kmigrate.workflow.playbook.steps import ApproveStep, ExecStep, Playbook, RunStep, Step

__all__ = ["app", "check", "list_playbooks", "plan", "run", "schema"]

app = typer.Typer(name="playbook", help="Migrations written down as steps.", no_args_is_help=True)

_HELP = "A file (TOML, docs/playbooks.md), or a name of playbook list."
File = Annotated[str, typer.Argument(metavar="PLAYBOOK", help=_HELP, autocompletion=completion.playbooks)]
Files = Annotated[list[str], typer.Argument(metavar="PLAYBOOK...", help=_HELP, autocompletion=completion.playbooks)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A variable of the playbook (may be repeated)."),
]


def _load(file: str, given: Sequence[str] | None) -> Playbook:
    return parse_playbook(read_playbook(file), file, verbs(), dict(map(_assigned, given or ())), os.environ)


def _assigned(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(
            "bad-variable",
            f"--set {text}: no variable and value",
            still_true="no step was run",
            next_step="expected: --set NAME=VALUE",
        )
    return name, value


class _Reached(Exception):
    """Raised when a verb has checked its values and would now contact a cluster."""


class _Unsent(Call):
    """A call that ends where a verb would contact a cluster; a verb checks its own values before that point."""

    @property
    def interactive(self) -> bool:
        return False

    def connections(self, target: str | None = None, *, create: bool = False) -> NoReturn:
        raise _Reached


def _check_values(call: Call, book: Playbook, *, to_run: bool) -> None:
    """Check every verb's values before the first step: a misspelled rate must not be found after all the promotes."""
    unsent = _Unsent(call.config, call.target, call.json, call.debug, call.overrides)
    prepared = False
    for step in (*book.steps, *book.on_failure):
        prepared = prepared or isinstance(step, ExecStep)
        if not isinstance(step, RunStep) or step.idle:
            continue
        try:
            call_verb(unsent, step)
        except _Reached:
            continue
        except KmigrateError as error:
            if prepared and error.ref in _A_COMMAND_MAY_MEND:
                continue
            if error.ref == EXTRA_MISSING and not to_run:
                continue
            if error.ref in _OF_THE_CONFIGURATION and not unsent.settings.clusters:
                continue  # a playbook may be looked at on another machine than its own
            if error.ref == "missing-value" and call.interactive:
                continue  # the step itself asks for the missing value
            error.what = book.values.hide(f"{step.place}: {step.name} ({step.text}): {error.what}")
            error.still_true, error.next_step = "no step was run", book.values.hide(error.next_step)
            raise


_A_COMMAND_MAY_MEND = frozenset({"report-not-writable"})
"""Errors whose cause a command of the playbook may remove before the step that fails."""
_OF_THE_CONFIGURATION = frozenset({"unknown-cluster", "missing-value"})


@command(app, "check")
def check(
    call: Call,
    files: Files,
    given: Set = None,
) -> Answer:
    """Check playbooks, with all values of their steps; contacts nothing."""
    books = [_load(file, given) for file in files]
    for book in books:
        _check_values(call, book, to_run=False)
    checked = [{"file": book.file, "title": book.title, "steps": len(book.steps)} for book in books]
    lines = [Text(f"✓ {book.file}: {len(book.steps)} steps, no mistake found") for book in books]
    return Answer({"playbooks": checked}, Group(*lines))


@command(app, "plan")
def plan(call: Call, file: File, given: Set = None) -> Answer:
    """Check a playbook, with all values of its steps, and print the steps; contacts nothing."""
    book = _load(file, given)
    _check_values(call, book, to_run=False)
    return _printed(book)


@command(app, "schema")
def schema(call: Call) -> Answer:
    """Print the JSON schema of playbooks, for editors; JSON with and without --json."""
    call.out.json = True
    return Answer(playbook_schema(verbs()), Text(""))


def _printed(book: Playbook) -> Answer:
    hide = book.values.hide
    made = table("step", "what", "why", right=("step",))
    for step in book.steps:
        made.add_row(str(step.number), hide(step.text), hide(step.title))
    for step in book.on_failure:
        made.add_row(f"after a failure {step.number}", hide(step.text), hide(step.title))
    head = [Text(book.title, style="bold")] if book.title else []
    return Answer(
        {
            "file": book.file,
            "title": book.title,
            "variables": book.values.shown,
            "steps": [step_json(step, book) for step in book.steps],
            "on_failure": [step_json(step, book) for step in book.on_failure],
        },
        Group(*head, made),
    )


@command(app, "list", target=False)
def list_playbooks(call: Call) -> Answer:
    """List the playbooks that come with kmigrate; `playbook run NAME` runs one of these."""
    made = table("name", "title")
    rows = [(name, title_of(file), file) for name, file in shipped_playbooks().items()]
    for name, title, _ in rows:
        made.add_row(name, title)
    folders = [Text(f"in {folder}", style="dim") for folder in dict.fromkeys(file.parent for _, _, file in rows)]
    json = {"playbooks": [{"name": name, "title": title, "file": str(file)} for name, title, file in rows]}
    return Answer(json, Group(made, *folders))


@command(app, "run")
def run(
    call: Call,
    file: File,
    given: Set = None,
    approve: Annotated[
        list[str] | None,
        typer.Option("--approve", metavar="STEP|all", help="Approve this step beforehand (may be repeated)."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML for CI: a test case per step.")
    ] = None,
    plan: PlanOnly = False,
    yes: Yes = False,
) -> Answer | None:
    """Run a playbook from its first step.

    Steps that are done already change nothing. With --json prints one line per event.
    """
    if not plan:
        call.out.as_lines()
    book = _load(file, given)
    _check_values(call, book, to_run=not plan)
    _check_approved(book, approve or ())
    ReportFiles(junit=junit).check()
    if plan:
        return _printed(book)
    if book.dangerous:
        steps = ", ".join(step.name for step in book.dangerous)
        asyncio.run(call.confirm(yes, f"{file} promotes or deletes in {steps}. Run it?"))
    began, runner = monotonic(), Runner(call, book, frozenset(approve or ()))
    with _reported(call, book, runner, junit):
        runner.run()
    fields = {"file": book.file, "steps": len(book.steps), "seconds": round(monotonic() - began, 3)}
    call.out.line({"event": "playbook-ended", **fields}, f"✓ {len(book.steps)} steps in {fields['seconds']} s")
    return None


def _check_approved(book: Playbook, approved: Sequence[str]) -> None:
    known = [str(step.number) for step in book.steps if isinstance(step, ApproveStep)]
    for each in approved:
        if each not in (*known, "all"):
            raise UsageError(
                "bad-approval",
                f"--approve {each}: {book.file} has no approval in this step",
                still_true="no step was run",
                next_step=f"expected: {', '.join(known)} or all" if known else "leave out --approve",
            )


@contextmanager
def _reported(call: Call, book: Playbook, runner: Runner, junit: Path | None) -> Iterator[None]:
    """Write the JUnit file however the run ends; the error of the run goes before an error of the file."""
    at = dt.datetime.fromtimestamp(now_ms() // 1000, dt.UTC).isoformat().replace("+00:00", "Z")
    try:
        yield
    except BaseException:
        if (error := _write_junit(book, runner, junit, at)) is not None:
            call.out.note(f"{error.what}")
        raise
    if (error := _write_junit(book, runner, junit, at)) is not None:
        raise error


def _write_junit(book: Playbook, runner: Runner, junit: Path | None, at: str) -> Failed | None:
    if junit is None:
        return None
    met = {outcome.name for outcome in runner.outcomes}
    left = [_not_run(book, step) for step in book.steps if step.name not in met]
    report = playbook_junit(book.title or book.file, at, [*runner.outcomes, *left])
    try:
        junit.write_text(report, encoding="utf-8")
    except OSError as error:
        return Failed(
            "report-not-written",
            f"--junit {junit} cannot be written: {error.strerror}",
            still_true="all steps have ended well",
            next_step="make room or give the right to write there, then run the playbook again",
        )
    return None


def _not_run(book: Playbook, step: Step) -> StepOutcome:
    return StepOutcome(step.name, book.values.hide(step.text), "not run")
