"""`kmigrate rollback --target-lost`: source, link and target of the call, the document, the file, and the text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from kmigrate.cli.app import main
from kmigrate.cli.commands import target_lost
from kmigrate.cli.views.target_lost import target_lost_view
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.transactions import OpenTransaction
from kmigrate.errors import Refused
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NoteState, WayBackNote
from kmigrate.workflow.base.plan import warn
from kmigrate.workflow.verbs.target_lost import GroupAtSource, PartitionAtSource, SourceFindings, UnitAtSource
from tests.json_output import check_output

NOTES = {("t", 0): WayBackNote(NoteState.OPEN, 100, "east")}
WHOLE = PartitionAtSource("t", 0, NoteState.OPEN, "", 105, 105, 104, 9_000, 0, 9_000)
LACKS = PartitionAtSource(
    "t",
    1,
    NoteState.ENDED,
    "a foreign record",
    90,
    92,
    -1,
    0,
    -1,
    0,
    "offset 90: producer 7",
    OpenTransaction(88, 7, 1),
)
GROUP = GroupAtSource("billing", 1_690_000_000_000, {"t": {0: 60}}, held=True)
UNIT = UnitAtSource(("bookings", "sales"), ("billing",), ("shop", "till"), 3, 8_000)
Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return what the source tells, and which clusters were asked."""
    made = SimpleNamespace(groups=["kmigrate-way-back-blue", "billing"], rows=(WHOLE,), asked=[], lives=False)

    async def reach(client: Any) -> None:
        made.asked.append(client.settings.name)

    async def read_notes(_: Any, link: str, topics: Any) -> Any:
        made.asked.append(f"notes of {link}")
        return NOTES

    async def refuse_living(target: ClusterSettings) -> None:
        made.asked.append(target.name)
        if made.lives:
            raise Refused("target-not-lost", "a broker answers")

    async def routers(*_: Any, stopped: bool) -> Any:
        made.stopped = stopped
        return []

    async def examine(_: Any, link: str, *__: Any) -> SourceFindings:
        return SourceFindings(link, made.rows, (GROUP,), 1)

    async def release(_: Any, report: SourceFindings) -> SourceFindings:
        return replace(report, groups=(replace(GROUP, held=False),))

    async def groups(_: Any) -> dict[str, str]:
        return dict.fromkeys(made.groups, "empty")

    made.config = tmp_path / "kmigrate.toml"
    made.config.write_text(
        '[clusters.west]\n"bootstrap.servers" = "w:1"\n[clusters.east]\n"bootstrap.servers" = "e:2"\n'
        '[defaults]\ntarget = "east"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("KMIGRATE_CONFIG", str(made.config))
    monkeypatch.setattr(Admin, "groups", groups)
    for name, fake in (
        ("reach", reach),
        ("read_notes", read_notes),
        ("refuse_living_target", refuse_living),
        ("router_findings", routers),
        ("examine_source", examine),
        ("release_groups", release),
    ):
        monkeypatch.setattr(target_lost, name, fake)
    return made


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """Return a function that runs the command and returns exit code and document."""

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["rollback", "--target-lost", *words, "--json"])
        text = capsys.readouterr().out
        if code in (0, 4):
            check_output(["rollback"], text)
        return code, json.loads(text)

    return run


def test_a_complete_source_is_reported_and_written_to_a_file(world: Any, said: Said, tmp_path: Path) -> None:
    place = tmp_path / "lost.json"
    code, told = said("--out", str(place))
    assert code == 0
    assert world.asked == ["west", "notes of blue", "east"]
    assert (told["link"], told["source"], told["targets"]) == ("blue", "west", ["east"])
    assert (told["complete"], told["clients_bootstrap"]) == (True, "w:1")
    assert told["partitions"][0]["complete_to"] == 105
    group = {"group": "billing", "promoted_ms": 1_690_000_000_000, "offsets": {"t": {"0": 60}}, "held": True}
    assert told["groups"] == [group]
    assert json.loads(place.read_text(encoding="utf-8")) == told


def test_a_person_says_that_all_routers_are_stopped(world: Any, said: Said) -> None:
    assert said()[0] == 0
    assert not world.stopped
    assert said("--routers-stopped")[0] == 0
    assert world.stopped


def test_groups_are_released_where_a_person_asks_for_it(world: Any, said: Said) -> None:
    assert [each["held"] for each in said("--release-groups")[1]["groups"]] == [False]


def test_a_source_that_lacks_records_has_the_exit_code_of_a_difference(world: Any, said: Said) -> None:
    world.rows = (WHOLE, LACKS)
    code, told = said("t")
    assert (code, told["complete"]) == (4, False)
    assert [each["complete"] for each in told["partitions"]] == [True, False]


def test_a_target_that_answers_is_refused(world: Any, said: Said) -> None:
    world.lives = True
    code, told = said()
    assert (code, told["error"]) == (3, "target-not-lost")


def test_the_notes_name_the_target_where_nothing_else_does(world: Any, said: Said) -> None:
    text = world.config.read_text(encoding="utf-8").replace('[defaults]\ntarget = "east"\n', "")
    world.config.write_text(text, encoding="utf-8")
    code, told = said()
    assert (code, told["error"]) == (2, "no-source")
    code, told = said("--source", "west")
    assert (code, told["targets"]) == (0, ["east"])


@pytest.mark.parametrize("groups", [[], ["kmigrate-way-back-blue", "kmigrate-way-back-red"]])
def test_several_links_are_told_apart_by_a_flag(world: Any, said: Said, groups: list[str]) -> None:
    world.groups = groups
    code, told = said()
    assert (code, told["error"]) == (2, "which-link")
    assert said("--link", "red")[0] == 0


def test_a_file_that_cannot_be_written_is_an_error(world: Any, said: Said, tmp_path: Path) -> None:
    code, told = said("--out", str(tmp_path / "missing" / "lost.json"))
    assert (code, told["error"]) == (1, "report-not-exported")


def test_the_text_says_what_is_missing_and_what_to_do() -> None:
    routers = warn("router-address-taken", "something at h:1 takes connections", "make sure that it is stopped")
    hangs = replace(WHOLE, partition=2, waits_for=OpenTransaction(70, 8, 1, hanging=True))
    named = replace(WHOLE, partition=3, waits_for=OpenTransaction(71, 9, 1, "till"))
    unknown = replace(UNIT, groups=(), whole_ms=0)
    report = SourceFindings("blue", (WHOLE, LACKS, hangs, named), (GROUP,), 1, (routers,), (UNIT, unknown))
    console = Console(width=300)
    with console.capture() as shown:
        console.print(target_lost_view(report, ClusterSettings("west", (("w", 1),))))
    text = shown.get()
    for part in (
        "1970-01-01 00:00:09 UTC",
        "unknown",
        "a foreign record; others have written to the source: offset 90: producer 7; waits at offset 88",
        "group billing: its commits since 2023-07-22",
        "are lost with the target; at the source it stands at t-0: 60",
        "1 more promoted groups",
        "something at h:1 takes connections: make sure that it is stopped",
        "group billing: a placeholder of kmigrate keeps members",
        "transactions of shop, till and 3 more on bookings, sales: all that had ended by 1970-01-01 00:00:08 UTC",
        "nobody knows which are whole at the source; a later one may be there in part",
        "group billing: its offsets were committed in these transactions",
        "next: the transaction at t-1 ends by its timeout; if not: kafka-transactions.sh",
        "next: kafka-transactions.sh --bootstrap-server w:1 abort --topic t --partition 2 --start-offset 70",
        "next: the transaction at t-3 ends by its timeout, or with a producer that starts with transactional id till",
        "next: before such an application starts",
        "next: let members into the named groups: repeat with --release-groups",
        "next: start all clients with the addresses of source west: w:1",
    ):
        assert part in text, part
