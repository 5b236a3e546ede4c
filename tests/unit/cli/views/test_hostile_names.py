"""No view takes a text from outside as markup: names of groups and clients, and brokers' messages, may be anything.

Each view is filled with a hostile name in every text. The values are made from the types that the view takes.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import io
import json
import logging
import re
import types
import typing
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from kmigrate.cli.base import output
from kmigrate.cli.base.output import Answer, Output
from kmigrate.cli.reference.source import parse_source
from kmigrate.cli.views import bulk, group_detail, migration, plans, routers, snapshots, tables
from kmigrate.errors import Refused
from kmigrate.mirror.bulk.ranges import CopyRange
from kmigrate.model.presences import ConnectedClient, RouterPresence
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.model.words import advised, one_line
from kmigrate.observe.registry import Kind, Metric, Registry, exposition
from kmigrate.parity.report import ParityReport
from kmigrate.report.check import Check
from kmigrate.report.migration import MigrationReport
from kmigrate.report.parity_junit import parity_junit
from kmigrate.report.parity_page import parity_page
from kmigrate.workflow.base.bootstraps import Bootstrap, Leads
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.groups.audit import GroupAudit
from kmigrate.workflow.status.group_detail import GroupDetail
from kmigrate.workflow.status.snapshot import GroupStatus, Snapshot, TopicStatus
from tests.prometheus_text import parse

NAMES = [
    "team[/prod]",
    "[bold]x[/bold]",
    "[/]",
    "[link=http://evil]y[/link]",
    ":smile:",
    r"orders\.[a-z]+",
    "a\nb",
    "a\r\n● router ok",
    "a\tb",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp",
    "a\u2028b\u200bc",
    "\ud800",
    "<script>alert(1)</script>",
    "\"'&{}%s%d",
    "\\",
]
IDS = [ascii(name) for name in NAMES]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def filled(hint: Any, name: str) -> Any:
    """Return a value of a type, with the name in each text."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return filled(next(each for each in inner if each is not type(None)), name)
    if origin in (tuple, list, Sequence) or (isinstance(origin, type) and issubclass(origin, Sequence)):
        made = [filled(each, name) for each in inner if each is not Ellipsis]
        return made if origin is list else tuple(made)
    if origin in (frozenset, set):
        return frozenset({filled(inner[0], name)})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {filled(inner[0], name): filled(inner[1], name)}
    if origin is typing.Literal:
        return inner[0]
    if hint is Any:
        return 1
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        return kind(**{f.name: filled(_hints(kind)[f.name], name) for f in dataclasses.fields(kind)})
    if isinstance(hint, type) and issubclass(hint, tuple):  # a named tuple
        return hint(*(filled(each, name) for each in _hints(hint).values()))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    return {str: name, int: 1, float: 1.0, bool: True, bytes: b"1"}[hint]


def _moved(name: str) -> MigrationReport:
    row = {"phase": name, "offsets": name, "partitions": 1, "target_offsets": 1}
    made: MigrationReport = filled(MigrationReport, name)
    return dataclasses.replace(made, moved={name: row}, examples={name: (name,)}, group_gap_ms={name: 1.0})


VIEWS: dict[str, Callable[[str], Any]] = {
    "snapshot": lambda name: snapshots.snapshot_view(filled(Snapshot, name)),
    "topic": lambda name: snapshots.topic_detail(filled(TopicStatus, name), 1),
    "groups": lambda name: snapshots.group_rows((filled(GroupStatus, name),), 1),
    "group": lambda name: group_detail.group_detail_view(filled(GroupDetail, name)),
    "limits": lambda name: routers.limits_line(filled(RouterPresence, name)),
    "clients": lambda name: routers.clients_table([filled(ConnectedClient, name)]),
    "ending": lambda name: routers.ending(
        [dataclasses.replace(filled(Bootstrap, name), leads=Leads.ROUTER)], gone=True, may_stop=False
    ),
    "links": lambda name: tables.links_table([filled(LinkRecord, name)]),
    "topics": lambda name: tables.topics_table([filled(TopicRecord, name)]),
    "group records": lambda name: tables.groups_table([filled(GroupRecord, name)]),
    "audits": lambda name: tables.audits_view([filled(GroupAudit, name)]),
    "parity": lambda name: tables.parity_view(filled(ParityReport, name)),
    "facts": lambda name: tables.facts([(name, name)]),
    "table": lambda name: tables.table(name, title=name),
    "plan": lambda name: plans.plan_view(filled(Plan, name)),
    "findings": lambda name: plans.findings_view([Finding("warn", name, name, name)]),
    "migration": lambda name: migration.migration_view(_moved(name)),
    "ranges": lambda name: bulk.ranges_view([filled(CopyRange, name)]),
}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    act: Callable[[Output], None], monkeypatch: pytest.MonkeyPatch, *, terminal: bool, json_: bool = False
) -> str:
    out = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    made = Output(json=json_)
    for console in (made.out, made.err):
        console.width = 4000
    act(made)
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # rich's own colours


def acting(text: str) -> set[str]:
    return {each for each in text if each != "\n" and unicodedata.category(each) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_a_name_as_it_is_in_as_many_lines_as_any_other(
    view: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shown(lambda out: out.answer(Answer({}, VIEWS[view]("harmless"))), monkeypatch, terminal=terminal)
    assert "harmless" in plain
    for name in NAMES:
        made = Answer({}, VIEWS[view](name))
        told = shown(partial(Output.answer, answer=made), monkeypatch, terminal=terminal)
        assert not acting(told), ascii(name)
        assert one_line(name) in told, ascii(name)
        assert told.count("\n") == plain.count("\n"), ascii(name)


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_errors_notes_and_lines_of_engines_show_a_name_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(out: Output) -> None:
        out.error(Refused(name, f"what {name}", still_true=f"still {name}", next_step=f"next {name}"))
        out.note(f"note {name}")
        out.line({"name": name}, f"line {name}")
        out.unexpected(ValueError(name))
        with out.waiting(name) as waiting:
            waiting.say(name)

    told = shown(act, monkeypatch, terminal=False)
    assert not acting(told)
    assert told.count(one_line(name)) >= 6
    assert told.count("\n") == 8
    shown(act, monkeypatch, terminal=True)


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_json_says_the_very_name_and_a_terminal_shows_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = shown(lambda out: out.answer(Answer({name: [name]}, "")), monkeypatch, terminal=False, json_=True)
    assert json.loads(told) == {name: [name]}
    assert not acting(told)


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_reports_for_browsers_and_ci_show_a_name_as_it_is(name: str) -> None:
    check, report = Check(name, name, name, "2026-01-01T00:00:00Z"), filled(ParityReport, name)
    page = "".join(parity_page(check, report))
    assert "<script>alert" not in page
    assert not acting(page)
    suites = ET.fromstring(parity_junit(check, report))
    assert one_line(name) in suites.attrib["name"]


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_labels_of_metrics_say_the_very_name(name: str) -> None:
    registry = Registry()
    registry.add(Metric("m", Kind.GAUGE, "about", ("group",)), lambda: [((name,), 1)])
    text = "".join(exposition(registry))
    text.encode()
    assert parse(text).value("m", group=name.replace("\ud800", "\ufffd")) == 1


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_a_log_line_is_one_line_that_nothing_acts_on(name: str) -> None:
    record = logging.makeLogRecord({"msg": "client %s", "args": (name,)})
    told = output.log_line(record.getMessage())
    assert "\n" not in told
    assert not acting(told)
    assert one_line(name) in told


def test_a_call_that_is_advised_for_a_name_of_several_lines_is_one_line_that_a_shell_takes() -> None:
    told = advised("group forget", "l", "a\nb'c\\d")
    assert told == r"kmigrate group forget --link l $'a\nb\'c\\d'"
    assert advised("group forget", "l", "team[/prod]") == "kmigrate group forget --link l 'team[/prod]'"


def test_nothing_in_the_cli_but_one_module_makes_texts_and_tables_of_rich() -> None:
    folder = Path(output.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(parse_source(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in ("rich.text", "rich.table", "rich.markup", "rich"):
                names = {each.name for each in node.names} - {"box"}
                if names:
                    found.add(str(path.relative_to(folder)))
    assert found == {"words.py", "output.py"}
