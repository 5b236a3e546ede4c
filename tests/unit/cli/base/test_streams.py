"""Streams that fail a call: readers that leave, streams that are closed, encodings that lack characters; and Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from rich.text import Text

from kmigrate.cli.app import main
from kmigrate.cli.base import output
from kmigrate.cli.base.call import Call, run_to_end
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer, Output
from kmigrate.cli.commands import status
from kmigrate.cli.views.tables import table
from kmigrate.errors import KmigrateError, Refused, StateLogBroken, Unreachable, UsageError
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.workflow.status.snapshot import Snapshot
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)


@contextmanager
def nobody_reads(*names: str) -> Iterator[None]:
    """Replace the streams by pipes whose readers have left."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe, pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(sys, name, pipe)
        yield


@contextmanager
def nobody_reads_yet(name: str) -> Iterator[int]:
    """Replace a stream by a full pipe, and yield the file number from which the pipe can be read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"-" * 65_536)
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w", encoding="utf-8") as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, name, pipe)
        yield reader
    os.close(reader)


def emptied(reader: int) -> None:
    """Read everything that the full pipe holds."""
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        while os.read(reader, 65_536):
            pass


def told(reader: int) -> list[str]:
    return os.read(reader, 65_536).decode().splitlines()


def differing() -> Answer:
    return Answer({"equal": False}, Text("differs"), Exit.PARITY_MISMATCH)


def refused() -> Answer:
    raise Refused("group-not-promoted", "a group reads it")


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")])
@pytest.mark.parametrize(("act", "code"), [(differing, Exit.PARITY_MISMATCH), (refused, Exit.REFUSED)])
def test_who_leaves_before_the_answer_changes_no_exit_code(
    act: Any, code: Exit, streams: tuple[str, ...], as_json: bool
) -> None:
    """`kmigrate verify | head && …` used to go on although the copy differed."""
    with nobody_reads(*streams):
        assert run_to_end(Call(json=as_json), act) == code


@contextmanager
def no_room() -> Iterator[None]:
    with Path("/dev/full").open("w", encoding="utf-8") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        yield


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(("act", "code"), [(differing, Exit.PARITY_MISMATCH), (refused, Exit.REFUSED)])
def test_a_full_disk_changes_no_exit_code_and_is_told(
    act: Any, code: Exit, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A promote that had succeeded used to end with an internal error and exit code 1."""
    with no_room():
        assert run_to_end(Call(json=as_json), act) == code
    told = "stdout is lost: No space left on device" in capsys.readouterr().err
    assert told is (as_json or act is differing)  # otherwise stdout had no output to lose


@pytest.mark.parametrize("as_json", [True, False])
def test_a_process_whose_log_is_full_runs_on_and_is_heard_again(as_json: bool, tmp_path: Path) -> None:
    """A router's `run > log` used to end when the log's disk was full, and the clients lost their router."""
    log = (tmp_path / "log").open("w+", encoding="utf-8")
    number, full = os.dup(log.fileno()), os.open("/dev/full", os.O_WRONLY)
    with log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", log)
        out = output.Output(json=as_json)
        out.as_lines()
        os.dup2(full, log.fileno())
        for name in ("one", "two"):
            out.line({"event": name}, name)
        os.dup2(number, log.fileno())
        out.line({"event": "three"}, "three")
        text = (tmp_path / "log").read_text(encoding="utf-8")
        assert (text.count("three"), "one" in text, "two" in text, out.reader_left) == (1, False, False, False)
    os.close(number)
    os.close(full)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_terminal_that_is_gone_ends_no_process(as_json: bool) -> None:
    """The same happens to `kmigrate run &` after its window was closed."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        out = output.Output(json=as_json)
        out.as_lines()
        os.close(ours)
        for name in ("one", "two"):
            out.line({"event": name}, name)
        assert out.reader_left


@pytest.mark.parametrize(("words", "code"), [(["sandbox", "status", "--json"], Exit.REFUSED), (["--help"], Exit.OK)])
def test_python_has_nothing_left_to_write_at_the_end_of_a_call(words: list[str], code: Exit, tmp_path: Path) -> None:
    """With output left, Python ends with exit code 120 and a traceback."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        call = [sys.executable, "-m", "kmigrate", *words]
        ended = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    assert (ended.returncode, b"Traceback" in ended.stderr, b"stdout is lost" in ended.stderr) == (code, False, True)


@pytest.mark.parametrize("as_json", [True, False])
def test_an_engine_waits_for_nobody_who_shall_read_its_lines(as_json: bool) -> None:
    """A router whose terminal was stopped by Ctrl-S used to answer no client any more."""
    with nobody_reads_yet("stdout") as reader:
        out = Output(json=as_json)
        out.as_lines()
        out.never_block()
        for number in range(3):
            out.line({"number": number}, f"line {number}")
        emptied(reader)
        out.line({"number": 3}, "line 3")
        out.line({"number": 4}, "line 4")
        lines = told(reader)
    if as_json:
        assert [json.loads(line) for line in lines] == [{"event": "not-told", "lines": 3}, {"number": 3}, {"number": 4}]
    else:
        assert lines == ["3 lines were not told: nobody read them", "line 3", "line 4"]


@pytest.mark.parametrize("words", [["frob"], ["frob", "--json"], []])
def test_a_usage_error_that_nobody_reads_is_one_all_the_same(words: list[str]) -> None:
    with nobody_reads("stdout", "stderr"):
        assert main(words) == Exit.USAGE


@pytest.mark.parametrize("as_json", [True, False])
def test_a_watch_that_nobody_reads_ends(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    async def snapshot(_: object) -> Any:
        looks.append(1)
        return Snapshot(0, 0, (), (), (), (), frozenset(), (), ())

    connections: Any = None
    monkeypatch.setattr(status, "snapshot", snapshot)
    with nobody_reads("stdout"):
        call = Call(json=as_json)
        assert run_to_end(call, lambda: status._print_snapshots(call, connections, 60.0)) == Exit.OK
    assert looks == [1]


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_playbook_that_nobody_reads_does_not_end_as_if_it_were_through(flags: list[str], tmp_path: Path) -> None:
    """The playbook begins no further step, either."""
    book = tmp_path / "p.toml"
    steps = [f"[[step]]\nexec = 'touch {tmp_path}/{name}'\n" for name in ("one", "two")]
    book.write_text("".join(steps), encoding="utf-8")
    with nobody_reads("stdout"):
        assert main(["playbook", "run", str(book), *flags]) == Exit.FAILED
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_terminal_without_our_arrows_is_told_all_the_same(
    encoding: str, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was made already: an error would claim the opposite."""
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding=encoding))
    answer = Answer({"change": "é ✓ 😀 \udcff"}, Text("store link l: s → t"))
    assert run_to_end(Call(json=as_json), lambda: answer) == Exit.OK
    sys.stdout.flush()
    text = told.getvalue().decode(encoding)
    assert json.loads(text) == answer.json if as_json else text.startswith("store link l: s \\u2192 t")


def test_a_name_that_speaks_to_the_terminal_is_told_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client chooses its client id, and the person who reads the id may have more rights than that client."""
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding="utf-8"))
    name = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\u202eé"
    rows = table("client")
    rows.add_row(Text(name))
    for view in (Text(name, style="red"), rows, name):
        assert run_to_end(Call(), lambda view=view: Answer({}, view)) == Exit.OK  # type: ignore[misc]
    sys.stdout.flush()
    text = told.getvalue().decode()
    assert not set(text) & {"\x1b", "\x07", "\x7f", "\x9b", "\u202e"}
    assert text.count("]0;title") == 3
    assert "é" in text


def test_a_call_that_is_advised_stays_one_line_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_PIPE_WIDTH", 40)
    advice = "mend the cause, then: kmigrate group promote -- one two three four five"

    def fails() -> Answer:
        raise Refused("a-guard", "it said no", next_step=advice)

    run_to_end(Call(), fails)
    assert f"  next: {advice}" in capsys.readouterr().err.splitlines()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stderr by a terminal of 40 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def seen(terminal: Terminal) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue()).splitlines()


def test_what_happened_is_cut_between_words_where_a_terminal_is_narrow_and_what_is_advised_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = narrow(monkeypatch)
    words = " ".join(f"word{n}" for n in range(20))
    call = "kmigrate group promote --link l one two three four five six"

    def fails() -> Answer:
        raise Refused("a-guard", words, still_true=f"all of {words}", next_step=call)

    run_to_end(Call(), fails)
    *lines, last = seen(terminal)
    assert last == "  more: kmigrate explain a-guard"
    assert lines[-1] == f"  next: {call}"
    assert all(len(line) <= 40 for line in lines[:-1])
    told = " ".join(line.strip() for line in lines[:-1])
    assert told == f"error a-guard: {words} still true: all of {words}"
    assert [line.startswith("  ") for line in lines] == [False, *[True] * (len(lines) - 1)]


def test_a_next_step_without_a_call_is_cut_between_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow(monkeypatch)

    def fails() -> Answer:
        raise Refused("a-guard", "it said no", next_step=" ".join(["expected:", *["a", "character"] * 10]))

    run_to_end(Call(), fails)
    assert all(len(line) <= 40 and not line.endswith("charac") for line in seen(terminal))


def test_what_is_waited_for_within_something_else_is_told_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal has room for one changing line; a second spinner used to crash."""
    terminal = narrow(monkeypatch)
    out = Output()
    with out.waiting("reading the ranges") as outer:
        with out.waiting("asking source old") as inner:
            assert outer is inner and inner.text == "asking source old"
        assert outer.text == "reading the ranges"
    with out.waiting("again") as later:
        assert later is not outer
    assert "reading the ranges" in terminal.getvalue()


def test_a_name_that_is_no_unicode_leaves_json_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(told, encoding="utf-8"))
    assert run_to_end(Call(json=True), lambda: Answer({"name": "é\udcff"}, Text(""))) == Exit.OK
    sys.stdout.flush()
    assert json.loads(told.getvalue()) == {"name": "é\udcff"}


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_stream_that_was_closed_before_takes_nothing_from_a_call(closed: tuple[int, ...], tmp_path: Path) -> None:
    """Otherwise the first connection to a broker would get the stream's file number."""
    script = (
        "import os, sys\n"
        f"for number in {closed}: os.close(number)\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'kmigrate', 'playbook', 'plan', 'gone.toml'])"
    )
    out: IO[Any]
    with (tmp_path / "out").open("w+b") as out:
        ended = subprocess.run([sys.executable, "-c", script], stdout=out, stderr=out, check=False)
        out.seek(0)
        text = out.read().decode()
    assert (ended.returncode, "Traceback" in text) == (Exit.USAGE, False)
    assert ("no-playbook" in text) is (2 not in closed)


@pytest.mark.parametrize(
    ("kind", "still_true", "next_step"),
    [
        (Unreachable, "what this call had written before stays", "kmigrate doctor"),
        (StateLogBroken, "what this call had written before stays", "docs/state-log.md"),
        (UsageError, "nothing was changed", "--help"),
        (Refused, "what this call had written before stays", "kmigrate status"),
    ],
)
def test_what_comes_from_deep_down_says_what_holds_and_how_to_go_on(
    kind: type[KmigrateError], still_true: str, next_step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**words: str) -> Answer:
        raise kind("no-leader", "t-0 has no leader", **words)

    run_to_end(Call(json=True), fails)
    told = json.loads(capsys.readouterr().out)
    assert (still_true in told["still_true"], next_step in told["next"]) == (True, True)
    assert ("repeat" in told["next"]) is (kind is Unreachable), "what a guard says no to is not mended by repeating it"
    run_to_end(Call(json=True), lambda: fails(still_true="a", next_step="b"))
    told = json.loads(capsys.readouterr().out)
    assert (told["still_true"], told["next"]) == ("a", "b")


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(("words", "documents"), [(["link", "list"], 1), (["status", "--watch"], 0)])
def test_ctrl_c_has_its_document_but_where_it_is_the_way_to_end(
    words: list[str],
    documents: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        if documents:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.sleep(5)
        yield SimpleNamespace(log=MemoryLog(LINK))

    async def snapshot(_: object) -> Any:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(5)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(status, "snapshot", snapshot)
    assert main([*words, "--config", str(config), "--json"]) == Exit.INTERRUPTED
    told = capsys.readouterr().out
    assert bool(told) is bool(documents)
    if documents:
        document = json.loads(told)
        assert (document["error"], document["exit_code"]) == ("interrupted", 130)
        assert document["still_true"] and document["next"]


def test_a_document_of_a_large_estate_is_one_line_and_any_other_is_indented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"topics": [{"topic": "orders\u202e → \x85"}], "lag": 1}
    Output(json=True).answer(Answer(document, ""))
    indented = capsys.readouterr().out
    assert len(indented.splitlines()) == 8
    monkeypatch.setattr(output, "_MOST_INDENTED", 10)
    Output(json=True).answer(Answer(document, ""))
    line = capsys.readouterr().out
    assert len(line.splitlines()) == 1
    assert json.loads(line) == json.loads(indented) == document
    for text in (indented, line):
        assert "→" in text
        assert "\u202e" not in text
        assert "\x85" not in text
