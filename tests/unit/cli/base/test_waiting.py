"""A call that waits for other processes: a user who stops waiting is told that the work goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, TopicRecord
from kmigrate.verify import compare as comparison
from kmigrate.workflow import verbs
from kmigrate.workflow.verbs.proposal import propose
from tests.fakes.state_log import MemoryLog

LINK = LinkRecord("l", "u", ClusterRef("s", "h:1"), ClusterRef("t", "h:2", "target-id"), 1)
PENDING = TopicRecord("l", "t", TopicPhase.PROMOTE_PENDING, 1)
PROMOTING = GroupRecord("l", "g", GroupPhase.PROMOTING, 1)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    ("words", "what", "goes_on", "next_step"),
    [
        (
            ["promote", "t"],
            "stopped waiting for the promote of t",
            "it goes on: the controller carries it out",
            (
                "kmigrate wait 'topics promoted' --link l t; "
                "to take it back while it waits: kmigrate promote --cancel --link l t"
            ),
        ),
        (
            ["group", "promote", "g"],
            "stopped waiting for the promote of group g",
            "it goes on: the controller carries it out",
            "kmigrate wait 'groups promoted' --link l g",
        ),
        (
            ["topic", "mirror", "early"],
            "stopped waiting for early to be mirroring",
            "the mirror goes on with it",
            "kmigrate wait 'topics mirroring' --link l early",
        ),
    ],
)
def test_ctrl_c_ends_a_wait_and_says_that_the_work_goes_on_and_how_to_wait_again(
    words: list[str],
    what: str,
    goes_on: str,
    next_step: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def source(_: LinkRecord) -> tuple[None, None]:
        return None, None

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        asyncio.get_running_loop().call_later(0.02, signal.raise_signal, signal.SIGINT)
        log = MemoryLog(LINK, PENDING, PROMOTING, replace(PENDING, topic="early", phase=TopicPhase.ALIGNING))
        yield SimpleNamespace(log=log, source=source, waits_for=lambda _: "")

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    yes = [] if "mirror" in words else ["--yes"]
    code = main([*words, "--config", str(config), "--json", "--timeout", "5", *yes])
    told = json.loads(capsys.readouterr().out)
    assert (code, told["error"], told["exit_code"]) == (Exit.INTERRUPTED, "interrupted", 130)
    assert told["what"] == what
    assert told["still_true"].startswith(goes_on)
    assert told["next"] == next_step


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("begun", [True, False])
def test_ctrl_c_ends_a_comparison_before_a_promote_and_nothing_is_promoted(
    begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends both parts of the comparison: the wait for the target, and Spark.

    Spark compares in a thread, and Python waits at exit for that thread, however long the comparison takes. Before
    Spark starts, the call waits for the target, and Spark knows nothing of that wait.
    """
    log, told = MemoryLog(LINK, replace(PENDING, phase=TopicPhase.MIRRORING)), threading.Event()

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    async def looked(*_: Any, **__: Any) -> verbs.Proposal:
        return propose(cast("Any", log), "promote", (), (), ["promote t"])

    def compare(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert told.wait(20)

    async def find_job(*_: Any) -> None:
        if not begun:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.sleep(20)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(verbs, "promote_topics", looked)
    monkeypatch.setattr(comparison, "find_job", find_job)
    monkeypatch.setattr(comparison, "_report_of", compare)
    monkeypatch.setattr(comparison, "_end_spark_jobs", told.set)
    code = main(["promote", "t", "--verify", "--config", str(config), "--json", "--yes"])
    said = json.loads(capsys.readouterr().out)
    assert (code, said["error"], said["still_true"]) == (Exit.INTERRUPTED, "interrupted", "nothing was promoted")
    assert said["next"] == "kmigrate promote --verify --link l t"


def test_a_promote_that_waits_is_taken_back_without_a_question_and_said_again_it_is_so_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MemoryLog(LINK, PENDING)

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setattr(Call, "connections", opened)
    tellings = []
    for _ in range(2):
        assert main(["promote", "--cancel", "t", "--config", str(config), "--json"]) == Exit.OK
        told = json.loads(capsys.readouterr().out)
        tellings.append((told["verb"], told["applied"], told["changes"], [each["ref"] for each in told["findings"]]))
    assert tellings == [
        ("promote", True, ["take back the promote of t"], []),
        ("promote", True, [], ["already"]),
    ]
    record = log.state.topic("l", "t")
    assert record is not None
    assert record.phase is TopicPhase.MIRRORING


def test_whoever_has_no_name_on_this_host_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a user id that its image has no name for."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 1000700000")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert Call().who.startswith(f"uid {os.getuid()}@")
