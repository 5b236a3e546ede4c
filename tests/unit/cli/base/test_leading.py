"""Common options before the verb."""

from __future__ import annotations

import json

import pytest

from kmigrate.cli.app import main
from kmigrate.cli.base.leading import behind_verb


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        ("--config f status", "status --config f"),
        ("--config=f --json status --watch", "status --config=f --json --watch"),
        ("--target t topic mirror -- -odd", "topic mirror --target t -- -odd"),
        ("status --config f", "status --config f"),
        ("--config f link create --source", "link create --config f --source"),
        ("--config f", "--config f"),
        ("--config", "--config"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_leading_options_move_behind_the_verb(words: str, moved: str) -> None:
    assert behind_verb(words.split()) == moved.split()


def test_a_configuration_named_before_the_verb_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--config", "/nowhere.toml", "link", "list"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["what"].split(",")[0]) == ("no-config-file", "--config names /nowhere.toml")
