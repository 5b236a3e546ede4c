"""Histories survive kills, merge by time, and are refused when their contents contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmigrate.errors import Failed
from kmigrate.sandbox.history import HistoryWriter, merge_histories, read_history


def test_what_was_recorded_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with HistoryWriter(path, "shop-1.1", role="producer") as pen:
        pen.record("invoke", "send", topic="orders", partition=3, value="shop-1.1:0", ts=5)
        pen.record("ok", "send", topic="orders", partition=3, value="shop-1.1:0", offset=9)
    opened, asked, told, closed = read_history(path)
    assert (opened.f, opened.detail["role"], opened.detail["history"]) == ("open", "producer", 1)
    assert (asked.type, asked.value, asked.ts, asked.offset) == ("invoke", "shop-1.1:0", 5, -1)
    assert (told.type, told.offset) == ("ok", 9)
    assert closed.f == "close"
    assert opened.m <= asked.m <= told.m <= closed.m


def test_flushed_lines_are_in_the_file_before_the_writer_is_closed(tmp_path: Path) -> None:
    pen = HistoryWriter(tmp_path / "a.jsonl", "shop-1.1")
    pen.record("invoke", "send", topic="orders", partition=0, value="shop-1.1:0")
    pen.flush()
    assert [event.f for event in read_history(tmp_path / "a.jsonl")] == ["open", "send"]
    pen.close()


def test_a_last_line_that_a_kill_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    HistoryWriter(path, "shop-1.1").close()
    with path.open("ab") as file:
        file.write(b'{"m":1,"t":2,"pro')
    assert [event.f for event in read_history(path)] == ["open", "close"]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('nonsense\n{"m":1,"t":1,"process":"p","type":"ok","f":"close"}\n')
    with pytest.raises(Failed, match="history-broken: line 1"):
        list(read_history(path))


def test_a_history_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    line = {"m": 1, "t": 1, "process": "p", "type": "info", "f": "open", "detail": {"history": 99}}
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(Failed, match="history-version"):
        list(read_history(path))


def test_keys_of_a_later_minor_addition_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"m":1,"t":1,"process":"p","type":"ok","f":"close","colour":"blue"}\n')
    assert [event.f for event in read_history(path)] == ["close"]


def test_histories_are_merged_by_the_clock_that_all_processes_share(tmp_path: Path) -> None:
    pens = [HistoryWriter(tmp_path / f"{name}.jsonl", name) for name in "ab"]
    for number in range(6):
        pens[number % 2].record("ok", "send", topic="orders", partition=0, offset=number, value=f"x.1:{number}")
    for pen in pens:
        pen.close()
    merged = tmp_path / "out" / "history.jsonl"
    assert merge_histories(tmp_path.glob("*.jsonl"), merged) == 10
    events = list(read_history(merged))
    assert [event.offset for event in events if event.f == "send"] == list(range(6))
    assert [event.m for event in events] == sorted(event.m for event in events)


def test_an_error_that_ends_a_client_is_in_its_history(tmp_path: Path) -> None:
    def fail() -> None:
        with HistoryWriter(tmp_path / "a.jsonl", "shop-1.1"):
            raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        fail()
    events = list(read_history(tmp_path / "a.jsonl"))
    assert [(event.f, event.error) for event in events[1:]] == [("error", "ValueError"), ("close", "")]
