"""The log of a running process: one stream (stderr), one shape, as text for a person or as JSON lines for a collector.

    2026-11-26T09:40:00.123Z WARNING mirror [blue] source blue: connection refused
    {"time": "2026-11-26T09:40:00.123Z", "level": "warning", "component": "mirror", "link": "blue", "message": "…"}

A. Every line has time (UTC), level and component; the link, where the line concerns one link.
B. A line is written once per cause and minute; then a line says how often the cause came again (`RepeatFilter`).
C. A line that would block is left out, because all clients of a router would wait, too (`SkippedLines`).
D. Events (`report`) are lines of the log; with `--json` events are on stdout, too, as docs/json.md says.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

from kmigrate.cli.base.output import Output, SkippedLines, harmless_json, log_line
from kmigrate.config.settings import LogSection
from kmigrate.errors import KmigrateError
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import every
from kmigrate.net.tasks import TaskOwner

__all__ = ["LINK", "LogHandler", "RepeatFilter", "as_json_line", "as_text_line", "open_log", "report"]

LINK: ContextVar[str] = ContextVar("link", default="")
"""The link whose mirror runs in the current task; log lines of the task name the link."""

_OURS = "kmigrate"
_WINDOW_S = 60.0
_SWEEP_S = 5.0
_MOST_CAUSES = 1_000
"""Causes that are counted at a time; each client of a router can make causes of its own."""
_PEER_PORT = re.compile(r"(?<=\d):\d+|(?<=\]):\d+")
"""Port of an IP address: each connection of a client has another port, for the same cause."""


@dataclass(slots=True)
class _Cause:
    """The lines of one cause: the newest line, the time of the line that was written, and the lines left out since."""

    newest: logging.LogRecord
    written_at: float
    left_out: int = 0

    def counted(self, now: float) -> logging.LogRecord:
        """Return the newest line with the count of the lines left out, and the seconds in which they came."""
        self.newest.repeated, self.newest.repeated_s = self.left_out, now - self.written_at
        return self.newest


class RepeatFilter:
    """Passes the first line of a cause, and counts the cause's further lines for a minute.

    The cause of a line is its attribute `cause`, else its text without the ports of peers. Events of level INFO always
    pass: a worker that is started twice was started twice.
    """

    def __init__(self) -> None:
        self._causes: dict[tuple[str, int, str, str], _Cause] = {}
        """Causes in the order of their written lines."""

    def passes(self, record: logging.LogRecord, now: float) -> bool:
        """Return whether the line is written; if not, count the line."""
        if hasattr(record, "event") and record.levelno <= logging.INFO:
            return True
        text = getattr(record, "cause", "") or _PEER_PORT.sub("", record.getMessage())
        record.link = link = _link_of(record)  # a task of another link may write the line again
        key = (record.name, record.levelno, link, text)
        known = self._causes.get(key)
        if known is not None:
            known.newest = record
            known.left_out += 1
            return False
        if len(self._causes) >= _MOST_CAUSES:
            del self._causes[next(iter(self._causes))]
        self._causes[key] = _Cause(record, now)
        return True

    def ended(self, now: float) -> Iterator[logging.LogRecord]:
        """Yield the newest line of each cause whose minute is over and which came again; `repeated` has the count."""
        for key, cause in list(self._causes.items()):
            if now - cause.written_at < _WINDOW_S:
                return
            del self._causes[key]
            if cause.left_out:
                self._causes[key] = _Cause(cause.newest, now)
                yield cause.counted(now)

    def left(self, now: float) -> Iterator[logging.LogRecord]:
        """Yield the newest line of each cause which came again, at the end of the log, and forget all causes."""
        causes = list(self._causes.values())
        self._causes.clear()
        yield from (cause.counted(now) for cause in causes if cause.left_out)


def _link_of(record: logging.LogRecord) -> str:
    return str(getattr(record, "link", "") or LINK.get())


def _component_of(record: logging.LogRecord) -> str:
    """Return the part of kmigrate that wrote the line, or the name of the library."""
    name, _, below = record.name.partition(".")
    return below.partition(".")[0] or "process" if name == _OURS else name


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace_of(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _indented(trace: str) -> str:
    """Return a traceback whose lines cannot be taken for lines of the log: its error may name anything."""
    return "".join(f"\n  {log_line(each)}" for each in trace.splitlines())


def as_text_line(record: logging.LogRecord) -> str:
    """Return a log record as a line of text; the indented lines of a traceback follow."""
    link = f"[{_link_of(record)}] " if _link_of(record) else ""
    repeated = getattr(record, "repeated", 0)
    seconds = math.ceil(getattr(record, "repeated_s", _WINDOW_S))
    again = f" ({repeated} times more in {seconds} s)" if repeated else ""
    head = f"{_time_of(record)} {record.levelname:<7} {_component_of(record)} "
    return head + log_line(f"{link}{record.getMessage()}{again}") + _indented(_trace_of(record))


def as_json_line(record: logging.LogRecord) -> str:
    """Return a log record as a JSON document without a line end."""
    trace = _trace_of(record)
    document = {
        "time": _time_of(record),
        "level": record.levelname.lower(),
        "component": _component_of(record),
        "link": _link_of(record) or None,
        "message": log_line(record.getMessage()),
        **({"repeated": record.repeated} if hasattr(record, "repeated") else {}),
        **getattr(record, "event", {}),
        **({"trace": trace} if trace else {}),
    }
    return harmless_json(json.dumps(document, ensure_ascii=False))


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes the log of this process to stderr, without ever waiting for a reader."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._line = as_json_line if form == "json" else as_text_line
        self._skipped = SkippedLines()
        self._repeats = RepeatFilter()

    def format(self, record: logging.LogRecord) -> str:
        return self._line(record)

    def emit(self, record: logging.LogRecord) -> None:
        self.write_repeats()
        if self._repeats.passes(record, monotonic()):
            self._write(record)

    def write_repeats(self) -> None:
        """Write how often causes came again whose minute is over."""
        for record in self._repeats.ended(monotonic()):
            self._write(record)

    def close(self) -> None:
        """Write how often causes came again whose minute is not over: the log ends here."""
        for record in self._repeats.left(monotonic()):
            self._write(record)
        super().close()

    def _write(self, record: logging.LogRecord) -> None:
        if self._skipped.skips(self.stream):
            return
        if self._skipped.count:
            _, notice = self._skipped.notice()
            super().emit(logging.LogRecord(_OURS, logging.WARNING, "", 0, notice, None, None))
        super().emit(record)


async def _write_repeats(handler: LogHandler) -> None:
    """Write how often causes came again, also while nothing else is logged."""
    async for _ in every(_SWEEP_S):
        handler.write_repeats()


@asynccontextmanager
async def open_log(section: LogSection, out: Output) -> AsyncIterator[None]:
    """Write the log of this process to stderr; other libraries' warnings come along.

    With JSON lines the error that ends the process is a line of the log, too: a collector reads JSON alone.
    """
    handler = LogHandler(section.format)
    handler.setLevel(section.level.upper())
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(section.level.upper())
    if section.format == "json":
        out.errors_go_to(lambda error: handler.handle(_record_of(error)))
    tasks = TaskOwner()
    tasks.start(_write_repeats(handler), "log")
    try:
        yield
    finally:
        await tasks.close()
        root.removeHandler(handler)
        handler.close()
        ours.setLevel(before)


def _record_of(error: BaseException) -> logging.LogRecord:
    """Return the log record of an error that ends the process."""
    fields = error.as_json() if isinstance(error, KmigrateError) else {"error": "internal-error"}
    what = error.summary if isinstance(error, KmigrateError) else f"internal-error: {error!r}"
    record = logging.LogRecord(_OURS, logging.ERROR, "", 0, "%s", (what,), None)
    record.event = {"event": "ended", **fields}
    return record


def report(
    out: Output, component: str, fields: Mapping[str, Any], text: str, *, level: int = logging.INFO, cause: str = ""
) -> None:
    """Log an event of this process; `fields` has its `event` and perhaps its `link`. With `--json` print the event."""
    extra = {"event": fields, "link": fields.get("link", ""), "cause": cause}
    logging.getLogger(f"{_OURS}.{component}").log(level, "%s", text, extra=extra)
    if out.json:
        out.line(fields, text)
