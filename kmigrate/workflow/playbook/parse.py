"""The parser of playbooks: pure and complete.

A playbook that parses has no misspelt key. Every mistake names file, line, column, step and key.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tomli

from kmigrate.errors import UsageError
from kmigrate.model.nearest import nearest
from kmigrate.workflow.playbook.conditions import EXPECTED, Condition, Scope, meant_condition, parse_condition
from kmigrate.workflow.playbook.fields import Field, Fields, is_text, names, number, seconds, text
from kmigrate.workflow.playbook.places import Path, Places
from kmigrate.workflow.playbook.steps import ApproveStep, ExecStep, Guard, Playbook, RunStep, Step, WaitStep
from kmigrate.workflow.playbook.variables import (
    DECLARATION,
    Undefined,
    Value,
    Values,
    Variable,
    declared,
    environment_name,
    is_variable_name,
    kind_of,
    read_value,
)

__all__ = ["APPROVE", "EVERY_STEP", "EXEC", "KINDS", "LIMIT", "WAIT", "parse_playbook"]

KINDS = ("run", "exec", "wait", "approve")
_GUARD_EXPECTED = f"{EXPECTED}, 'A == B', 'A != B', a list that is or is not empty, true or false"


def _guarded(meaning: str) -> Field:
    schema = {"type": ["string", "boolean"]}
    return Field(
        _GUARD_EXPECTED, lambda value: is_text(value) or isinstance(value, bool | list), schema, meaning=meaning
    )


EVERY_STEP: Fields = {
    "title": Field("a text", lambda value: isinstance(value, str), {"type": "string"}, meaning="why the step is there"),
    "when": _guarded("skip the step unless this holds"),
    "unless": _guarded("skip the step if this holds"),
    "retries": number(meaning="how many times a step that failed is tried again (0)"),
    "retry-delay": seconds(meaning="seconds before each further try (5)"),
}
"""Keys of every step."""
LIMIT: Fields = {"timeout": seconds(meaning="seconds after which the step has failed")}
"""Keys of steps that have no `timeout` of their own."""
_CHOICE: Fields = {
    "link": text("a name", meaning="link that the condition looks at (else all)"),
    "topics": names(meaning="topics that the condition looks at (else all)"),
    "groups": names(meaning="groups that the condition looks at (else all)"),
}
EXEC: Fields = {**_CHOICE, "timeout": seconds(meaning="seconds after which the command is killed (600)")}
WAIT: Fields = {**_CHOICE, "timeout": seconds(meaning="seconds after which the step has failed (120)")}
APPROVE: Fields = {
    **_CHOICE,
    "file": text("a file", meaning="approved once this file exists"),
    "command": text("a command line", meaning="approved if this command ends with exit code 0"),
    "timeout": seconds(meaning="seconds to wait for the file, or for the command (86400)"),
}

_TOP = ("title", "defaults", "variables", "step", "on_failure")
_OWN_TIMEOUT = ("exec", "wait", "approve")


def parse_playbook(
    content: str,
    file: str,
    verbs: Mapping[str, Fields],
    given: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Playbook:
    """Parse a playbook.

    Args:
        content: the TOML text.
        file: the name of the playbook in errors.
        verbs: the keys of each verb.
        given: values of variables that the caller gives.
        environment: the environment, which may hold values of variables.
    """
    content = content.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        data = tomli.loads(content)
    except (ValueError, RecursionError) as error:
        raise _bad(_toml_place(file, error), str(error), "TOML (docs/playbooks.md)") from error
    top = _Table(file, Places(content))
    for key in data:
        if key not in _TOP:
            raise top.bad(
                key, f"no such key{nearest(key, _TOP)}", "title, [variables], [defaults], [[step]], [[on_failure]]"
            )
    values = _variables(top, data.get("variables", {}), given or {}, environment or {})
    top = _Table(file, top.places, values=values)
    title = top.filled("title", data.get("title", ""))
    if not isinstance(title, str):
        raise top.bad("title", f"found {title!r}", "a text")
    defaults = data.get("defaults", {})  # the link of every step that could name a link
    if not isinstance(defaults, dict) or not set(defaults) <= {"link"} or not all(map(is_text, defaults.values())):
        raise top.bad("defaults", f"found {defaults!r}", 'a table that holds nothing but link = "NAME"')
    defaults = {key: top.filled("defaults", value) for key, value in defaults.items()}
    if not all(map(is_text, defaults.values())):
        raise top.bad("defaults", f"found {defaults!r}", 'link = "NAME"')
    steps = [step.parsed(verbs) for step in _steps(top, "step", data.get("step", []), defaults)]
    if not steps:
        raise top.bad("step", "there is no step", "one or more [[step]] tables")
    after = [step.parsed(verbs) for step in _steps(top, "on_failure", data.get("on_failure", []), defaults)]
    _refuse_begin_anew(top, [*steps, *after])
    return Playbook(file, values.hide(title), tuple(steps), tuple(after), values)


def _bad(place: str, what: str, expected: str) -> UsageError:
    return UsageError(
        "bad-playbook", f"{place}: {what}", still_true="no step was run", next_step=f"expected: {expected}"
    )


def _toml_place(file: str, error: Exception) -> str:
    line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
    return f"{file}:{line}:{column}" if line is not None else file


def _steps(
    top: _Table, section: Literal["step", "on_failure"], found: Any, defaults: Mapping[str, str]
) -> list[_Table]:
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise top.bad(section, f"found {found!r}", f"one or more [[{section}]] tables")
    return [
        _Table(top.file, top.places, (section, at), table, defaults, top.values)
        for at, table in enumerate(found, start=1)
    ]


def _variables(top: _Table, found: Any, given: Mapping[str, str], environment: Mapping[str, str]) -> Values:
    if not isinstance(found, dict):
        raise top.bad("variables", f"found {found!r}", "a table [variables]")
    for name in given:
        if name not in found:
            known = ", ".join(found) or "none: the playbook has no [variables]"
            raise _bad(top.file, f"--set {name}: no such variable{nearest(name, found)}", f"one of: {known}")
    variables: dict[str, Variable] = {}
    values: dict[str, Value] = {}
    for name, value in found.items():
        at = _Table(top.file, top.places, ("variables", name))
        if not is_variable_name(name):
            raise at.bad("", f"{name!r} is no name of a variable", "letters, digits, _ and -, a letter first")
        _refuse_shared_name(at, name, variables)
        variables[name] = variable = _declared(at, name, value)
        read = _value(at, variable, given, environment)
        if read is not None:
            values[name] = read
    unset = [variable for name, variable in variables.items() if name not in values]
    if unset:
        missing = "; ".join(f"{each.name} ({each.description or each.kind})" for each in unset)
        flags = " ".join(f"--set {each.name}={_EXAMPLES[each.kind]}" for each in unset if not each.secret)
        secrets = " and ".join(each.env or environment_name(each.name) for each in unset if each.secret)
        expected = " and ".join(filter(None, (flags, f"{secrets} in the environment" if secrets else "")))
        raise _Table(top.file, top.places, ("variables", unset[0].name)).bad("", f"no value: {missing}", expected)
    return Values(variables, values)


def _refuse_shared_name(at: _Table, name: str, others: Iterable[str]) -> None:
    """Refuse two variables that would reach a command as one environment variable."""
    called = environment_name(name)
    for other in others:
        if environment_name(other) == called:
            raise at.bad("", f"{other} and {name} are both {called} in the environment", "another name")


def _declared(at: _Table, name: str, value: Any) -> Variable:
    table = value if isinstance(value, dict) else {"default": value}
    for key, each in table.items():
        if key not in DECLARATION:
            raise at.bad(key, f"no such key{nearest(key, DECLARATION)}", f"one of: {', '.join(DECLARATION)}")
        if not DECLARATION[key].check(each):
            raise at.bad(key if isinstance(value, dict) else "", f"found {each!r}", DECLARATION[key].expected)
    variable = declared(name, table)
    if variable.default is not None and kind_of(variable.default) != variable.kind:
        raise at.bad("default", f"found {variable.default!r}", f"a {variable.kind}, as type says")
    return variable


def _value(at: _Table, variable: Variable, given: Mapping[str, str], environment: Mapping[str, str]) -> Value | None:
    try:
        return read_value(variable, given, environment)
    except (ValueError, KeyError):
        name = variable.name
        source = f"--set {name}" if name in given else variable.env or environment_name(name)
        expected = _EXPECTED[variable.kind]
        raise at.bad("", f"the value of {source} is no {variable.kind}", expected) from None


_EXPECTED = {"text": "a text", "list": "texts, separated by commas", "number": "a number", "boolean": "true or false"}
_EXAMPLES = {"text": "TEXT", "list": "TEXT,TEXT", "number": "NUMBER", "boolean": "true"}


def _refuse_begin_anew(top: _Table, steps: Iterable[Step]) -> None:
    """Refuse creating and deleting one link: nobody knows what was promoted, and a rerun mirrors all anew."""
    runs = [step for step in steps if isinstance(step, RunStep)]
    made = {step.options["name"] for step in runs if step.verb == "link create"}
    for step in runs:
        if step.verb == "link delete" and step.options["name"] in made:
            what = f"another step makes link {step.options['name']}: when it is run again, all would begin anew"
            raise _bad(f"{step.place}: {step.name}: run", what, "link delete in a playbook of its own")


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the file, at a path: reads the table's values, and names mistakes."""

    file: str
    places: Places
    path: Path = ()
    table: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    values: Values = field(default_factory=lambda: Values({}, {}))

    @property
    def place(self) -> str:
        return f"{self.file}:{self.places.of(self.path)}"

    @property
    def name(self) -> str:
        if not self.path:
            return ""
        return f"{_CALLED[self.path[0]]} {self.path[1]}"

    def bad(self, key: str, what: str, expected: str) -> UsageError:
        """Return the error about the value of a key; without a key about the whole table."""
        at = f"{self.file}:{self.places.of((*self.path, key) if key else self.path)}"
        return _bad(": ".join(filter(None, (at, self.name, key))), self.values.hide(what), expected)

    def filled(self, key: str, value: Any) -> Any:
        """Return the value of a key with its variables filled in."""
        try:
            return self.values.fill(value)
        except Undefined as error:
            known = ", ".join(self.values.variables) or "none: the playbook has no [variables]"
            raise self.bad(key, str(error), f"one of: {known}") from error

    def parsed(self, verbs: Mapping[str, Fields]) -> Step:
        """Return the step that the table describes."""
        kinds = [kind for kind in KINDS if kind in self.table]
        if len(kinds) != 1:
            found = " and ".join(kinds) or f"only {', '.join(self.table) or 'nothing'}"
            raise self.bad("", f"found {found}", f"exactly one of {', '.join(KINDS)}")
        kind = kinds[0]
        sentence = self.table[kind]
        if not is_text(sentence):
            raise self.bad(kind, f"found {sentence!r}", "a text")
        if kind == "run" and sentence not in verbs:
            raise self.bad(
                "run", f"there is no verb {sentence!r}{nearest(sentence, verbs)}", f"one of: {', '.join(verbs)}"
            )
        own = verbs[sentence] if kind == "run" else {"exec": EXEC, "wait": WAIT, "approve": APPROVE}[kind]
        guards = self._guards()
        idle = any(guard.certain for guard in guards)
        options = self._options(kind, {**LIMIT, **own, **EVERY_STEP}, idle=idle)
        terms = self._terms(options, guards, limited=kind in _OWN_TIMEOUT or "timeout" not in own)
        if kind == "run":
            return RunStep(**terms, verb=sentence, options={key: each for key, each in options.items() if key in own})
        if kind == "exec":
            return ExecStep(**terms, command=self._command(sentence, "exec"))
        if kind == "wait":
            return WaitStep(**terms, condition=self._condition(str(self.filled("wait", sentence)), "wait"))
        return self._approval(terms, self.filled("approve", sentence), options)

    def _approval(self, terms: Mapping[str, Any], question: str, options: Mapping[str, Any]) -> ApproveStep:
        if "file" in options and "command" in options:
            raise self.bad("command", "found file and command", "one of the two, or none to ask on the terminal")
        if "timeout" in options and not {"file", "command"} & set(options):
            raise self.bad("timeout", "a person on the terminal has no time limit", "a file or a command")
        if self.path[0] == "on_failure":
            raise self.bad("approve", "an approval after a failure", "run, exec or wait")
        command = self._command(self.table["command"], "command") if "command" in options else ()
        return ApproveStep(**terms, question=str(question), file=options.get("file", ""), command=command)

    def _guards(self) -> tuple[Guard, ...]:
        made = []
        for key in _GUARD_KEYS:
            if key in self.table:
                value = self.filled(key, self.table[key])
                if not EVERY_STEP[key].check(value):
                    raise self.bad(key, f"found {value!r}", EVERY_STEP[key].expected)
                made.append(self._guard(key, value))
        return tuple(made)

    def _options(self, kind: str, fields: Fields, *, idle: bool) -> dict[str, Any]:
        """Return the step's values, with every key known and every value of its type, defaults filled in.

        A step that is skipped for sure may have an empty list, as a variable that nobody has set.
        """
        made: dict[str, Any] = {key: value for key, value in self.defaults.items() if key in fields}
        for key, value in self.table.items():
            if key == kind:
                continue
            if key not in fields:
                raise self.bad(key, f"no such key in this step{nearest(key, fields)}", f"one of: {', '.join(fields)}")
            made[key] = value if key == "command" else self.filled(key, value)
            if not fields[key].check(made[key]) and not (idle and made[key] == []):
                raise self.bad(key, f"found {made[key]!r}", fields[key].expected)
        for key, known in fields.items():
            if known.required and key not in self.table:
                raise self.bad(key, "is missing", known.expected)
        return made

    def _terms(self, options: Mapping[str, Any], guards: tuple[Guard, ...], *, limited: bool) -> dict[str, Any]:
        """Return what steps of all kinds have; a `timeout` of the verb itself stays with the verb."""
        by_name = options.get("regex") is not True
        scope = Scope(
            options.get("link"),
            tuple(options.get("topics", ())) if by_name else (),
            tuple(options.get("groups", ())) if by_name else (),
        )
        limit = {"timeout": float(options["timeout"])} if limited and "timeout" in options else {}
        return {
            "number": self.path[1],
            "title": options.get("title", ""),
            "place": self.place,
            "guards": guards,
            "scope": scope,
            "retries": options.get("retries", 0),
            "retry_delay": float(options.get("retry-delay", 5.0)),
            "after_failure": self.path[0] == "on_failure",
            **limit,
        }

    def _guard(self, key: Literal["when", "unless"], value: str | bool | list[str]) -> Guard:
        if isinstance(value, list):
            return Guard(key, ",".join(value) or "an empty list", holds=bool(value))
        if isinstance(value, bool):
            return Guard(key, "true" if value else "false", holds=value)
        for sign in ("==", "!="):
            left, found, right = value.partition(f" {sign} ")
            if found:
                return Guard(key, value, holds=(left.strip() == right.strip()) is (sign == "=="))
        return Guard(key, value, self._condition(value, key))

    def _condition(self, sentence: str, key: str) -> Condition:
        condition = parse_condition(sentence)
        if condition is None:
            raise self.bad(
                key, f"found {sentence!r}{meant_condition(sentence)}", EXPECTED if key == "wait" else _GUARD_EXPECTED
            )
        return condition

    def _command(self, command: str, key: str) -> tuple[str, ...]:
        try:
            words = self.values.fill_words(shlex.split(command))
        except ValueError as error:
            raise self.bad(key, f"{error} in {command!r}", "a command line") from error
        except Undefined as error:
            raise self.bad(key, str(error), "a command line") from error
        if not words or not words[0] or any("\0" in word for word in words):
            raise self.bad(key, "the command is empty, or holds a NUL", "a command line")
        return tuple(words)


_CALLED: Mapping[str | int, str] = {"variables": "variable", "step": "step", "on_failure": "on_failure step"}
_GUARD_KEYS: tuple[Literal["when", "unless"], ...] = ("when", "unless")
