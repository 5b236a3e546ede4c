"""Variables of a playbook: declared in `[variables]`, used as `${name}` in the texts of steps.

1. A value comes from `--set NAME=VALUE`, else from the environment, else from the default.
2. The environment variable is the declared `env`, else KMIGRATE_VAR_NAME.
3. A text that is `${name}` alone takes the variable's value and type. Within a text, the value is written out, a list
   with commas.
4. A secret's value is never shown: `hide` puts *** in its place.
5. `$${` stands for `${`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from kmigrate.workflow.playbook.fields import Field, Fields, is_text, one_of, switch, text

__all__ = [
    "DECLARATION",
    "Undefined",
    "Value",
    "Values",
    "Variable",
    "declared",
    "environment_name",
    "is_variable_name",
    "kind_of",
    "read_value",
]

Kind = Literal["text", "list", "number", "boolean"]
Value = str | int | float | bool | list[str]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_USE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_HIDDEN = "***"

_ANY = Field("a text, a list of texts, a number, or true or false", lambda value: kind_of(value) is not None)
DECLARATION: Fields = {
    "default": _ANY,
    "type": one_of(("text", "list", "number", "boolean"), meaning="type of the value (else the default's)"),
    "env": text("the name of an environment variable", meaning="environment variable (else KMIGRATE_VAR_NAME)"),
    "secret": switch(meaning="never show the value"),
    "description": text(meaning="what the value is for"),
}
"""The keys of a table `[variables.NAME]`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared variable."""

    name: str
    kind: Kind
    default: Value | None = None
    env: str = ""
    secret: bool = False
    description: str = ""


class Undefined(Exception):
    """A use of a variable that cannot be filled in; the message says why."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of all variables of a playbook, and the declarations."""

    variables: Mapping[str, Variable]
    values: Mapping[str, Value]

    @property
    def environment(self) -> dict[str, str]:
        """The values as environment variables, for the commands of a playbook."""
        return {environment_name(name): _written(value) for name, value in self.values.items()}

    @property
    def shown(self) -> dict[str, Value]:
        """The values for a person's eyes."""
        return {name: _HIDDEN if self.variables[name].secret else value for name, value in self.values.items()}

    def fill(self, value: Any) -> Any:
        """Return a value of TOML with all variables filled in; an element of a list may become several."""
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, list):
            return value
        filled: list[Any] = []
        for each in value:
            made = self.fill(each)
            filled += made if isinstance(each, str) and isinstance(made, list) else [made]
        return filled

    def fill_words(self, words: list[str]) -> list[str]:
        """Return the words of a command; a secret is refused, because every user of the machine sees the words."""
        for name in (use[2] for word in words for use in _USE.finditer(word) if use[2] is not None):
            if name in self.variables and self.variables[name].secret:
                raise Undefined(f"{name} is a secret, and a command line is no secret: read ${environment_name(name)}")
        return [each if isinstance(each, str) else _written(each) for each in self.fill(words)]

    def hide(self, shown: str) -> str:
        """Return a text without the values of secrets; longer values first, because a value may begin another value."""
        secrets = [value for name, value in self.values.items() if self.variables[name].secret]
        parts = {part for value in secrets for part in (_written(value), *(value if isinstance(value, list) else ()))}
        for part in sorted(filter(None, parts), key=len, reverse=True):
            shown = shown.replace(part, _HIDDEN)
        return shown

    def hide_json(self, value: Any) -> Any:
        """Return a document of JSON without the values of secrets."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.hide_json(each) for key, each in value.items()}
        return [self.hide_json(each) for each in value] if isinstance(value, list | tuple) else value

    def _text(self, given: str) -> Value:
        use = _USE.fullmatch(given)
        if use and use[2] is not None:
            return self._value(use[2])

        def written(use: re.Match[str]) -> str:
            if use[1]:
                return use[1]
            return _written(self._value(use[2]))

        return _USE.sub(written, given)

    def _value(self, name: str) -> Value:
        if name not in self.values:
            raise Undefined(f"there is no variable {name!r}; $${{ stands for ${{ itself")
        return self.values[name]


def is_variable_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def environment_name(name: str) -> str:
    return "KMIGRATE_VAR_" + name.upper().replace("-", "_")


def kind_of(value: Any) -> Kind | None:
    """Return the type of a default, or None if a variable can have no such value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) and all(map(is_text, value)) else None


def declared(name: str, table: Mapping[str, Any]) -> Variable:
    """Return the variable that a checked table `[variables.NAME]` declares."""
    kind = table.get("type") or kind_of(table.get("default")) or "text"
    return Variable(
        name,
        cast("Kind", kind),
        table.get("default"),
        table.get("env", ""),
        table.get("secret", False),
        table.get("description", ""),
    )


def read_value(variable: Variable, given: Mapping[str, str], environment: Mapping[str, str]) -> Value | None:
    """Return a variable's value by rule 1, or None without a value; raise ValueError for a text of another type."""
    if variable.name in given:
        return _READ[variable.kind](given[variable.name])
    from_environment = environment.get(variable.env or environment_name(variable.name))
    return variable.default if from_environment is None else _READ[variable.kind](from_environment)


def _read_number(value: str) -> float:
    made = float(value)
    if not math.isfinite(made):
        raise ValueError
    return int(value) if value.strip().lstrip("+-").isdecimal() else made


def _read_boolean(value: str) -> bool:
    return {"true": True, "false": False}[value]


def _read_list(value: str) -> list[str]:
    return [each.strip() for each in value.split(",") if each.strip()]


_READ: Mapping[Kind, Callable[[str], Value]] = {
    "text": str,
    "list": _read_list,
    "number": _read_number,
    "boolean": _read_boolean,
}


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list) else str(value)
