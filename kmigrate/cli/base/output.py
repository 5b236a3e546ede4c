"""The output of a call: one result on stdout, progress and errors on stderr; with `--json`, only JSON on stdout.

A failure to print neither ends a call nor changes the exit code: the reader has left (`| head`), the disk is full, the
terminal is gone, the stream was closed before this process began, or the stream's encoding lacks a character.
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

from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.words import Text, below
from kmigrate.errors import Failed, KmigrateError
from kmigrate.model.words import is_harmless, one_line

__all__ = ["Answer", "Output", "SkippedLines", "Waiting", "harmless_json", "log_line", "write_report"]

_PIPE_WIDTH = 160
"""Columns of tables in a pipe or a file, where no terminal limits the width."""


@dataclass(frozen=True)
class Answer:
    """The result of a verb: its JSON, the view for a person, and the exit code."""

    json: Mapping[str, Any]
    view: RenderableType
    exit: Exit = Exit.OK


_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that make a terminal show text in another order than the stored order."""
_HARMLESS = {code: "?" for code in (*range(32), *range(127, 160), *_TURNS) if chr(code) not in "\t\n"}
"""Control characters that a terminal would obey, replaced as the last line of defence behind `cli.base.words`."""
_LONGEST_LINE = 4000
_MOST_INDENTED = 1_000_000
"""Most characters of a JSON document that is indented for a person: Python takes ten times as long to indent."""


def harmless_json(text: str) -> str:
    """Return JSON that a terminal only shows: control characters become JSON escapes."""
    if text.isascii():
        return text
    for each in set(text) - {"\n"}:
        if not is_harmless(each):
            text = text.replace(each, json.dumps(each)[1:-1])
    return text


def write_report(place: Path, text: str, still_true: str) -> None:
    """Write a report to a file; raise Failed if the file cannot be written."""
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(
            "report-not-exported",
            f"{place} cannot be written: {error.strerror or error}",
            still_true=still_true,
            next_step="make room or give the right to write there, then repeat",
        ) from error


def log_line(text: str) -> str:
    """Return a log text as a line of limited length: a name in the text can make no second or endless line."""
    more = len(text) - _LONGEST_LINE
    cut = f"{text[:_LONGEST_LINE]}… and {more:,} characters more" if more > 0 else text
    return one_line(cut)


class _Console(Console):
    """A console that obeys no control character, and raises BrokenPipeError, where rich exits, without a reader."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def drop(self, *, for_good: bool) -> None:
        """Discard unwritten output, so that Python does not write at exit; with `for_good` also all later output."""
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
    if stream is None:  # the stream was closed before Python began
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 it is open as long as the process
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() else _PIPE_WIDTH
    return _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def _is_unicode(stream: IO[str]) -> bool:
    encoding = getattr(stream, "encoding", None)
    return not encoding or codecs.lookup(encoding).name.startswith("utf")


def _has_room(stream: IO[str]) -> bool:
    """Return False where a write would block (full pipe, Ctrl-S); a closed stream has room: the write fails."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # not a stream of the operating system, or closed
        return True
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(0))


class SkippedLines:
    """The count of lines that were left out because writing would have blocked, and the notice about these lines."""

    def __init__(self) -> None:
        self.count = 0

    def skips(self, stream: IO[str]) -> bool:
        """Return whether there is no room for a line; if so, count the line as left out."""
        without = not _has_room(stream)
        self.count += without
        return without

    def notice(self) -> tuple[int, str]:
        """Return how many lines were left out, and a notice that says so; reset the count."""
        count, self.count = self.count, 0
        return count, f"{count} lines were not told: nobody read them"


class Output:
    """The two streams of one call; made when the call runs, so that tests may replace sys.stdout."""

    def __init__(self, *, json: bool = False, debug: bool = False) -> None:
        self.json, self.debug = json, debug
        self._indent: int | None = 2
        self.out, self.err = _console(sys.stdout), _console(sys.stderr)
        self.reader_left = False
        """True once the reader of stdout has left."""
        self._lost = False
        self._never_blocks = False
        self._skipped = SkippedLines()
        self._spinner: Waiting | None = None
        self.heard: Callable[[str], None] | None = None
        """Receives each text of a wait, where a caller of verbs reports their progress."""
        self._error_sink: Callable[[BaseException], object] | None = None

    def errors_go_to(self, sink: Callable[[BaseException], object]) -> None:
        """From now on hand the error that ends the call to a log, in place of its text for a person."""
        self._error_sink = sink

    def never_block(self) -> None:
        """From now on leave out a line that would block: while this process waits, its clients wait."""
        self._never_blocks = True

    def answer(self, answer: Answer) -> None:
        if self.json:
            self._write(answer.json)
        else:
            self.show(answer.view)

    def show(self, view: RenderableType, *, as_it_is: bool = False) -> None:
        """Print a view for a person on stdout; `as_it_is` keeps the lines of a text that is wrapped already."""
        self._say(self.out, lambda: self.out.print(view, soft_wrap=as_it_is))

    def as_lines(self) -> None:
        """From now on print each JSON document, errors included, as a line: the call prints several documents."""
        self._indent = None

    def line(self, fields: Mapping[str, Any], text: str) -> None:
        """Print a line of a call that goes on: a JSON line or a sentence."""
        if self._never_blocks and self._skipped.skips(self.out.file):
            return
        if self._skipped.count:
            count, notice = self._skipped.notice()
            self.line({"event": "not-told", "lines": count}, notice)
            self.line(fields, text)
        elif self.json:
            self._write(fields)
        else:
            self.show(Text(text))

    def note(self, text: str) -> None:
        """Print a warning or a hint beside the result."""
        self._warn(Text(text, style="yellow"))

    @contextmanager
    def waiting(self, text: str) -> Iterator[Waiting]:
        """Show a spinner with a changing text, if stderr is a terminal; an inner call borrows the only spinner."""
        if self._spinner is not None:
            before = self._spinner.text
            self._spinner.say(text)
            try:
                yield self._spinner
            finally:
                self._spinner.say(before)
        elif not self.err.is_terminal:
            silent = Waiting(None, heard=self.heard)
            silent.say(text)
            yield silent
        else:
            with self.err.status(Text(text)) as status:
                self._spinner = Waiting(status, text, self.heard)
                try:
                    yield self._spinner
                finally:
                    self._spinner = None

    def error(self, error: KmigrateError) -> None:
        self._trace(error)
        if self.json:
            self._write(error.as_json())
        if self._error_sink is not None:
            self._error_sink(error)
            return
        lines = [self._within(Text.assemble(("error ", "bold red"), (error.ref, "bold"), f": {error.what}"))]
        if error.still_true:
            lines.append(self._within(Text.assemble(("still true: ", "dim"), error.still_true), 2))
        if error.next_step:
            step = Text.assemble(("next: ", "dim"), error.next_step)
            # A command stays on one line, so that it can be copied from the terminal.
            lines.append(Text.assemble("  ", step) if "kmigrate " in error.next_step else self._within(step, 2))
        lines.append(_more(error.ref))
        self._warn(below(lines))

    def _within(self, text: RichText, indent: int = 0) -> RichText:
        """Wrap a text between words at the terminal's width, and indent the text; a pipe's lines are not wrapped."""
        lines = text.wrap(self.err, max(20, self.err.width - indent - 2)) if self.err.is_terminal else [text]
        for line in lines:
            line.rstrip()
        return RichText.assemble(" " * indent, below(lines, indent=" " * (indent + 2)))

    def unexpected(self, error: BaseException) -> None:
        """Print a bug of ours in a line; the traceback is printed only on demand."""
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
        if self._error_sink is not None:
            self._error_sink(error)
            return
        line = Text(f"error internal-error: {what} (--debug shows where)", style="red")
        self._warn(below([line, _more("internal-error")]))

    def _write(self, fields: Mapping[str, Any]) -> None:
        escaped = not _is_unicode(self.out.file)
        text = json.dumps(fields, ensure_ascii=escaped)
        if self._indent is not None and len(text) <= _MOST_INDENTED:
            text = json.dumps(fields, indent=self._indent, ensure_ascii=escaped)
        text = harmless_json(text) + "\n"
        self._say(self.out, lambda: (self.out.file.write(text), self.out.file.flush()))

    def _warn(self, text: RichText) -> None:
        self._say(self.err, lambda: self.err.print(text, soft_wrap=True))

    def _trace(self, error: BaseException) -> None:
        if self.debug:
            self._say(self.err, lambda: traceback.print_exception(error, file=self.err.file))

    def unwritten(self, error: OSError) -> None:
        """Discard output that stdout did not take, because the reader has left or the disk is full."""
        # A reader or terminal that has left does not come back; a full disk may have room again.
        gone = isinstance(error, BrokenPipeError) or error.errno == errno.EIO
        self.out.drop(for_good=gone)
        if gone:
            self.reader_left = True
        elif not self._lost:
            self._lost = True
            self.note(f"output on stdout is lost: {error.strerror}")

    def _say(self, console: _Console, say: Callable[[], object]) -> None:
        try:
            say()
        except OSError as error:
            if console is self.out:
                self.unwritten(error)
            else:
                console.drop(for_good=False)


def _more(ref: str) -> RichText:
    """Return the last line of an error: the command that explains the error's reference."""
    return Text.assemble(("  more: ", "dim"), f"kmigrate explain {ref}")


class Waiting:
    """The text of a wait, shown by a spinner if there is a spinner, and passed on if somebody hears."""

    def __init__(self, status: Any, text: str = "", heard: Callable[[str], None] | None = None) -> None:
        self._status, self.text, self._heard = status, text, heard

    def say(self, text: str) -> None:
        self.text = text
        if self._status is not None:
            self._status.update(Text(text))
        if self._heard is not None:
            self._heard(text)
