"""The verbs that a playbook's steps may name, with the keys of each verb, read from the verb's own flags.

A key is a flag without its dashes, or the name of a positional argument. So a flag is declared once, where typer reads
the flag, and serves the command line, playbooks, the JSON schema of playbooks and the docs.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import typer

from kmigrate.cli.commands import finish, group, link, promote, rehearse, rollback, topic, verify
from kmigrate.workflow.playbook import fields
from kmigrate.workflow.playbook.fields import Field, Fields

__all__ = ["CALLS", "parameter_of", "verbs"]

CALLS: Mapping[str, Callable[..., Any]] = {
    "link alter": link.alter,
    "link create": link.create,
    "link check": link.check,
    "link delete": link.delete,
    "link finish": finish.finish,
    "link throttle": link.throttle,
    "topic forget": topic.forget,
    "topic mirror": topic.mirror,
    "topic pause": topic.pause,
    "topic resume": topic.resume,
    "group forget": group.forget,
    "group mirror": group.mirror,
    "group promote": group.promote,
    "group rollback": group.rollback,
    "promote": promote.promote,
    "rehearse": rehearse.rehearse,
    "rollback": rollback.rollback,
    "verify": verify.verify,
}
"""The verbs that change or prove something."""

_LEFT_OUT = frozenset({"plan", "yes", "follow", "interval", "print-acls"})
"""Flags of a call by hand: a playbook has its own --plan and --yes, and a step has an end."""
_BY_HAND: Mapping[str, frozenset[str]] = {
    "rollback": frozenset({"target-lost", "source", "routers-stopped", "release-groups", "out"})
}
"""Flags of a verb that a step cannot have: no playbook runs without its target."""
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "link alter": ("set",),
    "link create": ("name", "source"),
    "link delete": ("name",),
    "link throttle": ("rate",),
    "topic forget": ("topics",),
    "topic mirror": ("topics",),
    "topic pause": ("topics",),
    "topic resume": ("topics",),
    "group forget": ("groups",),
    "group mirror": ("groups",),
    "group promote": ("groups",),
    "group rollback": ("groups",),
    "promote": ("topics",),
    "rehearse": ("topics",),
    "rollback": ("topics",),
}
"""Keys that a step must have: values that the verb asks for on a terminal."""


def parameter_of(key: str) -> str:
    """Return the name of a verb's parameter for a playbook's key."""
    return f"{key}_" if key in ("from", "set") else key.replace("-", "_")


@cache
def verbs() -> Mapping[str, Fields]:
    """Return the keys of each verb."""
    return {verb: _fields(verb, call) for verb, call in CALLS.items()}


def _fields(verb: str, call: Callable[..., Any]) -> Fields:
    made: dict[str, Field] = {}
    for parameter in list(inspect.signature(call, eval_str=True).parameters.values())[1:]:
        key = parameter.name.rstrip("_").replace("_", "-")
        if key not in _LEFT_OUT | _BY_HAND.get(verb, frozenset()):
            made[key] = dataclasses.replace(_field(parameter), required=key in _REQUIRED.get(verb, ()))
    return made


def _field(parameter: inspect.Parameter) -> Field:
    """Return the field of a flag by the flag's type; a metavar in small letters with bars lists all values."""
    kind, flag = typing.get_args(parameter.annotation)
    kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
    kind = kinds[0] if isinstance(kind, types.UnionType) else kind
    meaning, metavar = flag.help, flag.metavar or ""
    if typing.get_origin(kind) is list:
        named = isinstance(flag, typer.models.ArgumentInfo)
        return fields.names("a list of names" if named else f"a list of texts: {metavar}", meaning=meaning)
    if kind is bool:
        return fields.switch(meaning=meaning)
    if kind is int:
        return fields.number(meaning=meaning)
    if kind is float:
        return fields.seconds(meaning=meaning)
    if issubclass(kind, StrEnum):
        return fields.one_of(tuple(kind), meaning=meaning)
    if "|" in metavar and metavar.islower():
        return fields.one_of(metavar.split("|"), meaning=meaning)
    if kind not in (str, Path):
        raise TypeError(f"no field is known for {parameter}")
    return fields.text(f"a text: {metavar}" if metavar else "a text", meaning=meaning)
