"""docs/cli.md, made from the commands, compared by a test: `python -m kmigrate.cli.reference.commands`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import cast

from typer.core import TyperCommand, TyperGroup

from kmigrate.cli.app import COMMANDS, main
from kmigrate.cli.base.exits import Exit

__all__ = ["commands", "reference"]

_HEAD = """# Command reference

Made by `python -m kmigrate.cli.reference.commands > docs/cli.md`; do not edit.

Results go to stdout, progress, warnings and errors to stderr. With `--json` stdout holds JSON alone
([json.md](json.md)). A missing value is asked for on a terminal and is a usage error elsewhere. Verbs that change
something take `--plan`, which changes nothing; `promote`, `group promote`, `topic forget`, `group forget`,
`router forget`, `link finish` and `link delete` ask on a terminal and need `--yes` elsewhere (`promote --cancel` does
not ask).

`--config`, `--target`, `--json` and `--debug` may also stand before the verb. The last line of an error is the command
that explains the error's reference ([errors.md](errors.md)).

## Exit codes

| code | meaning |
|---|---|
"""


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, in the order of the help."""
    for each in COMMANDS:
        yield from _below(each.load(), (str(each.name),))


def _below(command: TyperCommand | TyperGroup, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, TyperGroup):
        yield path
        return
    for name, sub in command.commands.items():
        yield from _below(cast("TyperCommand | TyperGroup", sub), (*path, name))


def reference() -> str:
    """Return the whole page."""
    parts = [_HEAD + "".join(f"| {int(code)} | {code.meaning} |\n" for code in Exit)]
    parts += [f"\n## {' '.join(('kmigrate', *path))}\n\n```text\n{_help(path)}\n```\n" for path in ((), *commands())]
    return "".join(parts)


def _help(path: tuple[str, ...]) -> str:
    """Return the text that `--help` prints on 80 columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main([*path, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


if __name__ == "__main__":
    sys.stdout.write(reference())
