"""`kmigrate rehearse`: exit codes, the plan, and `--clean`; the steps run on brokers in tests/integration."""

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
from kmigrate.cli.commands import rehearse
from kmigrate.model.grants import REHEARSAL_GRANTS
from kmigrate.model.presences import RehearsalPresence
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.model.rehearsals import link_of
from kmigrate.model.reports import Pause
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.base.plan import Finding, Plan, refuse, warn
from kmigrate.workflow.rehearsal.outcome import MovedGroup, Rehearsed, RehearsedTopic, Switch
from kmigrate.workflow.rehearsal.plan import RehearsalPlan
from tests.fakes.state_log import MemoryLog
from tests.json_output import check_output

LINK = LinkRecord("blue", "u", ClusterRef("west", "h:1"), ClusterRef("east", "h:2"), 1)
DEAD = LinkRecord(link_of("ab12"), "v", LINK.source, LINK.target, 1)
BUSY = LinkRecord(link_of("cd34"), "w", LINK.source, LINK.target, 1)
DONE = Switch(Pause(2, 4.0, 6.5, 6.5), 30)
Said = Callable[..., tuple[int, dict[str, Any]]]


def rehearsed(*differing: int, skipped: int = 0) -> Rehearsed:
    topic = RehearsedTopic("orders", "shadow", 2, 9, 0, DONE, None, "it is written in transactions", 9, 9, differing)
    return Rehearsed("rehearsal-ee", (topic,), MovedGroup("g", 9, 0, skipped))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what the rehearsal finds and ends with, and the links that were removed."""
    made = SimpleNamespace(log=MemoryLog(LINK), real=[], outcome=rehearsed(), cleaned=[])

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield made

    async def look(*_: Any) -> RehearsalPlan:
        return RehearsalPlan(Plan.of("rehearse", ["make shadows"]), LINK, "rehearsal-ee", (), (), tuple(made.real))

    async def carried_out(*_: Any) -> Rehearsed:
        return made.outcome  # type: ignore[no-any-return]

    async def clean(_: Any, link: LinkRecord) -> None:
        made.cleaned.append(link.name)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setenv("KMIGRATE_CONFIG", str(config))
    monkeypatch.setattr(Call, "connections", opened)
    for name, fake in (("plan_rehearsal", look), ("carry_out", carried_out), ("clean", clean)):
        monkeypatch.setattr(rehearse, name, fake)
    return made


@pytest.fixture
def said(world: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["rehearse", *words, "--json"])
        out = capsys.readouterr().out
        check_output(["rehearse", *words, "--json"], out)
        return code, json.loads(out)

    return call


@pytest.mark.parametrize(
    ("outcome", "real", "code"),
    [
        (rehearsed(), (), 0),
        (rehearsed(), (warn("fewer", "fewer replicas"),), 0),
        (rehearsed(), (refuse("direct-writers", "p writes past the routers"),), 3),
        (rehearsed(1), (refuse("direct-writers", "p writes past the routers"),), 4),
        (rehearsed(skipped=1), (), 4),
    ],
)
def test_the_exit_code_tells_whether_the_real_promote_may_go_on(
    world: SimpleNamespace, said: Said, outcome: Rehearsed, real: tuple[Finding, ...], code: int
) -> None:
    world.outcome, world.real = outcome, real
    exit_code, told = said("orders", "--yes")
    assert exit_code == code
    assert told["rehearsal"]["equal"] is outcome.equal
    assert [each["ref"] for each in told["real"]] == [each.ref for each in real]


def test_a_plan_makes_nothing_and_removes_nothing(world: SimpleNamespace, said: Said) -> None:
    world.log = MemoryLog(LINK, DEAD)
    told = said("orders", "--plan")[1]
    assert (told["applied"], told["changes"], told["rehearsal"]) == (False, ["make shadows"], None)
    assert said("--clean", "--plan")[1]["changes"] == ["remove rehearsal rehearsal-ab12"]
    assert world.cleaned == []


def test_what_dead_rehearsals_have_left_is_removed_and_a_running_rehearsal_is_named(
    world: SimpleNamespace, said: Said
) -> None:
    world.log = MemoryLog(LINK, DEAD, BUSY)
    world.log.say(RehearsalPresence("i", BUSY.name, 1, 1000))
    code, told = said("--clean")
    assert (code, told["applied"], [each["ref"] for each in told["findings"]]) == (0, True, ["rehearsal-runs"])
    assert world.cleaned == [DEAD.name]
    said("orders", "--yes")
    assert world.cleaned == [DEAD.name, DEAD.name]  # a fake removal leaves the link


def test_a_person_reads_pauses_content_and_why_there_was_no_rollback(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    world.outcome = rehearsed(1)
    assert main(["rehearse", "orders", "--yes"]) == 4
    out = capsys.readouterr().out
    assert "4.0/6.5/6.5 ms" in out
    assert "differs in partition 1" in out
    assert "no rollback: it is written in transactions" in out
    assert "9 read, 0 read again, 0 skipped" in out


def test_the_rights_of_a_rehearsal_are_printed_with_commands_for_both_clusters(
    said: Said, world: SimpleNamespace
) -> None:
    async def source(_: LinkRecord) -> tuple[SimpleNamespace, None]:
        return SimpleNamespace(settings=ClusterSettings("west", (("h", 1),))), None

    world.source, world.target = source, SimpleNamespace(settings=ClusterSettings("east", (("h", 2),)))
    code, told = said("--print-acls")
    assert code == 0
    shown = [(each["side"], each["resource"], each["operation"], *each["names"]) for each in told["rights"]]
    assert shown == [(g.side, g.resource, g.operation, "kmigrate-rehearsal-") for g in REHEARSAL_GRANTS]
    commands = [(each["cluster"], each["command"]) for each in told["commands"]]
    assert {cluster for cluster, _ in commands} == {"west", "east"}
    assert all("--resource-pattern-type prefixed" in command for _, command in commands)
    assert world.cleaned == []
