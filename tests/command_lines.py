"""Checks a command line of kmigrate without running the command."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stdout

from kmigrate.cli.app import main

__all__ = ["command_of"]

_USAGE = re.compile(r"Usage: kmigrate ((?:[a-z]+ )+)")


def command_of(words: Sequence[str]) -> str:
    """Return the command that the words after `kmigrate` call; fail if the command does not know an option."""
    with redirect_stdout(io.StringIO()) as out:
        code = main([*words, "--help"])
    usage = _USAGE.search(out.getvalue())
    assert code == 0, out.getvalue()
    assert usage is not None, out.getvalue()
    return usage[1].strip()
