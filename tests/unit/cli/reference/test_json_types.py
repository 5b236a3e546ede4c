"""JSON schemas of Python types, by the documents that `asdict` makes of values of the types."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import pytest
from jsonschema import Draft202012Validator

from kmigrate.cli.reference.json_types import SchemaOfTypes

Offset = NewType("Offset", int)


class Colour(StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclass
class Inner:
    """An inner value.

    More about the value.
    """

    name: str
    """The name
    of the value."""
    size: int = 0


@dataclass
class Outer:
    offset: Offset
    colours: frozenset[Colour]
    point: Point
    inners: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner | None] = field(default_factory=dict)
    pairs: Sequence[tuple[int, str]] = ()
    anything: Any = None
    choice: Literal["a", "b"] | None = None


class Base(TypedDict):
    """A document."""

    a: int
    """the a"""


class Derived(Base):
    """A document with more."""

    b: NotRequired[str]
    """the b"""


def _schema(kind: type, **merged: tuple[type, ...]) -> dict[str, Any]:
    made = SchemaOfTypes({kind: merged["merged"]} if merged else None)
    return {**made.of(kind), "$defs": made.definitions}


def test_a_printed_dataclass_is_valid() -> None:
    value = Outer(Offset(5), frozenset({Colour.RED}), Point(1, 2.5), (Inner("n"),), {"x": None}, [(1, "y")], {}, "b")
    document = json.loads(json.dumps(dataclasses.asdict(value), default=list))
    schema = _schema(Outer)
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)
    for change in ({"offset": "5"}, {"colours": ["blue"]}, {"point": [1]}, {"pairs": [[1, 2]]}, {"choice": "c"}):
        assert not Draft202012Validator(schema).is_valid(document | change), change
    for name in document:
        assert not Draft202012Validator(schema).is_valid({key: each for key, each in document.items() if key != name})


def test_docstrings_become_descriptions() -> None:
    inner = _schema(Inner)["$defs"]["Inner"]
    assert inner["description"] == "An inner value."
    assert inner["properties"]["name"] == {"type": "string", "description": "The name of the value"}
    assert "description" not in inner["properties"]["size"]


def test_a_typed_dictionary_has_the_fields_and_descriptions_of_its_base_and_of_merged_classes() -> None:
    derived = _schema(Derived, merged=(Inner,))["$defs"]["Derived"]
    assert list(derived["properties"]) == ["name", "size", "a", "b"]
    assert derived["required"] == ["name", "size", "a"]
    assert derived["properties"]["a"]["description"] == "the a"


def test_a_type_that_json_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        _schema(complex)
