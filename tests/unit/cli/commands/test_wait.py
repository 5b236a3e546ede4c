"""`kmigrate wait`: what it waits for, what it says when time is up, and what it says when a person stops the wait."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Waiting
from kmigrate.cli.commands import wait
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import ControllerPresence
from kmigrate.model.records import TopicRecord
from kmigrate.workflow.playbook import waiting
from kmigrate.workflow.status.snapshot import PartitionStatus, Snapshot, TopicStatus
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

TOPIC = TopicRecord("l", "orders", TopicPhase.ALIGNING, 1)
Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """Return the state log of every call; snapshots show the log's topics."""
    log = MemoryLog(LINK, TOPIC)

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    async def look(*_: Any, **__: Any) -> Snapshot:
        return _shot(log)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setenv("KMIGRATE_CONFIG", str(config))
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(waiting, "snapshot", look)
    return log


def _shot(log: MemoryLog, lag: int = 0) -> Snapshot:
    partition = PartitionStatus(0, 0, 0, 0, 0, lag, "", -1.0)
    topics = tuple(TopicStatus("l", r.topic, r.phase, 0, "", "", (partition,)) for r in log.state.topics())
    return Snapshot(0, 0, (), topics, (), (), frozenset(), (), tuple(log.alive(ControllerPresence)))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["wait", *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_a_condition_that_holds_ends_the_wait_at_once(log: MemoryLog, said: Said) -> None:
    log.say(ControllerPresence("c", 0, True, 500))
    code, told = said("controller running")
    assert (code, told["condition"]) == (Exit.OK, "controller running")
    assert 0 <= told["seconds"] < 2


def test_the_wait_ends_when_the_condition_comes_true(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def look(*_: Any, **__: Any) -> Snapshot:
        looks.append(1)
        return _shot(log, lag=0 if len(looks) > 2 else 500)

    monkeypatch.setattr(waiting, "snapshot", look)
    assert said("lag <= 10", "orders")[0] == Exit.OK
    assert len(looks) == 3


def test_a_terminal_shows_the_number_that_is_waited_for_and_a_pipe_shows_nothing(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lags, texts = [700, 500, 0], []

    async def look(*_: Any, **__: Any) -> Snapshot:
        return _shot(log, lag=lags.pop(0))

    monkeypatch.setattr(waiting, "snapshot", look)
    monkeypatch.setattr(Waiting, "say", lambda _, text: texts.append(text))
    assert main(["wait", "lag <= 10", "orders"]) == Exit.OK
    begins = [text.partition(" wanted)")[0] for text in texts if "lags" in text]
    assert begins == [f"waiting for lag <= 10: topic orders lags {lag} records (at most 10" for lag in (700, 500)]
    said = capsys.readouterr()
    assert said.out.startswith("✓ lag <= 10, after ")
    assert said.err == ""


def test_a_wait_that_is_over_names_what_it_waited_for_and_the_number(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*_: Any, **__: Any) -> Snapshot:
        return _shot(log, lag=52_310)

    monkeypatch.setattr(waiting, "snapshot", look)
    code, told = said("lag <= 1000", "orders", "--timeout", "0.1")
    assert (code, told["error"], told["exit_code"]) == (Exit.TIMED_OUT, "wait-timed-out", 5)
    assert told["what"] == "waited 0.1 s for lag <= 1000: topic orders lags 52,310 records (at most 1,000 wanted)"
    assert told["still_true"].startswith("the wait changed nothing")
    assert "kmigrate status" in told["next"]


def test_a_misspelt_name_is_corrected(log: MemoryLog, said: Said) -> None:
    code, told = said("topics mirroring", "ordrs", "--timeout", "0")
    assert code == Exit.TIMED_OUT
    assert told["what"].endswith("topic ordrs is not mirrored: did you mean 'orders'?")


def test_a_misspelt_link_is_corrected_at_once(log: MemoryLog, said: Said) -> None:
    log._put("link/blue", replace(LINK, name="blue", uuid="b"))
    code, told = said("topics mirroring", "--link", "bleu")
    assert (code, told["error"]) == (Exit.REFUSED, "unknown-link")
    assert "did you mean 'blue'?" in told["what"]


def test_a_link_that_is_not_created_yet_is_waited_for(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait, "_LOOK_S", 0.01)
    opened, attempts = Call.connections, list[str]()

    @asynccontextmanager
    async def opened_later(call: Call) -> AsyncIterator[Any]:
        attempts.append("")
        if len(attempts) < 3:
            raise Refused("no-state-log", "target t has no state log yet")
        if len(attempts) == 5:
            log._put("link/later", replace(LINK, name="later", uuid="b"))
            log.say(ControllerPresence("c", 0, True, 500))
        async with opened(call) as connections:
            yield connections

    monkeypatch.setattr(Call, "connections", opened_later)
    code, told = said("controller running", "--link", "later")
    assert (code, told["condition"], len(attempts)) == (Exit.OK, "controller running", 5)


@pytest.mark.usefixtures("log")
def test_a_wait_for_a_link_that_nobody_creates_ends_in_time(said: Said) -> None:
    code, told = said("topics mirroring", "--link", "later", "--timeout", "0.1")
    assert (code, told["error"]) == (Exit.TIMED_OUT, "wait-timed-out")
    assert told["what"] == "waited 0.1 s for topics mirroring: there is no link later yet"
    assert told["next"].startswith("kmigrate link create")


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_prints_the_command_to_go_on(log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(*_: Any, **__: Any) -> Snapshot:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        return _shot(log)

    monkeypatch.setattr(waiting, "snapshot", look)
    code, told = said("topics mirroring", "orders", "--link", "l")
    assert (code, told["error"], told["exit_code"]) == (Exit.INTERRUPTED, "interrupted", 130)
    assert told["what"] == "stopped waiting for topics mirroring"
    assert told["next"] == "kmigrate wait --link l 'topics mirroring' orders"


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (("topics", "mirroring", "orders"), "kmigrate wait 'topics mirroring' orders"),
        (("mirror", "running"), "kmigrate wait 'mirror running'"),
        (("mirror running", "orders"), "kmigrate wait 'mirror running'"),
        (("everything", "done"), "expected: 'lag <= N'"),
        (("lag < 5",), "expected: 'lag <= N'"),
    ],
)
def test_a_sentence_that_is_no_condition_is_refused_with_the_sentence_to_write(
    words: tuple[str, ...], next_step: str, said: Said
) -> None:
    code, told = said(*words)
    assert (code, told["error"]) == (Exit.USAGE, "bad-condition")
    assert told["next"].startswith(next_step)
    assert told["still_true"] == "nothing was contacted or changed"


def test_seconds_pass_without_a_cluster(said: Said) -> None:
    assert said("seconds 0.01") == (Exit.OK, {"condition": "seconds 0.01", "seconds": 0.01})


@pytest.mark.parametrize(
    ("sentence", "meant"),
    [("topics mirorring", "topics mirroring"), ("lag < 5", "lag <= 5"), ("controler running", "controller running")],
)
def test_a_misspelt_condition_is_corrected(sentence: str, meant: str, said: Said) -> None:
    code, told = said(sentence)
    assert code == Exit.USAGE
    assert told["what"] == f"{sentence!r} is no condition: did you mean {meant!r}?"
