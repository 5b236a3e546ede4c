"""The rights of `--print-acls`: a table for people, commands for a shell, and JSON with the same content."""

from __future__ import annotations

import shlex

from rich.console import Console

from kmigrate.cli.views.acls import ClusterAcls, acls_answer
from kmigrate.model.grants import GRANTS, OPTIONAL_GRANTS
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.base.rights import Wanted
from tests.json_output import check_document

SIDES = [
    ClusterAcls(ClusterSettings(name, ((name, 9092),)), Wanted(name, ("orders",))) for name in ("source", "target")
]


def shown(width: int) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(acls_answer(SIDES).view)
    return captured.get()


def test_the_json_has_every_right_and_is_as_documented() -> None:
    json = acls_answer(SIDES).json
    listed = {(each["side"], each["resource"], each["operation"], each["without"]) for each in json["rights"]}
    assert listed == {(g.side, g.resource, g.operation, g.without) for g in (*GRANTS, *OPTIONAL_GRANTS)}
    check_document("doctor", dict(json))
    check_document("plan", dict(json))


def test_a_terminal_shows_the_commands_of_the_json_as_a_shell_reads_them() -> None:
    lines = [line for line in shown(100).replace(" \\\n", " ").splitlines() if line.startswith("kafka-acls.sh")]
    commands = [each["command"] for each in acls_answer(SIDES).json["commands"]]
    assert [shlex.split(line) for line in lines] == [shlex.split(command) for command in commands]


def test_optional_rights_have_commands_of_their_own() -> None:
    commands = [each for each in acls_answer(SIDES).json["commands"] if each["optional"]]
    assert {(each["cluster"], "--operation Alter " in each["command"]) for each in commands} >= {("target", True)}
    assert not [each for each in commands if "--operation Read" in each["command"]]
