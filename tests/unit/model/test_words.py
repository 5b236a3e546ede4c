"""Calls that we advise, taken as a shell takes them."""

from __future__ import annotations

import subprocess

import pytest

from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.records import GroupRecord
from kmigrate.model.words import as_words

NAMES = ["orders", "my group", "-x", "--yes", "it's", 'a"b', "$HOME", "`id`", "a\nb", "*", "é", "", "a;b", "~"]


@pytest.mark.parametrize("names", [*([name] for name in NAMES), NAMES])
def test_a_shell_gives_the_names_back(names: list[str]) -> None:
    words = as_words(*names)
    told = subprocess.run(["sh", "-c", f"printf '%s\\0' {words}"], capture_output=True, text=True, check=True).stdout
    given = told.split("\0")[:-1]
    assert given[given[:1] == ["--"] :] == names
    assert words.startswith("-- ") is any(name.startswith("-") for name in names)


def test_an_everyday_name_stays_as_it_is() -> None:
    assert as_words("orders", "a.b_c-1") == "orders a.b_c-1"


def test_a_group_with_a_space_is_forgotten_by_the_words_that_status_gives() -> None:
    leaving = GroupRecord("l", "my group", GroupPhase.MIRRORED, 1, forgotten_ms=7)
    assert leaving.hindrance == "being forgotten: kmigrate group forget 'my group' ends it"
