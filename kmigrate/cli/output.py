"""What a call says: one result on stdout, progress and errors on stderr; with `--json`, JSON alone on stdout."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from kmigrate.cli.exits import Exit
from kmigrate.errors import KmigrateError

__all__ = ["Answer", "Output"]

_PIPE_WIDTH = 160
"""Columns of tables in a pipe or a file, where no terminal limits them."""


@dataclass(frozen=True)
class Answer:
    """The result of a verb: its JSON, the same for a person, and the exit code."""

    json: Mapping[str, Any]
    view: RenderableType
    exit: Exit = Exit.OK


def _console(stream: TextIO) -> Console:
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)


class Output:
    """The two streams of one call; made when it runs, so that tests may replace sys.stdout."""

    def __init__(self, *, json: bool = False, debug: bool = False) -> None:
        self.json, self.debug = json, debug
        self._indent: int | None = 2
        self.out, self.err = _console(sys.stdout), _console(sys.stderr)

    def answer(self, answer: Answer) -> None:
        if self.json:
            self._write(answer.json)
        else:
            self.out.print(answer.view)

    def as_lines(self) -> None:
        """From here on a JSON document is one line, an error's included: the call tells several."""
        self._indent = None

    def line(self, fields: Mapping[str, Any], text: str) -> None:
        """One line of a call that goes on: a JSON line or a sentence."""
        if self.json:
            self._write(fields)
        else:
            self.out.print(Text(text))
            self.out.file.flush()

    def note(self, text: str) -> None:
        """A warning or a hint beside the result."""
        self.err.print(Text(text, style="yellow"))

    @contextmanager
    def waiting(self, text: str) -> Iterator[Waiting]:
        """A spinner with a changing text while a call waits; silent where stderr is no terminal."""
        if not self.err.is_terminal:
            yield Waiting(None)
            return
        with self.err.status(escape(text)) as status:
            yield Waiting(status)

    def error(self, error: KmigrateError) -> None:
        if self.debug:
            traceback.print_exception(error, file=self.err.file)
        if self.json:
            self._write(error.as_json())
        text = Text.assemble(("error ", "bold red"), (error.ref, "bold"), f": {error.what}")
        for label, words in (("still true", error.still_true), ("next", error.next_step)):
            if words:
                text.append(f"\n  {label}: ", style="dim")
                text.append(words)
        self.err.print(text)

    def unexpected(self, error: BaseException) -> None:
        """A bug of ours in one line; the traceback only on demand."""
        if self.debug:
            traceback.print_exception(error, file=self.err.file)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.json:
            self._write(
                {
                    "error": "internal-error",
                    "what": what,
                    "still_true": "",
                    "next": "repeat with --debug and report it",
                    "exit_code": int(Exit.FAILED),
                }
            )
        self.err.print(Text(f"error internal-error: {what} (--debug shows where)", style="red"), soft_wrap=True)

    def _write(self, fields: Mapping[str, Any]) -> None:
        self.out.file.write(json.dumps(fields, indent=self._indent, ensure_ascii=False) + "\n")
        self.out.file.flush()


class Waiting:
    """The text of a spinner, where there is one."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
