"""Calls in advice, parsed as a shell parses calls."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import kmigrate
from kmigrate.cli.reference.source import parse_source
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import advised, as_words
from tests.command_lines import command_of

NAMES = ["orders", "my group", "-x", "--yes", "it's", 'a"b', "$HOME", "`id`", "a\nb", "*", "é", "", "a;b", "~"]


@pytest.mark.parametrize("names", [*([name] for name in NAMES), NAMES])
def test_a_shell_gives_the_names_back(names: list[str]) -> None:
    """The test asks bash, because the older `sh` of some systems does not know the escapes of `$'…'`."""
    words = as_words(*names)
    told = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, text=True, check=True).stdout
    given = told.split("\0")[:-1]
    assert given[given[:1] == ["--"] :] == names
    assert words.startswith("-- ") is any(name.startswith("-") for name in names)


def test_an_everyday_name_stays_as_it_is() -> None:
    assert as_words("orders", "a.b_c-1") == "orders a.b_c-1"


def test_a_group_with_a_space_is_forgotten_by_the_words_that_status_gives() -> None:
    leaving = GroupRecord("l", "my group", GroupPhase.MIRRORED, 1, forgotten_ms=7)
    assert leaving.hindrance == "being forgotten: kmigrate group forget --link l 'my group' ends it"


def test_a_call_on_a_links_names_says_the_link_before_them() -> None:
    assert advised("promote --cancel", "prod", "-x", "orders") == "kmigrate promote --cancel --link prod -- -x orders"


def test_no_advice_on_topics_or_groups_leaves_the_link_out() -> None:
    """With two links such a call would be refused, because the link is not clear."""
    by_hand = re.compile(r"kmigrate (promote|(topic|group) (mirror|forget|pause|resume|promote))( --[a-z-]+)* $")
    found = [
        (path.name, node.value)
        for path in Path(kmigrate.__file__).parent.rglob("*.py")
        for node in ast.walk(parse_source(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and by_hand.search(node.value)
    ]
    assert found == []


def test_what_is_advised_for_a_link_is_a_verb_that_takes_one() -> None:
    calls = [
        node
        for path in Path(kmigrate.__file__).parent.rglob("*.py")
        for node in ast.walk(parse_source(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "advised"
    ]
    said = {ast.literal_eval(call.args[0]) for call in calls if isinstance(call.args[0], ast.Constant)}
    assert {"promote", "topic mirror", "group promote"} <= said
    for verb in said:
        assert verb.startswith(command_of([*shlex.split(verb), "--link", "blue"]))
