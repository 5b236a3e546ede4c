"""The tutorial, pasted line by line as printed, in a shell outside the repository."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.command_line import program
from tests.pages import ROOT, blocks

TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_each_command_of_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    lines = [line for block in blocks(TUTORIAL) if block.language == "sh" for line in block.lines]
    ended = tmp_path / "ended"
    script = "".join(f"{line}\necho $? {shlex.quote(line)} >> {ended}\n" for line in lines)
    told = _pasted(script, tmp_path)
    assert ended.read_text(encoding="utf-8").splitlines() == [f"0 {line}" for line in lines], told
    assert "✓ equal" in told
    assert (tmp_path / "run.log").read_text(encoding="utf-8").rstrip().endswith("stopped")
    assert not (tmp_path / "build/sandbox/sandbox.json").exists()


def _pasted(script: str, folder: Path) -> str:
    """Return what a shell prints when a person pastes the script; nothing runs on after that, whatever happened."""
    environment = _environment(folder / "bin")
    output = folder / "output"
    with output.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
        )
        try:
            shell.communicate(script, timeout=540)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            subprocess.run(
                [str(folder / "bin/kmigrate"), "sandbox", "down"],
                cwd=folder,
                env=environment,
                check=False,
                capture_output=True,
            )
    return output.read_text(encoding="utf-8")


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a shell in which `kmigrate` is a program on the path, as after an installation."""
    folder.mkdir()
    kmigrate = folder / "kmigrate"
    kmigrate.write_text(f'#!/bin/sh\nexec {shlex.join(program("kmigrate"))} "$@"\n', encoding="utf-8")
    kmigrate.chmod(0o755)
    rest = {key: value for key, value in os.environ.items() if not key.startswith("KMIGRATE_") or key.endswith("PORTS")}
    return {**rest, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
