"""What a call says: one result on stdout, progress and errors on stderr; with `--json`, JSON alone on stdout.

Nothing that is only said ends a call, or changes its exit code: neither a reader that has left (`| head`), nor a disk
that is full, nor a terminal that is gone, nor a stream that was closed before we began, nor one whose encoding lacks a
character.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text as RichText

from kmigrate.cli.exits import Exit
from kmigrate.cli.words import Text, below
from kmigrate.errors import KmigrateError
from kmigrate.model.words import is_harmless, one_line

__all__ = ["Answer", "Output", "Untold", "Waiting", "harmless_json", "log_line"]

_PIPE_WIDTH = 160
"""Columns of tables in a pipe or a file, where no terminal limits them."""


@dataclass(frozen=True)
class Answer:
    """The result of a verb: its JSON, the same for a person, and the exit code."""

    json: Mapping[str, Any]
    view: RenderableType
    exit: Exit = Exit.OK


_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""What makes a terminal show text in another order than it is in."""
_HARMLESS = {code: "?" for code in (*range(32), *range(127, 160), *_TURNS) if chr(code) not in "\t\n"}
"""Characters that a terminal would act on: the last line of defence, behind `cli.words`."""
_LONGEST_LINE = 4000


def harmless_json(text: str) -> str:
    """Return JSON that a terminal only shows: characters that would act become escapes of JSON."""
    if text.isascii():
        return text
    return "".join(
        each if each == "\n" or is_harmless(each) else json.dumps(each)[1:-1] for each in text
    )


def log_line(text: str) -> str:
    """What a log tells in one line, whatever names it tells of: none makes a second line, or one without an end."""
    more = len(text) - _LONGEST_LINE
    cut = f"{text[:_LONGEST_LINE]}… and {more:,} characters more" if more > 0 else text
    return one_line(cut)


class _Console(Console):
    """Leaves it to us what a reader means who has left (rich would end the process), and lets no name speak to the
    terminal."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def drop(self, *, for_good: bool) -> None:
        """Forget what could not be written, which Python would write at its end; `for_good`: also all that comes."""
        del self._buffer[:]
        with suppress(OSError):
            number = self.file.fileno()
            kept, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            self.file.flush()
            if not for_good:
                os.dup2(kept, number)
            os.close(kept)
            os.close(nowhere)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(_HARMLESS))


def _console(stream: TextIO | None) -> _Console:
    if stream is None:  # it was closed when Python began
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 it is open as long as the process
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else _PIPE_WIDTH
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _is_unicode(stream: IO[str]) -> bool:
    encoding = getattr(stream, "encoding", None)
    return not encoding or codecs.lookup(encoding).name.startswith("utf")


def _has_room(stream: IO[str]) -> bool:
    """Whether a line can be written at once.

    There is none in a pipe that is full, as nobody reads it, nor in a terminal where somebody has pressed Ctrl-S. What
    is at an end has room: for the error that it answers with.
    """
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # it is none of the system's, or closed
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


class Untold:
    """Lines that are left out where they would have to be waited for, and what is said of them by the next one."""

    def __init__(self) -> None:
        self.count = 0

    def leaves_out(self, stream: IO[str]) -> bool:
        """Whether there is no room for a line, which is counted then."""
        without = not _has_room(stream)
        self.count += without
        return without

    def told(self) -> tuple[int, str]:
        """How many were left out, and that as a line; they count no longer."""
        count, self.count = self.count, 0
        return count, f"{count} lines were not told: nobody read them"


class Output:
    """The two streams of one call; made when it runs, so that tests may replace sys.stdout."""

    def __init__(self, *, json: bool = False, debug: bool = False) -> None:
        self.json, self.debug = json, debug
        self._indent: int | None = 2
        self.out, self.err = _console(sys.stdout), _console(sys.stderr)
        self.unheard = False
        """Whether whoever read stdout has left."""
        self._lost = False
        self._waits_for_nobody = False
        self._untold = Untold()
        self._spinner: Waiting | None = None

    def wait_for_nobody(self) -> None:
        """From here on a line is left out where it would have to be waited for: clients wait for who would wait."""
        self._waits_for_nobody = True

    def answer(self, answer: Answer) -> None:
        if self.json:
            self._write(answer.json)
        else:
            self.show(answer.view)

    def show(self, view: RenderableType, *, as_it_is: bool = False) -> None:
        """For a person, on stdout; what has its lines already is left `as_it_is`."""
        self._say(self.out, lambda: self.out.print(view, soft_wrap=as_it_is))

    def as_lines(self) -> None:
        """From here on a JSON document is one line, an error's included: the call tells several."""
        self._indent = None

    def line(self, fields: Mapping[str, Any], text: str) -> None:
        """One line of a call that goes on: a JSON line or a sentence."""
        if self._waits_for_nobody and self._untold.leaves_out(self.out.file):
            return
        if self._untold.count:
            count, told = self._untold.told()
            self.line({"event": "not-told", "lines": count}, told)
            self.line(fields, text)
        elif self.json:
            self._write(fields)
        else:
            self.show(Text(text))

    def note(self, text: str) -> None:
        """A warning or a hint beside the result."""
        self._warn(Text(text, style="yellow"))

    @contextmanager
    def waiting(self, text: str) -> Iterator[Waiting]:
        """A spinner with a changing text while a call waits; silent where stderr is no terminal.

        Within another one, that says this text meanwhile: a terminal has room for one.
        """
        if self._spinner is not None:
            before = self._spinner.text
            self._spinner.say(text)
            try:
                yield self._spinner
            finally:
                self._spinner.say(before)
        elif not self.err.is_terminal:
            yield Waiting(None)
        else:
            with self.err.status(Text(text)) as status:
                self._spinner = Waiting(status, text)
                try:
                    yield self._spinner
                finally:
                    self._spinner = None

    def error(self, error: KmigrateError) -> None:
        self._trace(error)
        if self.json:
            self._write(error.as_json())
        lines = [self._within(Text.assemble(("error ", "bold red"), (error.ref, "bold"), f": {error.what}"))]
        if error.still_true:
            lines.append(self._within(Text.assemble(("still true: ", "dim"), error.still_true), 2))
        if error.next_step:
            told = Text.assemble(("next: ", "dim"), error.next_step)
            # A call stays whole: it can then be taken from the terminal as one line.
            lines.append(Text.assemble("  ", told) if "kmigrate " in error.next_step else self._within(told, 2))
        self._warn(below(lines))

    def _within(self, text: RichText, indent: int = 0) -> RichText:
        """A text cut between words where a terminal's lines end, and indented; a pipe's lines have no end."""
        lines = text.wrap(self.err, max(20, self.err.width - indent - 2)) if self.err.is_terminal else [text]
        for line in lines:
            line.rstrip()
        return RichText.assemble(" " * indent, below(lines, indent=" " * (indent + 2)))

    def unexpected(self, error: BaseException) -> None:
        """A bug of ours in one line; the traceback only on demand."""
        self._trace(error)
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        if self.json:
            self._write(
                {
                    "error": "internal-error",
                    "what": what,
                    "still_true": "what this call had written before stays, and is found when it is repeated",
                    "next": "repeat with --debug and report it",
                    "exit_code": int(Exit.FAILED),
                }
            )
        self._warn(Text(f"error internal-error: {what} (--debug shows where)", style="red"))

    def _write(self, fields: Mapping[str, Any]) -> None:
        text = json.dumps(fields, indent=self._indent, ensure_ascii=not _is_unicode(self.out.file))
        text = harmless_json(text) + "\n"
        self._say(self.out, lambda: (self.out.file.write(text), self.out.file.flush()))

    def _warn(self, text: RichText) -> None:
        self._say(self.err, lambda: self.err.print(text, soft_wrap=True))

    def _trace(self, error: BaseException) -> None:
        if self.debug:
            self._say(self.err, lambda: traceback.print_exception(error, file=self.err.file))

    def unwritten(self, error: OSError) -> None:
        """What stdout was told last is lost: whoever read it has left, or there is no room."""
        # A reader that has left, or a terminal, does not come back; on a full disk there may be room again.
        gone = isinstance(error, BrokenPipeError) or error.errno == errno.EIO
        self.out.drop(for_good=gone)
        if gone:
            self.unheard = True
        elif not self._lost:
            self._lost = True
            self.note(f"what is told on stdout is lost: {error.strerror}")

    def _say(self, console: _Console, say: Callable[[], object]) -> None:
        try:
            say()
        except OSError as error:
            if console is self.out:
                self.unwritten(error)
            else:
                console.drop(for_good=False)


class Waiting:
    """The text of a spinner, where there is one."""

    def __init__(self, status: Any, text: str = "") -> None:
        self._status, self.text = status, text

    def say(self, text: str) -> None:
        self.text = text
        if self._status is not None:
            self._status.update(Text(text))
