"""Playbooks: TOML files whose steps are the command line's verbs, plus `exec` and `wait`.

1. A step has exactly one of `run`, `exec`, `wait`. Its other keys are the verb's flags, spelt as on the command line
   without the dashes. Positional arguments are in plural (`topics`, `groups`) or named `name`.
2. A playbook keeps no position: each run begins at the start, and a step whose effect the state log shows does nothing.
   So a playbook goes on where the last run stopped, on any machine.
3. `exec` has no effect in the state log, and so runs every time, unless its `unless` condition holds.

Parsing is pure and complete: a playbook that parses has no misspelt key, and every mistake names file, step and key.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tomli

from kmigrate.errors import UsageError
from kmigrate.workflow.playbook.conditions import EXPECTED, Condition, Scope, parse_condition

__all__ = [
    "DANGEROUS",
    "VERBS",
    "ExecStep",
    "Field",
    "Playbook",
    "RunStep",
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


_MOST_SECONDS = 366 * 86_400
"""Longest wait of a step; system clocks do not take much longer times."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any, *, kind: Any = int, most: float = float("inf")) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 <= value <= most


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _one_of(*choices: str) -> Field:
    return Field(f"{', '.join(choices[:-1])} or {choices[-1]}", lambda value: value in choices)


_NAME = Field("a name", _is_text)
_NEEDED = Field("a name", _is_text, required=True)
_NAMES = Field("a list of names", _is_names, required=True)
_SOME_NAMES = Field("a list of names", _is_names)
_RATE = "a rate as a text: 10MB, or off"
_SECONDS = Field("seconds as a number, of a year at most", partial(_is_number, kind=int | float, most=_MOST_SECONDS))
_SWITCH = Field("true or false", lambda value: isinstance(value, bool))
_WAIT: Mapping[str, Field] = {"timeout": _SECONDS, "no-wait": _SWITCH}

VERBS: Mapping[str, Mapping[str, Field]] = {
    "link create": {"name": _NEEDED, "source": _NEEDED, "target": _NAME},
    "link check": {"name": _NAME},
    "link delete": {"name": _NEEDED, "delivery-timeout": _SECONDS},
    "link throttle": {"rate": Field(_RATE, _is_text, required=True), "link": _NAME},
    "link finish": {
        "name": _NAME,
        "bootstrap": Field("HOST:PORT,... as a text", _is_text),
        "delivery-timeout": _SECONDS,
        "clients-known": _SWITCH,
        "accept-misplaced-members": _SWITCH,
        "accept-late": _SWITCH,
        "undo": _SWITCH,
        **_WAIT,
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
        "throttle": Field(_RATE, _is_text),
        "continuous": _SWITCH,
        "link": _NAME,
        **_WAIT,
    },
    "topic forget": {"topics": _NAMES, "link": _NAME, "delivery-timeout": _SECONDS},
    "topic pause": {"topics": _NAMES, "link": _NAME},
    "topic resume": {
        "topics": _NAMES,
        "partition": Field("a partition number", _is_number),
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
    "group promote": {"groups": _NAMES, "link": _NAME, **_WAIT},
    "promote": {
        "topics": _NAMES,
        "link": _NAME,
        "lag-threshold": Field("a number of records", _is_number),
        "verify": _SWITCH,
        "cancel": _SWITCH,
        "accept-misplaced-members": _SWITCH,
        "accept-direct-writers": _SWITCH,
        "seal": _SWITCH,
        "on-late": _one_of("alarm", "copy", "quarantine"),
        **_WAIT,
    },
    "verify": {
        "topics": _SOME_NAMES,
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
    "topics": _SOME_NAMES,
    "groups": _SOME_NAMES,
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
        parts = [self.verb]
        for key, value in self.options.items():
            shown = " ".join(value) if isinstance(value, list) else str(value)
            parts.append(shown if key in ("topics", "groups", "name", "rate") else f"--{key} {shown}")
        return " ".join(parts)


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
    at_file = _Parser(file)
    try:
        data = tomli.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise at_file.bad("", str(error), "TOML (docs/playbooks.md)") from error
    for key in data:
        if key not in ("title", "defaults", "step"):
            raise at_file.bad(key, "no such key", "title, [defaults] and [[step]]")
    title = at_file.text(data, "title")
    defaults = data.get("defaults", {})  # the link of every step that could name a link
    if not isinstance(defaults, dict) or not set(defaults) <= {"link"} or not all(map(_is_text, defaults.values())):
        raise at_file.bad("defaults", f"found {defaults!r}", 'a table that holds nothing but link = "NAME"')
    steps = data.get("step", [])
    if not isinstance(steps, list) or not steps or not all(isinstance(each, dict) for each in steps):
        raise at_file.bad("step", "there is no step", "one or more [[step]] tables")
    book = Playbook(file, title, tuple(_Parser(file, n, defaults).step(each) for n, each in enumerate(steps, start=1)))
    _refuse_begin_anew(book)
    return book


def _refuse_begin_anew(book: Playbook) -> None:
    """Refuse creating and deleting one link: nobody knows what was promoted, and a rerun (rule 2) mirrors all anew."""
    steps = [step for step in book.steps if isinstance(step, RunStep)]
    made = {step.options["name"] for step in steps if step.verb == "link create"}
    for step in steps:
        if step.verb == "link delete" and step.options["name"] in made:
            what = f"another step makes link {step.options['name']}: when it is run again, all would begin anew"
            raise _Parser(book.file, step.number).bad("run", what, "link delete in a playbook of its own")


@dataclass(frozen=True, slots=True)
class _Parser:
    """Parses one step of a playbook, with the defaults of its keys, and names mistakes; number 0 is the whole file."""

    file: str
    number: int = 0
    defaults: Mapping[str, str] = field(default_factory=dict)

    def bad(self, key: str, what: str, expected: str) -> UsageError:
        at = f"{self.file}, step {self.number}" if self.number else self.file
        return UsageError(
            "bad-playbook",
            f"{at}: {f'{key}: ' if key else ''}{what}",
            still_true="no step was run",
            next_step=f"expected: {expected}",
        )

    def text(self, table: Mapping[str, Any], key: str) -> str:
        value = table.get(key, "")
        if not isinstance(value, str):
            raise self.bad(key, f"found {value!r}", "a text")
        return value

    def step(self, table: Mapping[str, Any]) -> Step:
        kinds = [kind for kind in ("run", "exec", "wait") if kind in table]
        if len(kinds) != 1:
            found = " and ".join(kinds) or f"only {', '.join(table) or 'nothing'}"
            raise self.bad("", f"found {found}", "exactly one of run, exec, wait")
        kind = kinds[0]
        sentence = table[kind]
        if not _is_text(sentence):
            raise self.bad(kind, f"found {sentence!r}", "a text")
        title = self.text(table, "title")
        rest = {key: value for key, value in table.items() if key not in (kind, "title")}
        if kind == "run":
            if sentence not in VERBS:
                raise self.bad("run", f"there is no verb {sentence!r}", f"one of: {', '.join(VERBS)}")
            return RunStep(self.number, title, sentence, self._options(rest, VERBS[sentence]))
        options = self._options(rest, _EXEC if kind == "exec" else _CHOICE)
        scope = Scope(options.get("link"), tuple(options.get("topics", ())), tuple(options.get("groups", ())))
        if kind == "wait":
            timeout = float(options.get("timeout", 120.0))
            return WaitStep(self.number, title, self._condition(sentence, "wait"), timeout, scope)
        unless = self._condition(options["unless"], "unless") if "unless" in options else None
        timeout = float(options.get("timeout", 600.0))
        return ExecStep(self.number, title, self._command(sentence), timeout, unless, scope)

    def _options(self, given: Mapping[str, Any], fields: Mapping[str, Field]) -> dict[str, Any]:
        """Return the options of a step, with every key known and every value of its type, defaults filled in."""
        for key, value in given.items():
            if key not in fields:
                raise self.bad(key, "no such key in this step", f"one of: {', '.join(fields)}")
            if not fields[key].check(value):
                raise self.bad(key, f"found {value!r}", fields[key].expected)
        for key, known in fields.items():
            if known.required and key not in given:
                raise self.bad(key, "is missing", known.expected)
        return {**{key: value for key, value in self.defaults.items() if key in fields}, **given}

    def _condition(self, text: str, key: str) -> Condition:
        condition = parse_condition(text)
        if condition is None:
            raise self.bad(key, f"found {text!r}", EXPECTED)
        return condition

    def _command(self, command: str) -> tuple[str, ...]:
        try:
            words = tuple(shlex.split(command))
        except ValueError as error:
            raise self.bad("exec", f"{error} in {command!r}", "a command line") from error
        if not words or "\0" in command:
            raise self.bad("exec", "the command is empty, or holds a NUL", "a command line")
        return words
