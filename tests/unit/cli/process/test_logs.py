"""The log of a process: one shape, each cause once a minute with a count, and no wait for a reader."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cli.base.output import Output
from kmigrate.cli.process import logs
from kmigrate.cli.process.logs import LINK, LogHandler, RepeatFilter, as_json_line, as_text_line, open_log, report
from kmigrate.config.settings import LogSection
from kmigrate.errors import StateLogBroken


def line(text: str, *, name: str = "kmigrate.router", level: int = logging.WARNING, **more: Any) -> logging.LogRecord:
    record = logging.LogRecord(name, level, "", 0, "%s", (text,), None)
    record.created = 1_750_000_000.1239
    record.__dict__.update(more)
    return record


def logged(section: LogSection, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> tuple[list[str], str]:
    """Log a few lines as engines do, and return the lines on stderr, and stdout."""

    async def run() -> None:
        out = Output(json=as_json)
        out.as_lines()
        async with open_log(section, out):
            LINK.set("blue")
            logging.getLogger("kmigrate.mirror.copy").warning("source blue: %s", "refused")
            LINK.set("")
            logging.getLogger("kmigrate.router").info("till: promote its topics together")
            logging.getLogger("asyncio").error("a task was lost")
            logging.getLogger("asyncio").info("somebody's chat")
            report(out, "router", {"event": "router-listening", "name": "r"}, "router r listens")

    asyncio.run(run())
    said = capsys.readouterr()
    return said.err.splitlines(), said.out


def test_a_line_of_text_has_time_level_component_and_link(capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = logged(LogSection(), capsys)
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    assert all(re.match(stamp, each) for each in lines)
    assert [each.split(" ", 1)[1] for each in lines] == [
        "WARNING mirror [blue] source blue: refused",
        "INFO    router till: promote its topics together",
        "ERROR   asyncio a task was lost",
        "INFO    router router r listens",
    ]
    assert out == "", "without --json the log is the only stream"


def test_a_line_of_json_has_the_same_and_the_fields_of_its_event(capsys: pytest.CaptureFixture[str]) -> None:
    lines, out = logged(LogSection(format="json"), capsys, as_json=True)
    told = [json.loads(each) for each in lines]
    assert [(each["level"], each["component"], each["link"], each["message"]) for each in told] == [
        ("warning", "mirror", "blue", "source blue: refused"),
        ("info", "router", None, "till: promote its topics together"),
        ("error", "asyncio", None, "a task was lost"),
        ("info", "router", None, "router r listens"),
    ]
    assert (told[3]["event"], told[3]["name"]) == ("router-listening", "r")
    assert json.loads(out) == {"event": "router-listening", "name": "r"}


def test_a_level_leaves_out_what_is_below(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = logged(LogSection(level="error"), capsys)
    assert [each.split()[1:3] for each in lines] == [["ERROR", "asyncio"]]


def test_a_level_holds_for_libraries_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with open_log(LogSection(level="error"), Output()):
            logging.getLogger("asyncio").warning("a callback took long")

    asyncio.run(run())
    assert capsys.readouterr().err == ""


def test_the_log_ends_with_the_process_that_opened_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger("kmigrate").level, list(logging.getLogger().handlers)
    logged(LogSection(level="error"), capsys)
    assert (logging.getLogger("kmigrate").level, logging.getLogger().handlers) == before


def test_a_json_log_has_the_error_that_ends_the_process_too(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> Output:
        out = Output()
        async with open_log(LogSection(format="json"), out):
            return out

    out = asyncio.run(run())
    out.error(StateLogBroken("log-cut", "the state log ends at 3", next_step="look at the log"))
    out.unexpected(ValueError("odd"))
    first, second = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert (first["level"], first["error"], first["next"]) == ("error", "log-cut", "look at the log")
    assert first["message"] == "log-cut: the state log ends at 3"
    assert (second["event"], second["error"]) == ("ended", "internal-error")


def test_a_cause_is_written_once_a_minute_and_then_with_its_count() -> None:
    repeats = RepeatFilter()
    assert repeats.passes(line("target: refused"), 0)
    assert not any(repeats.passes(line("target: refused"), at) for at in range(1, 5))
    assert repeats.passes(line("target: refused", link="blue"), 5), "another link is another cause"
    assert list(repeats.ended(59)) == []
    (again,) = repeats.ended(60)
    assert as_text_line(again).endswith("target: refused (4 times more in 60 s)")
    assert json.loads(as_json_line(again))["repeated"] == 4
    assert not repeats.passes(line("target: refused"), 70), "it has just been written"
    assert list(repeats.ended(119)) == []
    assert repeats.passes(line("target: refused", link="blue"), 119), "its minute ended without another"


def test_a_line_that_is_written_again_names_its_own_link_whoever_writes() -> None:
    repeats = RepeatFilter()
    LINK.set("blue")
    for at in range(2):
        repeats.passes(line("source: refused"), at)
    LINK.set("green")
    (again,) = repeats.ended(60)
    text, document = as_text_line(again), json.loads(as_json_line(again))
    LINK.set("")
    assert "router [blue] source: refused" in text
    assert document["link"] == "blue"


def test_a_named_cause_counts_and_not_the_text_and_peers_differ_by_more_than_their_port() -> None:
    repeats = RepeatFilter()
    assert repeats.passes(line("mirror failed, again in 0.5 s", cause="gone"), 0)
    assert not repeats.passes(line("mirror failed, again in 1 s", cause="gone"), 0)
    assert repeats.passes(line("closing 10.0.0.1:4711: too large"), 0)
    assert not repeats.passes(line("closing 10.0.0.1:4712: too large"), 0)
    assert repeats.passes(line("closing 10.0.0.2:4711: too large"), 0)


def test_an_event_is_written_each_time_unless_it_is_a_failure() -> None:
    repeats = RepeatFilter()
    started, failed = {"event": "mirror-started"}, {"event": "mirror-failed"}
    assert all(repeats.passes(line("mirror started", level=logging.INFO, event=started), 0) for _ in range(2))
    assert [repeats.passes(line("mirror failed", level=logging.ERROR, event=failed), 0) for _ in range(2)] == [
        True,
        False,
    ]


def test_the_causes_that_are_counted_do_not_grow_with_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MOST_CAUSES", 2)
    repeats = RepeatFilter()
    assert [repeats.passes(line(text), 0) for text in ("a", "b", "c", "b", "a")] == [True, True, True, False, True]


def test_the_end_of_the_log_says_how_often_lines_came_again(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with open_log(LogSection(), Output()):
            for _ in range(4):
                logging.getLogger("kmigrate.router").warning("target: refused")
            logging.getLogger("kmigrate.router").warning("source: refused")

    asyncio.run(run())
    first, other, count = (each.split(" router ")[1] for each in capsys.readouterr().err.splitlines())
    assert (first, other) == ("target: refused", "source: refused")
    assert count == "target: refused (3 times more in 1 s)"


def test_a_name_makes_no_second_line_and_nothing_that_a_terminal_obeys() -> None:
    """Any client chooses its client id: an invented log line would look like a line of ours."""
    name = "app\n2026-01-01T00:00:00.000Z INFO    controller [l] promoted\r\x1b[2J\x9b31m\u202e\u2028é"
    for render in (as_text_line, as_json_line):
        first = render(line(f"{name}: its transaction is refused"))
        assert "n2026-01-01" in first
        assert not set(first) & set("\r\n\x1b\x9b\u202e\u2028")
        assert len(render(line("x" * 100_000))) < 5000
    assert as_text_line(line(f"{name}: refused")).endswith("é: refused")
    assert as_text_line(line("x" * 100_000)).endswith("xxx… and 96,000 characters more")


def test_a_traceback_follows_its_line_and_is_a_field_of_its_document() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        record = line("late writes")
        record.exc_info = sys.exc_info()
    assert as_text_line(record).splitlines()[0].endswith("late writes")
    assert as_text_line(record).splitlines()[-1] == "  ValueError: odd"
    assert json.loads(as_json_line(record))["trace"].endswith("ValueError: odd")


def test_a_name_in_a_traceback_makes_no_line_of_the_log_either() -> None:
    try:
        raise ValueError("app\n2026-01-01T00:00:00.000Z INFO    controller promoted\x1b[2J")
    except ValueError:
        record = line("late writes")
        record.exc_info = sys.exc_info()
    first, *trace = as_text_line(record).split("\n")
    assert first.endswith("late writes")
    assert all(each.startswith("  ") for each in trace)
    assert "\x1b" not in "".join(trace)


@contextmanager
def nobody_reads() -> Iterator[tuple[LogHandler, int]]:
    """A handler whose stream is a pipe that is full, and the pipe's end to read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        handler = LogHandler("text")
        handler.setStream(stream)
        written = 1
        while written:
            try:
                written = os.write(writer, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(writer, True)
        try:
            yield handler, reader
        finally:
            os.close(reader)


def test_a_full_pipe_keeps_no_process_waiting() -> None:
    with nobody_reads() as (handler, reader):
        for number in range(3):
            handler.handle(line(f"client {number}"))
        os.set_blocking(reader, False)
        while True:
            try:
                os.read(reader, 1 << 20)
            except BlockingIOError:
                break
        handler.handle(line("client 3"))
        said = os.read(reader, 1 << 20).decode().splitlines()
    assert [each.split(" ", 3)[3] for each in said] == ["3 lines were not told: nobody read them", "client 3"]


def test_events_are_printed_for_programs_alone() -> None:
    printed: list[object] = []
    for as_json in (False, True):
        out: Any = SimpleNamespace(json=as_json, line=lambda fields, _: printed.append(fields))
        report(out, "mirror", {"event": "mirror-started", "link": "blue"}, "mirror blue started")
    assert printed == [{"event": "mirror-started", "link": "blue"}]
