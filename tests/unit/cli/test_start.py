"""The start of the command line: the cost of `--help` and `--version`, and the sentences of verbs not yet imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kmigrate import __version__
from kmigrate.cli.app import COMMANDS, main
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.lazy import LazyCommand

_HEAVY = {"aiokafka", "asyncio", "confluent_kafka", "hypothesis", "kio", "numpy", "pyspark", "testcontainers"}
_MOST_SECONDS = 0.4
"""Four times the processor time that the help takes on an idle machine."""


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_look_at_the_command_line_takes_little_processor_time(option: str) -> None:
    process = subprocess.Popen([sys.executable, "-m", "kmigrate", option], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < _MOST_SECONDS


def test_the_help_imports_no_verb_and_no_client_of_kafka() -> None:
    program = "import sys; from kmigrate.cli.app import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert "kmigrate.cli.app" in modules
    assert not modules & _HEAVY
    assert not [name for name in modules if name.startswith("kmigrate.cli.commands")]
    assert all(f"  {each.name}" in done.stdout for each in COMMANDS)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.OK
    assert capsys.readouterr().out == f"kmigrate {__version__}\n"


def test_a_call_without_words_shows_the_help_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    assert "\nCommands:\n" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: str(each.name))
def test_the_help_shows_the_first_sentence_of_each_verb(command: LazyCommand) -> None:
    real = command.load()
    assert (real.name, real.get_short_help_str(200)) == (command.name, command.get_short_help_str(200))
