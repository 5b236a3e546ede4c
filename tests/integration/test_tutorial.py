"""The tutorial, pasted line by line as printed, in a shell outside the repository."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.integration.command_line import program
from tests.pages import ROOT, blocks

TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.timeout(300)
def test_each_command_of_the_tutorial_works_as_printed(tmp_path: Path) -> None:
    lines = [line for block in blocks(TUTORIAL) if block.language == "sh" for line in block.lines]
    ended = tmp_path / "ended"
    script = "".join(f"{line}\necho $? {shlex.quote(line)} >> {ended}\n" for line in lines)
    shell = subprocess.run(
        ["bash"],
        input=script,
        cwd=tmp_path,
        env=_environment(tmp_path / "bin"),
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    told = f"{shell.stdout}\n{shell.stderr}"
    assert ended.read_text(encoding="utf-8").splitlines() == [f"0 {line}" for line in lines], told
    assert "all equal" in told or "equal" in told
    assert (tmp_path / "run.log").read_text(encoding="utf-8").rstrip().endswith("stopped")
    assert not (tmp_path / "build/sandbox/sandbox.json").exists()


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a shell in which `kmigrate` is a program on the path, as after an installation."""
    folder.mkdir()
    kmigrate = folder / "kmigrate"
    kmigrate.write_text(f'#!/bin/sh\nexec {shlex.join(program("kmigrate"))} "$@"\n', encoding="utf-8")
    kmigrate.chmod(0o755)
    rest = {key: value for key, value in os.environ.items() if not key.startswith("KMIGRATE_") or key.endswith("PORTS")}
    return {**rest, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
