"""Driven clients write the same history as other clients, with any program as driver; here a test's own program."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kmigrate.errors import Failed, Refused
from kmigrate.sandbox import driven_clients, toolchains
from kmigrate.sandbox.client_specs import ConsumerSpec, Launch, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.driven_clients import consume, produce, transact
from kmigrate.sandbox.history import Event, HistoryWriter, read_history
from kmigrate.sandbox.payload import content_of
from kmigrate.sandbox.toolchains import Driver

DriveWith = Callable[[str], None]


@pytest.fixture
def drive_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DriveWith:
    """Return a function that makes a Python program the driver; the program prints its lines with `say`."""

    def use(program: str) -> None:
        path = tmp_path / "driver.py"
        path.write_text("import sys\nsay = lambda *w: print(*w, sep='\t', flush=True)\n" + textwrap.dedent(program))
        monkeypatch.setattr(driven_clients, "driver_of", lambda _: Driver((sys.executable, str(path))))

    return use


def run(client: Callable[..., None], spec: Any, folder: Path, until: Callable[[list[Event]], bool]) -> list[Event]:
    """Run a client until its history shows a moment, then end the client cleanly."""
    path, stopping = folder / "history.jsonl", threading.Event()
    launch = Launch(spec, "localhost:1", 1, 0, str(path))

    def watch() -> None:
        deadline = time.monotonic() + 30
        while not stopping.is_set() and time.monotonic() < deadline:
            if path.exists() and until(list(read_history(path))):
                break
            time.sleep(0.02)
        stopping.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with HistoryWriter(path, f"{spec.name}.1") as history:
            client(spec, launch, history, stopping)
    finally:
        stopping.set()
        watcher.join()
    return list(read_history(path))


def acked(events: list[Event]) -> list[Event]:
    return [event for event in events if (event.type, event.f) == ("ok", "send")]


def test_a_producer_writes_down_what_it_asked_for_and_what_became_of_it(drive_with: DriveWith, tmp_path: Path) -> None:
    drive_with("""
        say("open", 3)
        for number, line in enumerate(sys.stdin):
            words = line.rstrip("\\n").split("\\t")
            say("acked", words[1], number) if number != 5 else say("failed", words[1], "SomeError", "its text")
    """)
    spec = ProducerSpec("p", "java", "orders", 500)
    events = run(produce, spec, tmp_path, lambda found: len(acked(found)) > 20)
    asked = [event.value for event in events if event.type == "invoke"]
    told = {event.value: event for event in events if event.f == "send" and event.type != "invoke"}
    assert asked == [f"p.1:{number}" for number in range(len(asked))]
    assert set(asked) == set(told), "its end waits for every answer"
    assert (told["p.1:5"].type, told["p.1:5"].error) == ("info", "SomeError")
    assert {(event.offset, event.partition) for event in acked(events)} >= {(0, 0), (1, 1), (4, 1)}


def test_a_driver_that_falls_silent_and_stays_is_ended(
    drive_with: DriveWith, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driven_clients, "_EXIT_SECONDS", 0.2)
    drive_with("""
        import os, time
        say("")
        say("open", 1)
        os.close(1)
        time.sleep(60)
    """)
    with pytest.raises(Failed, match="exit code -9"):
        run(produce, ProducerSpec("p", "java", "orders", 10), tmp_path, lambda _: False)


def test_kafka_python_is_not_given_what_it_cannot_send(drive_with: DriveWith, tmp_path: Path) -> None:
    drive_with("""
        say("open", 1)
        for line in sys.stdin:
            say("acked", line.split("\\t")[1], 0)
    """)
    spec = ProducerSpec("p", "kafka-python", "orders", 500)
    events = run(produce, spec, tmp_path, lambda found: len(acked(found)) > 5)
    numbers = [int(event.value.rpartition(":")[2]) for event in events if event.type == "invoke"]
    assert numbers[:4] == [1, 2, 4, 5]


def test_transactions_are_acknowledged_by_their_end(drive_with: DriveWith, tmp_path: Path) -> None:
    drive_with("""
        say("open", 1)
        ends = 0
        for line in sys.stdin:
            words = line.rstrip("\\n").split("\\t")
            if words[0] == "send":
                say("acked", words[1], 7)
            else:
                ends += words[0] == "commit"
                say("done", words[0], "aborted SomeError" if words[0] == "commit" and ends == 2 else "ok")
    """)
    spec = TransactionalSpec("t", "payments", 200, records=2, abort_every=3, family="java")
    events = run(transact, spec, tmp_path, lambda found: sum(event.f == "txn" for event in found) >= 6)
    ends = [(event.txn, event.type, event.error) for event in events if event.f == "txn" and event.type != "invoke"]
    assert ends[:3] == [(0, "ok", ""), (1, "fail", "SomeError"), (2, "fail", "aborted")]
    assert [event.offset for event in acked(events) if event.txn == 0] == [7, 7]
    told = [(event.f, event.type) for event in events if event.txn == 1]
    sends = [("send", "invoke")] * 2, [("send", "fail")] * 2
    assert told == [("begin", "ok"), *sends[0], ("txn", "invoke"), *sends[1], ("txn", "fail")]
    asked = [event.detail["ask"] for event in events if (event.f, event.type) == ("txn", "invoke")]
    assert asked[:3] == ["commit", "commit", "abort"]


def test_a_member_commits_what_it_has_read_before_it_gives_partitions_away(
    drive_with: DriveWith, tmp_path: Path
) -> None:
    content = content_of("p.1:3", 3)
    lines = [driven_clients._text(content.key), driven_clients._text(content.value)]
    lines.append(",".join(f"{name}:{driven_clients._text(value)}" for name, value in content.headers))
    drive_with(f"""
        say("open", 1)
        say("assigned", "orders:0:-1")
        say("record", "orders", 0, 41, *{lines!r})
        say("revoking", "orders:0:-1")
        for line in sys.stdin:
            verb, listed = line.rstrip("\\n").split("\\t")
            say("committed", listed, "")
            if verb == "release":
                say("revoked", "orders:0:-1")
    """)
    spec = ConsumerSpec("c", "franz-go", "g", ("orders",))
    events = run(consume, spec, tmp_path, lambda found: any(event.f == "revoke" for event in found))
    moves = [(event.f, event.type) for event in events if event.group == "g"]
    commits = [("commit", "invoke"), ("commit", "ok")]
    assert moves == [("assign", "ok"), ("poll", "ok"), *commits, ("revoke", "ok")]
    committed = next(event for event in events if (event.f, event.type) == ("commit", "ok"))
    assert committed.positions == [["orders", 0, 42]]


def test_a_driver_that_dies_is_an_error_of_the_client(drive_with: DriveWith, tmp_path: Path) -> None:
    drive_with("say('open', 1)\nsys.exit(3)")
    with pytest.raises(Failed, match="exit code 3"):
        run(produce, ProducerSpec("p", "java", "orders", 10), tmp_path, lambda _: False)
    events = list(read_history(tmp_path / "history.jsonl"))
    assert [json.loads(json.dumps(event.error)) for event in events if event.f == "error"] == ["Failed"]


def test_a_missing_toolchain_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(Refused) as refused:
        toolchains.driver_of("franz-go")
    assert refused.value.what == "clients of franz-go need the Go toolchain, and there is no go on the PATH"
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [], "nothing half built is taken for one"


def test_a_member_that_is_asked_to_give_partitions_away_while_it_leaves_ends_cleanly(
    drive_with: DriveWith, tmp_path: Path
) -> None:
    """A rebalance and the end of the driver's input may cross."""
    drive_with("""
        say("open", 1)
        say("assigned", "orders:0:-1")
        for line in sys.stdin:
            pass
        say("revoking", "orders:0:-1")
        say("revoked", "orders:0:-1")
    """)
    spec = ConsumerSpec("c", "franz-go", "g", ("orders",))
    events = run(consume, spec, tmp_path, lambda found: any(event.f == "assign" for event in found))
    assert [event.f for event in events][-2:] == ["revoke", "close"], events


@pytest.mark.timeout(60)
def test_a_wait_for_a_driver_that_says_nothing_ends_however_short_it_is(drive_with: DriveWith, tmp_path: Path) -> None:
    """A wait that began right after a line used to be endless, in about every fifty-thousandth case."""
    drive_with("for line in sys.stdin: say('acked', 'x')")
    spec = ProducerSpec("p", "java", "t", 1.0)
    with driven_clients._Driver(spec, Launch(spec, "localhost:1", 1, 0, str(tmp_path / "history"))) as driver:
        for number in range(2_000):
            driver.say(["send"])
            assert driver.hear(30) == ["acked", "x"]
            assert driver.hear(number % 50 / 1e6) is None


@pytest.mark.timeout(60)
def test_a_driver_that_is_not_heard_while_it_is_spoken_to_does_not_wait_for_ever(
    drive_with: DriveWith, tmp_path: Path
) -> None:
    """Both pipes are full: the writer has to read first."""
    drive_with("for line in sys.stdin: say('acked', line.strip())")
    spec = ProducerSpec("p", "java", "t", 1.0)
    asked = [f"{number:07d}" + "x" * 93 for number in range(20_000)]
    with driven_clients._Driver(spec, Launch(spec, "localhost:1", 1, 0, str(tmp_path / "history"))) as driver:
        driver.say(asked)
        heard = [driver.hear(30) for _ in asked]
        assert heard == [["acked", line] for line in asked]


def test_a_last_line_that_was_cut_is_none(drive_with: DriveWith, tmp_path: Path) -> None:
    drive_with("""
        sys.stdout.write("acked\\tx\\t1\\nacked\\ty\\t1")
        sys.stdout.flush()
    """)
    spec = ProducerSpec("p", "java", "t", 1.0)
    with driven_clients._Driver(spec, Launch(spec, "localhost:1", 1, 0, str(tmp_path / "history"))) as driver:
        assert driver.hear(30) == ["acked", "x", "1"]
        with pytest.raises(Failed, match="exit code 0"):
            driver.hear(30)
