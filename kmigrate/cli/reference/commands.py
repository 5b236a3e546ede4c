"""docs/cli.md, made from the commands, compared by a test: `python -m kmigrate.cli.reference.commands`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

import typer

from kmigrate.cli.app import app, main
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


def commands(tree: typer.Typer = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, in the order of the help."""
    for single in tree.registered_commands:
        yield (*path, str(single.name))
    for sub in tree.registered_groups:
        if sub.typer_instance is not None:
            yield from commands(sub.typer_instance, (*path, str(sub.typer_instance.info.name)))


def reference() -> str:
    """Return the whole page."""
    parts = [_HEAD + "".join(f"| {int(code)} | {code.meaning} |\n" for code in Exit)]
    parts += [f"\n## kmigrate {' '.join(path)}\n\n```text\n{_help(path)}\n```\n" for path in commands()]
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
