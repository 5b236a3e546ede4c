"""The history of live clients: their requests and the answers, line by line.

docs/history.md describes the format for other programs. The writers keep these rules:

H1  Each process writes a file of its own and only appends.
H2  The `invoke` line of a send, or of a transaction's end, is in the file before the client library sees the request.
    A killed client may lose answers (the send stays *indefinite*), but never the fact of the request.
H3  Every line carries the epoch time, for the times of other programs, and the monotonic time, which all processes of
    a machine share. Durations and the order of the merge come from the monotonic time.
H4  A last line without line end was cut by a kill and is ignored. Any other broken line is an error.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from kmigrate.errors import Failed

__all__ = [
    "ABORTED",
    "FORMAT_VERSION",
    "Event",
    "HistoryWriter",
    "Position",
    "Slot",
    "merge_histories",
    "read_history",
    "whole_lines",
]

FORMAT_VERSION = 1
ABORTED = "aborted"  # `error` of a record whose transaction was aborted: no reader may ever get the record

_FLUSH_NS = 100_000_000
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would create an encoder for every line
_FLUSH_LINES = 500

Slot = tuple[str, int]  # topic, partition
Position = tuple[str, int, int]  # topic, partition, offset


class Event(NamedTuple):
    """A line of a history."""

    m: int  # monotonic ns
    t: int  # epoch ns
    process: str
    type: str  # invoke | ok | fail | info
    f: str  # open | begin | send | txn | poll | commit | reset | assign | revoke | notice | error | close
    topic: str = ""
    partition: int = -1
    offset: int = -1
    value: str = ""
    records: int = 1  # a run: this many records with consecutive numbers at consecutive offsets
    values: Sequence[str] = ()  # the ids that a poll read, at consecutive offsets from `offset`
    group: str = ""
    txn: int = -1
    ts: int = -1  # the record's explicit timestamp, ms
    positions: Sequence[Sequence[Any]] = ()  # [topic, partition, offset] each
    error: str = ""
    detail: Mapping[str, Any] = {}


_NAMES = frozenset(Event._fields)


def _parse(line: bytes) -> Event:
    fields: dict[str, Any] = json.loads(line)
    try:
        return Event(**fields)
    except TypeError:  # a later minor version added keys that this reader does not know
        return Event(**{name: value for name, value in fields.items() if name in _NAMES})


def whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file that a live or killed process writes. A cut last line is left out (H4)."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def read_history(path: Path) -> Iterator[Event]:
    """Yield the events of a history in the file's order. Refuse a format that this reader does not know."""
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            event = _parse(line)
        except (ValueError, TypeError) as error:
            raise Failed("history-broken", f"line {number} of {path} is not a history event: {error}") from error
        if event.f == "open" and event.type == "info" and event.detail.get("history") != FORMAT_VERSION:
            raise Failed(
                "history-version",
                f"{path} is a history of version {event.detail.get('history')}, known is {FORMAT_VERSION}",
                next_step="judge it with the kmigrate release that wrote it",
            )
        yield event


def _monotonic(line: bytes) -> int:
    return int(line[5 : line.index(b",")])  # the writer puts `{"m":<ns>,` first


def merge_histories(paths: Iterable[Path], into: Path) -> int:
    """Merge the histories of many processes by monotonic time and return the number of lines."""
    into.parent.mkdir(parents=True, exist_ok=True)
    partial = into.with_name(into.name + ".partial")
    lines = 0
    with partial.open("wb") as out:
        for line in heapq.merge(*(whole_lines(path) for path in sorted(paths)), key=_monotonic):
            out.write(line)
            lines += 1
    partial.replace(into)
    return lines


class HistoryWriter:
    """The writer of a process's history; not thread-safe: client callbacks run in the thread that polls the client."""

    def __init__(self, path: Path, process: str, **facts: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.process = process
        self._file = path.open("ab", buffering=0)
        self._lines: list[str] = []
        self._flushed_at = time.monotonic_ns()
        self.record("info", "open", detail={"history": FORMAT_VERSION, **facts})
        self.flush()

    def record(self, kind: str, f: str, **fields: object) -> None:
        now = time.monotonic_ns()
        line = {"m": now, "t": time.time_ns(), "process": self.process, "type": kind, "f": f, **fields}
        self._lines.append(_ENCODE(line))
        if now - self._flushed_at > _FLUSH_NS or len(self._lines) >= _FLUSH_LINES:
            self.flush()

    def flush(self) -> None:
        """Hand the lines to the operating system, where a kill of this process cannot reach them."""
        if self._lines:
            data = memoryview(("\n".join(self._lines) + "\n").encode())
            self._lines.clear()
            while data:
                data = data[self._file.write(data) :]
        self._flushed_at = time.monotonic_ns()

    def close(self) -> None:
        self.record("info", "close")
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.record("info", "error", error=type(error).__name__, detail={"text": str(error)})
        self.close()
