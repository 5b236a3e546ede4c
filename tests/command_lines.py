"""Checks a command line of kmigrate without running the command."""

from __future__ import annotations

import re
from collections.abc import Sequence

from typer.testing import CliRunner

from kmigrate.cli.app import app

__all__ = ["command_of"]

_USAGE = re.compile(r"Usage: kmigrate ((?:[a-z]+ )+)")


def command_of(words: Sequence[str]) -> str:
    """Return the command that the words after `kmigrate` call; fail if the command does not know an option."""
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="kmigrate", catch_exceptions=False)
    usage = _USAGE.search(result.output)
    assert result.exit_code == 0, result.output
    assert usage is not None, result.output
    return usage[1].strip()
