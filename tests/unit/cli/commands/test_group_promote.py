"""`group promote` waits for the copy before anything is written, whoever else acts meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base import waiting
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import GroupRecord
from kmigrate.workflow import verbs
from kmigrate.workflow.groups.uncopied import Uncopied
from kmigrate.workflow.verbs.groups import judged_promote
from kmigrate.workflow.verbs.proposal import Proposal, propose
from tests.fakes.finishing import LINK
from tests.fakes.state_log import MemoryLog

GROUP = GroupRecord("l", "g", GroupPhase.MIRRORED, 1)
BEHIND = [Uncopied("g", "t", 0, TopicPhase.MIRRORING, 9_000, 1_000)]
Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    """Return the state log of all calls: a mirrored group, and a mirror that runs."""
    log = MemoryLog(LINK, GROUP)
    log.say(MirrorPresence("m", "l", 0, True, 500))

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log, target=None, waits_for=lambda _: "")

    async def look(connections: Any, _: str, names: Sequence[str], *, waits: bool, who: str) -> Proposal:
        judged = judged_promote("l", who)
        records, found = judged.look(log.state, names)
        return propose(cast("Any", log), judged.verb, found, [(f"promote group {n}", judged.write(n)) for n in records])

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n[defaults]\nprocess_wait_s = 0.1\n', encoding="utf-8")
    monkeypatch.setenv("KMIGRATE_CONFIG", str(config))
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(verbs, "promote_groups", look)
    monkeypatch.setattr(waiting, "_LOOK_S", 0.01)
    return log


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["group", "promote", "g", "--yes", "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    return call


def phase_of(log: MemoryLog) -> GroupPhase:
    (record,) = log.state.groups("l")
    return record.phase


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_while_the_copy_is_behind_changes_nothing_and_prints_the_command_to_go_on(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(*_: Any) -> list[Uncopied]:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        return BEHIND

    monkeypatch.setattr(waiting, "uncopied", look)
    code, told = said()
    assert (code, told["error"], told["what"]) == (
        Exit.INTERRUPTED,
        "interrupted",
        "stopped waiting for the copy that the promote needs",
    )
    assert told["still_true"].startswith("nothing was changed")
    assert told["next"] == "kmigrate group promote --link l g"
    assert phase_of(log) is GroupPhase.MIRRORED


def test_a_second_operator_who_promotes_the_group_meanwhile_is_not_repeated(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    async def look(*_: Any) -> list[Uncopied]:
        looks.append(1)
        if len(looks) == 1:
            return BEHIND
        await log.append(lambda _: replace(GROUP, phase=GroupPhase.PROMOTED))
        return []

    monkeypatch.setattr(waiting, "uncopied", look)
    code, told = said()
    assert (code, told["changes"]) == (Exit.OK, [])
    assert [each["ref"] for each in told["findings"]] == ["already"]
    assert [each["phase"] for each in told["groups"]] == ["promoted"]
    assert len([record for record in log.history if isinstance(record, GroupRecord)]) == 2


def test_the_intent_is_written_once_the_copy_is_close(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No controller runs, so the intent stays."""
    left = [9_000, 500, 0]

    async def look(*_: Any) -> list[Uncopied]:
        assert phase_of(log) is GroupPhase.MIRRORED
        return [replace(BEHIND[0], copied_to=9_000 - left.pop(0))]

    monkeypatch.setattr(waiting, "uncopied", look)
    code, told = said()
    assert (code, told["error"]) == (Exit.TIMED_OUT, "no-controller-running")
    assert phase_of(log) is GroupPhase.PROMOTING
    assert left == [0]


def test_without_waiting_nobody_looks_at_the_copy(log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(*_: Any) -> list[Uncopied]:
        raise AssertionError("nobody waits")

    monkeypatch.setattr(waiting, "uncopied", look)
    assert said("--no-wait")[0] == Exit.OK
    assert phase_of(log) is GroupPhase.PROMOTING
