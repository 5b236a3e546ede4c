"""The flags of the guide's call stand in each command that the guide prints, where the command takes them."""

from __future__ import annotations

import shlex

import pytest

from kmigrate.cli.base.leading import behind_verb
from kmigrate.cli.guide.itinerary import Choices, command_of
from kmigrate.cli.guide.next_step import next_step
from kmigrate.cli.guide.place import NOWHERE, Place
from kmigrate.cli.guide.standing import Standing

_BOTH = Place("my clusters.toml", "new")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kmigrate status --watch", ["status", "--config", "my clusters.toml", "--target", "new", "--watch"]),
        ("kmigrate doctor", ["doctor", "--config", "my clusters.toml"]),
        ("kmigrate init", ["init", "--config", "my clusters.toml"]),
        (
            "kmigrate link create --source a --target b blue",
            ["link", "create", "--config", "my clusters.toml", "--source", "a", "--target", "b", "blue"],
        ),
        ("kmigrate promote -- -x", ["promote", "--config", "my clusters.toml", "--target", "new", "--", "-x"]),
    ],
)
def test_a_printed_command_finds_the_clusters_of_the_call(command: str, words: list[str]) -> None:
    assert behind_verb(shlex.split(_BOTH.at(command))[1:]) == words


def test_a_call_without_these_flags_prints_commands_without_them() -> None:
    assert NOWHERE.at("kmigrate doctor") == "kmigrate doctor"


def test_the_next_step_and_the_steps_have_the_flags() -> None:
    assert next_step(Standing("other.toml"), Place("other.toml")).command == "kmigrate --config other.toml init"
    choices = Choices("blue", "old", "new", ("orders",), place=Place("other.toml"))
    step = {"title": "Copy.", "run": "topic mirror", "topics": ["orders"]}
    assert command_of(step, choices) == "kmigrate --config other.toml topic mirror --link blue orders"
    assert command_of({"title": "Restart.", "exec": "kmigrate-roll"}, choices) == "kmigrate-roll"
