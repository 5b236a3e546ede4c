"""Keys of a playbook's steps: the allowed values of a key in words, as a check and as a JSON schema.

The keys of a verb are the flags of the command line. `kmigrate.cli` reads these flags once, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

__all__ = ["Field", "Fields", "is_text", "names", "number", "one_of", "seconds", "switch", "text"]

_MOST_SECONDS = 366 * 86_400
"""Longest time of a step; system clocks do not take much longer times."""


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a step: the allowed values, the meaning, and whether the key may be left out."""

    expected: str
    check: Callable[[Any], bool]
    schema: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    meaning: str = ""


Fields = Mapping[str, Field]


def is_text(value: Any) -> bool:
    """Return whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def text(expected: str = "a text", *, required: bool = False, meaning: str = "") -> Field:
    return Field(expected, is_text, {"type": "string", "minLength": 1}, required, meaning)


def names(expected: str = "a list of names", *, required: bool = False, meaning: str = "") -> Field:
    schema = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
    return Field(expected, _is_names, schema, required, meaning)


def switch(*, meaning: str = "") -> Field:
    return Field("true or false", _is_switch, {"type": "boolean"}, meaning=meaning)


def number(expected: str = "a number from 0", *, meaning: str = "") -> Field:
    return Field(expected, _is_number, {"type": "integer", "minimum": 0}, meaning=meaning)


def seconds(*, meaning: str = "") -> Field:
    check = partial(_is_number, kind=int | float, most=_MOST_SECONDS)
    schema = {"type": "number", "minimum": 0, "maximum": _MOST_SECONDS}
    return Field("seconds as a number, of a year at most", check, schema, meaning=meaning)


def one_of(choices: Sequence[str], *, meaning: str = "") -> Field:
    expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
    return Field(expected, lambda value: value in choices, {"enum": list(choices)}, meaning=meaning)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(is_text, value))


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any, *, kind: Any = int, most: float = float("inf")) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 <= value <= most
