"""Commands of a playbook: when one is late, nothing that it has begun goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.playbook import _execute
from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.workflow.playbook import ExecStep

CALL = cast("Any", SimpleNamespace(json=False, settings=SimpleNamespace(path=None)))


def test_a_command_that_is_late_is_ended_with_all_that_it_has_begun(tmp_path: Path) -> None:
    """What it has begun holds a pipe, which ends with it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    step = ExecStep(1, "", ("sh", "-c", f"(echo begun; exec sleep 5) > {pipe} & wait"), timeout=0.2)
    began = time.monotonic()
    with pytest.raises(WaitTimedOut, match="was killed"):
        _execute(CALL, step)
    os.set_blocking(reader, True)
    with os.fdopen(reader) as told:
        assert told.read() == "begun\n"
    assert time.monotonic() - began < 4


def test_what_a_command_leaves_behind_on_purpose_goes_on(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = ("sh", "-c", f"exec 3> {pipe}; (sleep 0.05; echo done >&3) &")
    assert _execute(CALL, ExecStep(1, "", command, timeout=5.0))[0] == {"exit_code": 0}
    os.set_blocking(reader, True)
    with os.fdopen(reader) as told:
        assert told.read() == "done\n"


def test_a_command_that_fails_says_its_exit_code() -> None:
    with pytest.raises(Failed, match="exit code 3"):
        _execute(CALL, ExecStep(2, "", ("sh", "-c", "exit 3"), timeout=5.0))


@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]])
def test_a_command_does_not_outlive_who_runs_it(numbers: list[signal.Signals], tmp_path: Path) -> None:
    """Nor one that heeds no Ctrl-C, where somebody presses it once more."""
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
