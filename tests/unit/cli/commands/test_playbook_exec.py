"""Commands of a playbook: when a command is late, everything that the command started ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast

import pytest
from rich.text import Text

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer
from kmigrate.cli.commands.playbook import _Reached
from kmigrate.cli.commands.playbook_run import Runner
from kmigrate.cli.commands.playbook_verbs import CALLS
from kmigrate.errors import Failed, Refused, WaitTimedOut
from kmigrate.workflow.playbook.steps import ExecStep, Playbook

CALL = cast("Any", SimpleNamespace(json=False, settings=SimpleNamespace(path=None)))


def _execute(number: int, command: tuple[str, ...], timeout: float) -> Mapping[str, Any]:
    step = ExecStep(number=number, command=command, timeout=timeout)
    return Runner(CALL, Playbook("p.toml", "", (step,)))._execute(step)


def test_a_command_that_is_late_is_ended_with_all_that_it_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's child holds a pipe that closes when the child ends.

    The command becomes late only after the child has written to the pipe.
    """
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    wait = subprocess.Popen.wait
    held: list[TextIO] = []

    def late(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is not None:
            held.append(pipe.open(encoding="utf-8"))
            assert held[0].readline() == "begun\n"
        return wait(process, None if timeout is None else 0)

    monkeypatch.setattr(subprocess.Popen, "wait", late)
    with pytest.raises(WaitTimedOut, match="was killed"):
        _execute(1, ("sh", "-c", f"(echo begun; sleep 3; echo went on) > {pipe} & wait"), timeout=60.0)
    with held[0] as told:
        assert told.read() == ""


def test_what_a_command_leaves_behind_on_purpose_goes_on(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = ("sh", "-c", f"exec 3> {pipe}; (sleep 0.05; echo done >&3) &")
    assert _execute(1, command, timeout=5.0) == {"exit_code": 0}
    os.set_blocking(reader, True)
    with os.fdopen(reader) as told:
        assert told.read() == "done\n"


def test_a_command_that_fails_says_its_exit_code() -> None:
    with pytest.raises(Failed, match="exit code 3"):
        _execute(2, ("sh", "-c", "exit 3"), timeout=5.0)


@pytest.mark.usefixtures("interrupts", "hangups")
@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]])
def test_a_command_does_not_outlive_who_runs_it(numbers: list[signal.Signals], tmp_path: Path) -> None:
    """A command that ignores Ctrl-C ends, too, after a second Ctrl-C."""
    book, script, begun = tmp_path / "p.toml", tmp_path / "command.sh", tmp_path / "begun"
    script.write_text(f"trap '' INT HUP TERM; echo $$ > {begun}.new; mv {begun}.new {begun}; exec sleep 30\n", "utf-8")
    book.write_text(f'[[step]]\nexec = "sh {script}"\n', encoding="utf-8")
    words = [sys.executable, "-m", "kmigrate", "playbook", "run", str(book)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not begun.exists():
            time.sleep(0.02)
        for number in numbers:
            time.sleep(0.5)
            run.send_signal(number)
        code = run.wait(20)
    assert code == (130 if numbers[0] is signal.SIGINT else -numbers[0])
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text("utf-8")), 0)


@pytest.mark.parametrize(
    ("ends", "code", "ref", "what"),
    [
        (Answer({}, Text(""), Exit.FAILED), Exit.FAILED, "step-failed", "step 2 (link check) ended with exit code 1"),
        (Answer({}, Text(""), Exit.REFUSED), Exit.REFUSED, "step-failed", "step 2 (link check) ended with exit code 3"),
        (Answer({}, Text(""), Exit.PARITY_MISMATCH), Exit.PARITY_MISMATCH, "step-failed", "step 2 (link check) ended"),
        (Refused("no-link", "there is no link yet"), Exit.REFUSED, "no-link", "step 2 (link check): there is no link"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted", "stopped in step 2 (link check)"),
    ],
)
def test_whatever_ends_a_playbook_names_its_step_and_has_its_own_exit_code(
    ends: Any, code: Exit, ref: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(call: Any) -> Answer:
        if type(call) is not Call:  # a check of the values only
            raise _Reached
        if isinstance(ends, Answer):
            return ends
        raise ends

    book = tmp_path / "p.toml"
    book.write_text('[[step]]\nwait = "seconds 0"\n[[step]]\nrun = "link check"\n', encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cast("Any", CALLS), "link check", check)
        assert main(["playbook", "run", str(book), "--json"]) == code
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["error"], told["exit_code"], told["what"].startswith(what)) == (ref, code, True)
    assert "the steps before it stand" in told["still_true"]
    assert told["next"]
