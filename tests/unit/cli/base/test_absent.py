"""Tests that a verb of a missing feature is refused by name, and that the docs list each such feature."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kmigrate.cli.app import app, main
from kmigrate.cli.base.absent import ABSENT
from kmigrate.cli.base.lazy import LazyCommand

PROMISES = Path(__file__).parents[4] / "docs" / "promises.md"


@pytest.mark.parametrize(
    ("words", "asked", "feature"),
    [
        (["failback", "orders"], "kmigrate failback", "other words for a rollback"),
    ],
)
def test_a_verb_of_a_missing_feature_is_refused_by_name(
    words: list[str], asked: str, feature: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["what"]) == (
        "not-in-this-version",
        f"{asked}: this version lacks this feature: {feature}",
    )
    assert "docs/promises.md" in told["next"]


@pytest.mark.parametrize("words", [["promte", "orders"], ["promote", "orders", "--frobnicate"], ["topic", "rollback"]])
def test_any_other_unknown_word_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "usage"


def test_the_docs_name_each_missing_feature_and_its_words() -> None:
    section = PROMISES.read_text(encoding="utf-8").partition("## Not in this version")[2].partition("\n## ")[0]
    text = re.sub(r"\s+", " ", section)
    spoken = {"revert", "failback", "demote"}
    for words, absent in ABSENT.items():
        assert absent.feature in text, absent.feature
        assert words in spoken or words in text, words


def test_no_missing_feature_is_there() -> None:
    """The entry of a feature goes when the feature is added."""
    found: set[str] = set()

    def walk(command: object, path: str) -> None:
        if isinstance(command, LazyCommand):
            command = command.load()
        found.add(path)
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, f"{path} {name}".strip())

    walk(app, "")
    assert "group promote" in found
    assert not found & ABSENT.keys()
