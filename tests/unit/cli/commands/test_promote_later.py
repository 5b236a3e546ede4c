"""`kmigrate promote` with a time, a deadline or a release: the call writes a schedule and ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import Schedule, TopicRecord
from tests.fakes.state_log import MemoryLog
from tests.json_output import check_document
from tests.unit.workflow.promote.test_topic import LINK

T0 = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
HOUR_MS = 3_600_000
Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryLog:
    log = MemoryLog(LINK, TopicRecord("l", "t", TopicPhase.MIRRORING, 1, partitions=1))

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setenv("KMIGRATE_CONFIG", str(config))
    monkeypatch.setattr(Call, "connections", opened)
    monkeypatch.setattr(log, "now_ms", lambda: T0)
    return log


@pytest.fixture
def said(log: MemoryLog, capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["promote", "t", "--yes", "--json", *words])
        told = json.loads(capsys.readouterr().out)
        check_document("promote", told)
        return code, told

    return call


def schedule_in(log: MemoryLog) -> Schedule | None:
    record = log.state.topic("l", "t")
    assert record is not None and record.phase is TopicPhase.MIRRORING
    return record.schedule


@pytest.mark.parametrize(
    ("words", "begin", "end", "postponed", "file"),
    [
        (["--not-before", "+2h"], T0 + 2 * HOUR_MS, 0, False, ""),
        (["--not-before", "2023-11-15T00:13:20"], T0 + 2 * HOUR_MS, 0, False, ""),
        (
            ["--not-before", "2023-11-15T01:13:20+01:00", "--deadline", "+1d"],
            T0 + 2 * HOUR_MS,
            T0 + 24 * HOUR_MS,
            False,
            "",
        ),
        (["--when-ready"], 0, T0 + HOUR_MS, False, ""),
        (["--when-ready", "--not-before", "+30m"], T0 + HOUR_MS // 2, T0 + HOUR_MS * 3 // 2, False, ""),
        (["--when-ready", "--deadline", "+90s"], 0, T0 + 90_000, False, ""),
        (["--postpone"], 0, 0, True, ""),
        (["--release-file", "/tmp/go"], 0, 0, True, "/tmp/go"),
    ],
)
def test_the_flags_become_a_schedule(
    log: MemoryLog, said: Said, words: list[str], begin: int, end: int, postponed: bool, file: str
) -> None:
    code, told = said(*words, "--accept-direct-writers", "--no-seal")
    assert (code, told["applied"]) == (Exit.OK, True)
    made = schedule_in(log)
    assert made is not None
    assert (made.not_before_ms, made.deadline_ms, made.postponed, made.release_file) == (begin, end, postponed, file)
    assert "@" in made.asked_by and made.asked_ms == T0
    assert (made.terms.accept_direct, made.terms.late.seal) == (True, False)


def test_a_plan_writes_nothing(log: MemoryLog, said: Said) -> None:
    assert said("--postpone", "--plan")[1]["changes"] == ["promote t, once a person releases it"]
    assert schedule_in(log) is None


def test_a_postponed_promote_is_released_and_taken_back_by_the_same_verb(log: MemoryLog, said: Said) -> None:
    said("--postpone")
    assert said("--release")[1]["changes"] == ["release the promote of t"]
    made = schedule_in(log)
    assert made is not None and not made.postponed
    assert said("--cancel")[1]["changes"] == ["take back the promote of t"]
    assert schedule_in(log) is None


@pytest.mark.parametrize(
    ("words", "ref"),
    [
        (["--not-before", "tomorrow"], "bad-moment"),
        (["--not-before", "+2w"], "bad-moment"),
        (["--deadline", "2023-11-14T22:13:19Z"], "bad-moment"),
        (["--not-before", "+2h", "--deadline", "+1h"], "bad-moment"),
    ],
)
def test_a_time_that_is_none_is_refused(log: MemoryLog, said: Said, words: list[str], ref: str) -> None:
    code, told = said(*words)
    assert (code, told["error"]) == (Exit.USAGE, ref)
    assert schedule_in(log) is None


def test_a_comparison_now_does_not_go_with_a_promote_later(
    log: MemoryLog, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmigrate.cli.commands.promote._need_spark", lambda _: None)
    code, told = said("--postpone", "--verify")
    assert (code, told["error"]) == (Exit.USAGE, "verify-later")
