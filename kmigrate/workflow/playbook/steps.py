"""Playbooks: TOML files whose steps are the command line's verbs, plus `exec` and `wait`.

Rules:

1. A step has exactly one of `run`, `exec`, `wait`. Its other keys are the verb's flags, spelt as on the command line
   without the dashes. Positional arguments are in plural (`topics`, `groups`) or named `name`.
2. A playbook keeps no position. Each run begins at the start, and a step whose effect the state log shows already
   changes nothing. So a playbook goes on where the last run stopped, on any machine.
3. `exec` has no effect that the state log could show: `exec` runs every time, unless its `unless` condition holds.

Parsing is pure and complete: a playbook that parses has no misspelt key, and every mistake names file, step and key.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tomli

from kmigrate.errors import UsageError
from kmigrate.workflow.playbook.conditions import EXPECTED, Condition, parse_condition

__all__ = [
    "DANGEROUS",
    "VERBS",
    "ExecStep",
    "Field",
    "Playbook",
    "RunStep",
    "Scope",
    "Step",
    "WaitStep",
    "parse_playbook",
]


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a step: the allowed values."""

    expected: str
    check: Callable[[Any], bool]
    required: bool = False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_MOST_SECONDS = 366 * 86_400
"""Longest wait of a step; system clocks do not take much longer times."""


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_SECONDS


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(each) for each in value)


def _one_of(*words: str) -> Field:
    return Field(f"{', '.join(words[:-1])} or {words[-1]}", lambda value: value in words)


_NAME = Field("a name", _is_text)
_NEEDED = Field("a name", _is_text, required=True)
_NAMES = Field("a list of names", _is_names, required=True)
_SECONDS = Field("seconds as a number, of a year at most", _is_seconds)
_SWITCH = Field("true or false", lambda value: isinstance(value, bool))

VERBS: Mapping[str, Mapping[str, Field]] = {
    "link create": {"name": _NEEDED, "source": _NEEDED, "target": _NAME},
    "link check": {"name": _NAME},
    "link delete": {"name": _NEEDED, "delivery-timeout": _SECONDS},
    "link throttle": {"rate": Field("a rate as a text: 10MB, or off", _is_text, required=True), "link": _NAME},
    "link finish": {
        "name": _NAME,
        "bootstrap": Field("HOST:PORT,... as a text", _is_text),
        "delivery-timeout": _SECONDS,
        "clients-known": _SWITCH,
        "accept-misplaced-members": _SWITCH,
        "accept-late": _SWITCH,
        "undo": _SWITCH,
        "timeout": _SECONDS,
        "no-wait": _SWITCH,
    },
    "topic mirror": {
        "topics": _NAMES,
        "from": Field("earliest, latest, ISO-8601 or ms since the epoch as a text", _is_text),
        "offsets": _one_of("auto", "identical", "mapped"),
        "recreate": _SWITCH,
        "regex": _SWITCH,
        "exclude": Field("a list of regular expressions", _is_names),
        "engine": _one_of("daemon", "spark", "auto"),
        "master": Field("a Spark master", _is_text),
        "conf": Field("a list of KEY=VALUE", _is_names),
        "throttle": Field("a rate as a text: 10MB, or off", _is_text),
        "continuous": _SWITCH,
        "link": _NAME,
        "timeout": _SECONDS,
        "no-wait": _SWITCH,
    },
    "topic forget": {"topics": _NAMES, "link": _NAME, "delivery-timeout": _SECONDS},
    "topic pause": {"topics": _NAMES, "link": _NAME},
    "topic resume": {
        "topics": _NAMES,
        "partition": Field("a partition number", _is_count),
        "accept-loss": Field("FROM..TO as a text", _is_text),
        "link": _NAME,
    },
    "group forget": {"groups": _NAMES, "link": _NAME},
    "group mirror": {
        "groups": _NAMES,
        "regex": _SWITCH,
        "exclude": Field("a list of regular expressions", _is_names),
        "mode": _one_of("auto", "follow", "hold"),
        "link": _NAME,
    },
    "group promote": {"groups": _NAMES, "link": _NAME, "timeout": _SECONDS, "no-wait": _SWITCH},
    "promote": {
        "topics": _NAMES,
        "link": _NAME,
        "lag-threshold": Field("a number of records", _is_count),
        "verify": _SWITCH,
        "cancel": _SWITCH,
        "accept-misplaced-members": _SWITCH,
        "accept-direct-writers": _SWITCH,
        "seal": _SWITCH,
        "on-late": _one_of("alarm", "copy", "quarantine"),
        "timeout": _SECONDS,
        "no-wait": _SWITCH,
    },
    "verify": {
        "topics": Field("a list of names", _is_names),
        "link": _NAME,
        "timeout": _SECONDS,
        "master": Field("a Spark master", _is_text),
        "conf": Field("a list of settings of Spark as texts: spark.NAME=VALUE", _is_names),
        "full": _SWITCH,
        "html": Field("a file", _is_text),
        "junit": Field("a file", _is_text),
        "parquet": Field("a folder that does not exist yet", _is_text),
    },
}
"""The verbs that change or prove something, with their flags; a test holds them against the command line."""

DANGEROUS = frozenset({"promote", "group promote", "topic forget", "group forget", "link delete", "link finish"})
"""Verbs that ask for a yes; a playbook asks once, for all of its steps."""

_CHOICE: Mapping[str, Field] = {
    "link": _NAME,
    "topics": Field("a list of names", _is_names),
    "groups": Field("a list of names", _is_names),
    "timeout": _SECONDS,
}
_EXEC: Mapping[str, Field] = {**_CHOICE, "unless": Field(EXPECTED, _is_text)}


@dataclass(frozen=True, slots=True)
class RunStep:
    """A verb of the command line with its flags."""

    number: int
    title: str
    verb: str
    options: Mapping[str, Any]

    @property
    def text(self) -> str:
        words = [self.verb]
        for key, value in self.options.items():
            shown = " ".join(value) if isinstance(value, list) else str(value)
            words.append(shown if key in ("topics", "groups", "name", "rate") else f"--{key} {shown}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the status that a condition is judged on: one link or all, named topics and groups or all."""

    link: str | None = None
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecStep:
    """A command whose exit code is judged."""

    number: int
    title: str
    command: tuple[str, ...]
    timeout: float = 600.0
    unless: Condition | None = None
    scope: Scope = field(default_factory=Scope)

    @property
    def text(self) -> str:
        return f"exec: {shlex.join(self.command)}" + (f" (unless {self.unless.text})" if self.unless else "")


@dataclass(frozen=True, slots=True)
class WaitStep:
    """A condition on the status, with a deadline."""

    number: int
    title: str
    condition: Condition
    timeout: float = 120.0
    scope: Scope = field(default_factory=Scope)

    @property
    def text(self) -> str:
        names = " ".join([*self.scope.topics, *self.scope.groups])
        return f"wait: {self.condition.text}" + (f" ({names})" if names else "")


Step = RunStep | ExecStep | WaitStep


@dataclass(frozen=True, slots=True)
class Playbook:
    """A parsed file: its title and its steps in order."""

    file: str
    title: str
    steps: tuple[Step, ...]

    @property
    def dangerous(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if isinstance(step, RunStep) and step.verb in DANGEROUS)


def parse_playbook(text: str, file: str) -> Playbook:
    """Parse the playbook of a TOML text; `file` names the playbook in errors."""
    try:
        data = tomli.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise _bad(file, 0, "", str(error), "TOML (docs/playbooks.md)") from error
    for key in data:
        if key not in ("title", "defaults", "step"):
            raise _bad(file, 0, key, "no such key", "title, [defaults] and [[step]]")
    title = data.get("title", "")
    if not isinstance(title, str):
        raise _bad(file, 0, "title", f"found {title!r}", "a text")
    defaults = _defaults(data.get("defaults", {}), file)
    steps = data.get("step", [])
    if not isinstance(steps, list) or not steps or not all(isinstance(each, dict) for each in steps):
        raise _bad(file, 0, "step", "there is no step", "one or more [[step]] tables")
    book = Playbook(file, title, tuple(_step(each, n, file, defaults) for n, each in enumerate(steps, start=1)))
    _refuse_begin_anew(book)
    return book


def _refuse_begin_anew(book: Playbook) -> None:
    """Refuse a playbook that creates and deletes the same link.

    Nobody knows any more what a deleted link has promoted: run again (rule 2), the playbook would mirror all of that
    anew.
    """
    steps = [step for step in book.steps if isinstance(step, RunStep)]
    made = {step.options["name"] for step in steps if step.verb == "link create"}
    for step in steps:
        if step.verb == "link delete" and step.options["name"] in made:
            what = f"another step makes link {step.options['name']}: when it is run again, all would begin anew"
            raise _bad(book.file, step.number, "run", what, "link delete in a playbook of its own")


def _defaults(table: Any, file: str) -> dict[str, str]:
    """Return `[defaults] link = …`: the link of every step that could name a link."""
    if not isinstance(table, dict) or not set(table) <= {"link"} or not all(_is_text(v) for v in table.values()):
        raise _bad(file, 0, "defaults", f"found {table!r}", 'a table that holds nothing but link = "NAME"')
    return table


def _step(table: Mapping[str, Any], number: int, file: str, defaults: Mapping[str, str]) -> Step:
    kinds = [kind for kind in ("run", "exec", "wait") if kind in table]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {', '.join(table) or 'nothing'}"
        raise _bad(file, number, "", f"found {found}", "exactly one of run, exec, wait")
    kind = kinds[0]
    word = table[kind]
    if not _is_text(word):
        raise _bad(file, number, kind, f"found {word!r}", "a text")
    title = table.get("title", "")
    if not isinstance(title, str):
        raise _bad(file, number, "title", f"found {title!r}", "a text")
    rest = {key: value for key, value in table.items() if key not in (kind, "title")}
    if kind == "run":
        return _run(word, title, rest, number, file, defaults)
    options = _checked(rest, _EXEC if kind == "exec" else _CHOICE, number, file, defaults)
    scope = Scope(options.get("link"), tuple(options.get("topics", ())), tuple(options.get("groups", ())))
    if kind == "wait":
        condition = _condition(word, "wait", number, file)
        return WaitStep(number, title, condition, float(options.get("timeout", 120.0)), scope)
    unless = _condition(options["unless"], "unless", number, file) if "unless" in options else None
    return ExecStep(number, title, _words(word, number, file), float(options.get("timeout", 600.0)), unless, scope)


def _run(
    verb: str, title: str, rest: Mapping[str, Any], number: int, file: str, defaults: Mapping[str, str]
) -> RunStep:
    fields = VERBS.get(verb)
    if fields is None:
        raise _bad(file, number, "run", f"there is no verb {verb!r}", f"one of: {', '.join(VERBS)}")
    return RunStep(number, title, verb, _checked(rest, fields, number, file, defaults))


def _checked(
    given: Mapping[str, Any], fields: Mapping[str, Field], number: int, file: str, defaults: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of a step, with every key known and every value of its type, defaults filled in."""
    for key, value in given.items():
        if key not in fields:
            raise _bad(file, number, key, "no such key in this step", f"one of: {', '.join(fields)}")
        if not fields[key].check(value):
            raise _bad(file, number, key, f"found {value!r}", fields[key].expected)
    for key, one in fields.items():
        if one.required and key not in given:
            raise _bad(file, number, key, "is missing", one.expected)
    return {**{key: value for key, value in defaults.items() if key in fields}, **given}


def _condition(text: str, key: str, number: int, file: str) -> Condition:
    condition = parse_condition(text)
    if condition is None:
        raise _bad(file, number, key, f"found {text!r}", EXPECTED)
    return condition


def _words(command: str, number: int, file: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise _bad(file, number, "exec", f"{error} in {command!r}", "a command line") from error
    if not words or "\0" in command:
        raise _bad(file, number, "exec", "the command is empty, or holds a NUL", "a command line")
    return words


def _bad(file: str, number: int, key: str, what: str, expected: str) -> UsageError:
    place = f"{file}, step {number}" if number else file
    return UsageError(
        "bad-playbook",
        f"{place}: {f'{key}: ' if key else ''}{what}",
        still_true="no step was run",
        next_step=f"expected: {expected}",
    )
