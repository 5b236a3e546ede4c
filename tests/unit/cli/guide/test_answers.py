"""The command that goes on after a stop holds every answer so far, in words that a shell takes unchanged."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner

from kmigrate.cli.guide.answers import Answers
from kmigrate.cli.guide.guide import app

_NONE = Answers([], [], "", "", "", None, False, "", "", None)
_ALL = Answers(
    ["orders", "pay ments"],
    ["billing"],
    "blue",
    "old",
    "new",
    Path("orders.toml"),
    True,
    "./roll producers",
    "./roll consumers",
    False,
    overwrite=True,
    moved=True,
    config=Path("my clusters.toml"),
    yes=True,
)


def test_without_answers_the_guide_begins_anew() -> None:
    assert _NONE.command() == "kmigrate guide"


def test_all_answers_are_kept() -> None:
    assert shlex.split(_ALL.command()) == [
        *("kmigrate", "guide", "--config", "my clusters.toml", "--link", "blue", "--source", "old", "--target", "new"),
        *("--topic", "orders", "--topic", "pay ments", "--group", "billing"),
        *("--roll-producers", "./roll producers", "--roll-consumers", "./roll consumers"),
        *("--no-verify", "--write", "orders.toml", "--overwrite", "--clients-moved", "--run", "--yes"),
    ]


def test_nothing_is_run_that_nobody_asked_for() -> None:
    assert "--run" not in replace(_ALL, run=False).command()


def test_a_playbook_that_is_written_is_not_written_again() -> None:
    command = replace(_ALL, write=None).command()
    assert "--write" not in command
    assert "--overwrite" not in command


def test_an_answer_about_verify_that_nobody_gave_stays_open() -> None:
    assert "verify" not in replace(_ALL, verify=None).command()


def test_the_command_line_knows_every_word() -> None:
    words = shlex.split(_ALL.command())[2:]
    ran = CliRunner().invoke(app, [*words, "--help"])
    assert (ran.exit_code, "--roll-producers" in ran.output) == (0, True)
