"""The steps for chosen topics and groups: a playbook that parses, and commands that the command line understands."""

from __future__ import annotations

import shlex
from dataclasses import replace

from kmigrate.cli.commands.playbook_verbs import verbs
from kmigrate.cli.guide.itinerary import Choices, command_of, playbook_text, steps_of
from kmigrate.workflow.playbook.parse import parse_playbook
from kmigrate.workflow.playbook.steps import ApproveStep, RunStep

_ALL = Choices("blue", "old", "new", ("orders", "pay ments"), ("billing",), "./roll p", "./roll c", verify=True)


def commands(choices: Choices) -> list[str]:
    return [command_of(step, choices) for step in steps_of(choices)]


def test_groups_move_before_topics_and_producers_move_first() -> None:
    assert commands(_ALL) == [
        "kmigrate link create --source old --target new blue",
        "kmigrate wait --link blue --timeout 600 'mirror running'",
        "kmigrate wait --timeout 600 'router running'",
        "kmigrate wait --timeout 600 'controller running'",
        "kmigrate topic mirror --link blue orders 'pay ments'",
        "kmigrate group mirror --link blue billing",
        "./roll p",
        "kmigrate wait --link blue --timeout 86400 'lag <= 1000' orders 'pay ments'",
        "./roll c",
        "kmigrate group promote --link blue billing",
        "kmigrate promote --link blue orders 'pay ments'",
        "kmigrate verify --link blue orders 'pay ments'",
    ]


def test_without_groups_and_verify_their_steps_are_left_out() -> None:
    verbs = [step.get("run") for step in steps_of(replace(_ALL, groups=(), verify=False))]
    assert [verb for verb in verbs if verb] == ["link create", "topic mirror", "promote"]


def test_without_a_command_a_person_approves_that_clients_have_moved() -> None:
    steps = steps_of(replace(_ALL, roll_producers="", roll_consumers=""))
    approved = [(step["approve"], step["unless"]) for step in steps if "approve" in step]
    assert approved == [
        (
            "Have all producers of these topics restarted with the router's address as bootstrap.servers?",
            "topics promoted",
        ),
        (
            "Have all consumers of these groups restarted with the router's address as bootstrap.servers?",
            "groups promoted",
        ),
    ]


def test_names_that_look_like_flags_stay_names() -> None:
    words = shlex.split(commands(replace(_ALL, topics=("-x", "$HOME")))[4])
    assert words == ["kmigrate", "topic", "mirror", "--link", "blue", "--", "-x", "$HOME"]


def test_the_step_that_ends_a_link_is_a_command_of_the_command_line() -> None:
    assert command_of({"run": "link finish", "name": "blue"}, _ALL).split() == ["kmigrate", "link", "finish", "blue"]


def test_a_name_that_looks_like_a_variable_stays_a_name() -> None:
    choices = replace(_ALL, groups=("${x}", "a$${y"))
    book = parse_playbook(playbook_text(choices, steps_of(choices)), "orders.toml", verbs())
    named = [step.options["groups"] for step in book.steps if isinstance(step, RunStep) and "groups" in step.options]
    assert named == [["${x}", "a$${y"]] * 2


def test_the_written_steps_are_a_playbook() -> None:
    choices = replace(_ALL, roll_producers="")
    book = parse_playbook(playbook_text(choices, steps_of(choices)), "orders.toml", verbs())
    assert (book.title, len(book.steps)) == ("Move 2 topics and 1 group from old to new", 12)
    assert [step.number for step in book.steps if isinstance(step, ApproveStep)] == [7]
    assert [step.number for step in book.dangerous] == [10, 11]
