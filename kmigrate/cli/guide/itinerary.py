"""The steps of a migration for chosen topics and groups, as the steps of a playbook.

Each step has a title in plain words and stands for one command. A step whose effect the state log shows changes
nothing, so an itinerary begins at its first step again after a stop.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomlkit

from kmigrate.cli.guide.place import NOWHERE, Place
from kmigrate.model.words import as_words

__all__ = ["Choices", "command_of", "playbook_text", "step_json", "steps_of"]

Table = dict[str, Any]
"""A step as a playbook has it."""

_LAG = "lag <= 1000"
_COPY_S = 86_400
_ARGUMENTS = ("name", "rate", "topics", "groups")
"""Keys of a verb that stand for positional arguments."""
_MOVED = "Have all {}s of these {} restarted with the router's address as bootstrap.servers?"


@dataclass(frozen=True, slots=True)
class Choices:
    """A person's answers: the link, its topics and groups, and how clients move."""

    link: str
    source: str
    target: str
    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    roll_producers: str = ""
    """Command that restarts the producers with the router's address; '': a person does."""
    roll_consumers: str = ""
    verify: bool = False
    place: Place = NOWHERE
    """The flags with which every printed command of kmigrate finds the clusters."""


def steps_of(choices: Choices) -> list[Table]:
    """Return the steps in their order."""
    return list(_steps(choices))


def _steps(at: Choices) -> Iterator[Table]:
    topics, groups = list(at.topics), list(at.groups)
    yield {
        "title": "Store the link in the target's state log. The source is not contacted.",
        "run": "link create",
        "name": at.link,
        "source": at.source,
        "target": at.target,
    }
    for process in ("mirror", "router", "controller"):
        yield {
            "title": f"The {process} process has to run: kmigrate run, in another terminal or as a service.",
            "wait": f"{process} running",
            "timeout": 600,
        }
    yield {
        "title": "Copy the topics, and go on copying what producers write. Offsets stay identical where possible.",
        "run": "topic mirror",
        "topics": topics,
    }
    if groups:
        yield {
            "title": "Register the groups. Nothing is written on the target before the promote of a group.",
            "run": "group mirror",
            "groups": groups,
        }
    yield _move("producer", at.roll_producers, "topics promoted", {"topics": topics})
    yield {
        "title": "Wait until the copy is close behind the source.",
        "wait": _LAG,
        "topics": topics,
        "timeout": _COPY_S,
    }
    if groups:
        yield _move("consumer", at.roll_consumers, "groups promoted", {"groups": groups})
        yield {
            "title": "Move the groups with their committed offsets to the target. Members see a rebalance.",
            "run": "group promote",
            "groups": groups,
        }
    yield {
        "title": "Switch the topics over: the router holds writes for some milliseconds, then writes go to the target.",
        "run": "promote",
        "topics": topics,
    }
    if at.verify:
        yield {
            "title": "Compare every record of both clusters up to the switch.",
            "run": "verify",
            "topics": topics,
        }


def _move(client: str, command: str, unless: str, scope: Mapping[str, Any]) -> Table:
    """Return the step in which clients restart with the router's address, one by one."""
    where = "their writes still land on the source" if client == "producer" else "members at the router read the copy"
    kind: Table = {"exec": command} if command else {"approve": _MOVED.format(client, next(iter(scope)))}
    title = f"Restart the {client}s one by one with the router's address as bootstrap.servers; {where}."
    return {"title": title, **kind, "unless": unless, **scope}


def command_of(step: Mapping[str, Any], choices: Choices) -> str:
    """Return the command that a step stands for, as a person types the command."""
    if "exec" in step:
        return str(step["exec"])
    return "" if "approve" in step else choices.place.at(_own_command(step, choices.link))


def _own_command(step: Mapping[str, Any], link: str) -> str:
    """Return the command of kmigrate that a step stands for."""
    names = [name for key in _ARGUMENTS for name in _names(step.get(key))]
    if "wait" in step:
        scope = [] if step["wait"].endswith(" running") and "mirror" not in step["wait"] else ["--link", link]
        options = [*scope, "--timeout", str(step["timeout"])]
        return f"kmigrate wait {shlex.join([*options, step['wait']])}" + (f" {as_words(*names)}" if names else "")
    own = {key: value for key, value in step.items() if key not in ("run", "title", *_ARGUMENTS)}
    flags = [word for key, value in own.items() for word in (f"--{key}", str(value))]
    flags += [] if step["run"].startswith("link ") else ["--link", link]
    return f"kmigrate {step['run']} {shlex.join(flags)} {as_words(*names)}"


def step_json(number: int, step: Mapping[str, Any], choices: Choices) -> dict[str, Any]:
    """Return a step for programs: its number from 1, its title, its command, and the step as a playbook has it."""
    return {"step": number, "title": step["title"], "command": command_of(step, choices), "does": dict(step)}


def _names(value: Any) -> Sequence[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def playbook_text(choices: Choices, steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the steps as the text of a playbook."""
    document = tomlkit.document()
    document.add(tomlkit.comment("Written by kmigrate guide. docs/playbooks.md describes all keys."))
    document.add(tomlkit.comment("Check the file: kmigrate playbook plan FILE. Run it: kmigrate playbook run FILE"))
    document.add(tomlkit.nl())
    document.add("title", tomlkit.item(_literal(f"Move {_count(choices)} from {choices.source} to {choices.target}")))
    document.add("defaults", tomlkit.item({"link": choices.link}))
    tables = tomlkit.aot()
    for step in steps:
        table = tomlkit.table()
        for key, value in step.items():
            table.add(key, _literal(value))
        tables.append(table)
    document.add("step", tables)
    return tomlkit.dumps(document)


def _literal(value: Any) -> Any:
    """Return a value whose texts mean themselves in a playbook: a name may hold the sign of a variable."""
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("${", "$${") if isinstance(value, str) else value


def _count(choices: Choices) -> str:
    parts = [(len(choices.topics), "topic"), (len(choices.groups), "group")]
    return " and ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in parts if count)
