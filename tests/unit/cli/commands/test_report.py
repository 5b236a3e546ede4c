"""`kmigrate report`: list, show and export read the state log alone, and every document is as the schema says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.model.records import Action, Asked
from kmigrate.model.reports import Outcome, ReportedKind
from tests.fakes.state_log import MemoryLog
from tests.json_output import check_document
from tests.unit.report.test_promote_page import HOSTILE, REPORT
from tests.unit.workflow.promote.test_topic import LINK

ORDERS = replace(REPORT, link="l")
EARLIER = replace(
    ORDERS,
    asked=Asked(Action.PROMOTE, 5, "bob@desk"),
    outcome=Outcome.GIVEN_UP,
    reason="not-ready: it lags",
    fenced_ms=0,
)
GROUP = replace(ORDERS, what=ReportedKind.GROUP, positions={"t": {0: 5}}, partitions={}, routers=(), fenced_ms=0)
Said = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Said:
    log = MemoryLog(LINK, ORDERS, EARLIER, GROUP)

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    config = tmp_path / "kmigrate.toml"
    config.write_text('[clusters.t]\n"bootstrap.servers" = "h:2"\n', encoding="utf-8")
    monkeypatch.setenv("KMIGRATE_CONFIG", str(config))
    monkeypatch.setattr(Call, "connections", opened)

    def call(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["report", *words, "--json"])
        told = json.loads(capsys.readouterr().out)
        check_document(f"report {words[0]}", told)
        return code, told

    return call


def test_reports_are_listed_the_newest_first(said: Said) -> None:
    code, told = said("list")
    assert code == Exit.OK
    assert [(each["what"], each["asked_by"], each["outcome"]) for each in told["reports"]] == [
        ("group", "ann@desk", "done"),
        ("topic", "ann@desk", "done"),
        ("topic", "bob@desk", "given-up"),
    ]
    assert [(each["fence_ms"], each["pause_max_ms"]) for each in told["reports"][1:]] == [(50, 21.5), (-1, 21.5)]
    assert len(said("list", "orders")[1]["reports"]) == 3


@pytest.mark.parametrize("words", [["list", "oders"], ["show", "oders"], ["show", "orders", "--asked", "7"]])
def test_a_report_that_is_not_there_is_named_with_the_nearest_name(said: Said, words: list[str]) -> None:
    code, told = said(*words)
    assert (code, told["error"]) == (Exit.REFUSED, "no-report")
    assert told["next"].startswith("kmigrate report list --link l")
    if "oders" in words:
        assert "orders" in told["what"]


def test_the_newest_report_is_shown_and_any_other_by_its_request(said: Said) -> None:
    code, told = said("show", "orders")
    assert (code, told["asked"]["by"], told["fence_ms"]) == (Exit.OK, "ann@desk", 50)
    assert told["partitions"]["0"] == {"barrier": 1000, "leader_epoch": 3, "pause_ms": 21.5, "verified_to": 900}
    assert told["now"]["next_step"].startswith("link l does not mirror topic orders any more")
    assert said("show", "orders", "--asked", "5")[1]["reason"] == "not-ready: it lags"
    assert said("show", "orders", "--group")[1]["positions"] == {"t": {"0": 5}}


@pytest.mark.parametrize("words", [["list"], ["show", "orders"], ["show", "orders", "--asked", "5"]])
@pytest.mark.usefixtures("said")
def test_a_person_reads_the_same_facts(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *words]) == Exit.OK
    shown = capsys.readouterr().out
    assert "orders" in shown
    for fact in ("bob@desk", "not-ready: it lags") if "5" in words else ("ann@desk", "21.5 ms"):
        assert fact in shown


def test_a_report_is_exported_as_a_page_and_as_json(said: Said, tmp_path: Path) -> None:
    page, document = tmp_path / "orders.html", tmp_path / "orders.json"
    assert said("export", "orders", "--out", str(page))[1]["out"] == str(page)
    assert "✓ topic orders is promoted" in "".join(ET.parse(page).getroot().itertext())
    assert said("export", "orders", "--out", str(document))[0] == Exit.OK
    written = json.loads(document.read_text(encoding="utf-8"))
    assert written == said("show", "orders")[1]


@pytest.mark.parametrize(
    ("out", "error", "code"),
    [("orders.pdf", "report-format", Exit.USAGE), ("no/such/folder.html", "report-not-exported", Exit.FAILED)],
)
def test_a_place_that_takes_no_report_is_refused(said: Said, tmp_path: Path, out: str, error: str, code: Exit) -> None:
    ended, told = said("export", "orders", "--out", str(tmp_path / out))
    assert (ended, told["error"]) == (code, error)
    assert list(tmp_path.glob("*.html")) == []


@pytest.mark.usefixtures("said")
def test_hostile_names_reach_the_terminal_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = replace(ORDERS, name=HOSTILE, reason=HOSTILE, asked=replace(ORDERS.asked, by="\x1b[31m"))
    log = MemoryLog(LINK, hostile)

    @asynccontextmanager
    async def opened(_: Call) -> AsyncIterator[Any]:
        yield SimpleNamespace(log=log)

    monkeypatch.setattr(Call, "connections", opened)
    for words in (["list"], ["show", HOSTILE]):
        assert main(["report", *words]) == Exit.OK
        shown = capsys.readouterr().out
        assert "\x1b[31m" not in shown and "\x00" not in shown
