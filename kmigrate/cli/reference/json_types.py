"""JSON schemas of Python types: dataclasses as `asdict` prints them, typed dictionaries, and what these hold.

The docstring of a class and the docstrings of its fields become descriptions. A field of a dataclass is always printed,
so every field is required; the libraries that make schemas from dataclasses leave out fields with a default.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from kmigrate.cli.reference.source import parse_source

__all__ = ["SchemaOfTypes"]

_SCALARS: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    object: {},
    Any: {},
}
_ARRAYS = (list, tuple, set, frozenset, Sequence)


class SchemaOfTypes:
    """Makes schemas, and keeps the definition of each class that the schemas refer to."""

    def __init__(self, merged: Mapping[type, tuple[type, ...]] | None = None) -> None:
        """Make an empty collection; `merged` names the classes whose fields a class has beside its own."""
        self.definitions: dict[str, dict[str, Any]] = {}
        self._merged = merged or {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if hasattr(kind, "__supertype__"):  # a NewType
            return self.of(kind.__supertype__)
        if origin in (typing.Union, types.UnionType):
            return self._any_of(arguments)
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin in _ARRAYS:
            return self._array(origin, arguments)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and issubclass(kind, tuple):  # a NamedTuple, which JSON has as an array
            return self._array(tuple, tuple(typing.get_type_hints(kind).values()))
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return self._reference(kind)
        raise TypeError(f"no JSON schema is known for {kind!r}")

    def _any_of(self, kinds: Sequence[Any]) -> dict[str, Any]:
        made = [self.of(each) for each in kinds]
        if all(each.keys() == {"type"} for each in made):
            return {"type": [each["type"] for each in made]}
        return {"anyOf": made}

    def _array(self, origin: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if origin is tuple and Ellipsis not in arguments:
            made = [self.of(each) for each in arguments]
            return {"type": "array", "prefixItems": made, "minItems": len(made), "maxItems": len(made)}
        return {"type": "array", "items": self.of(arguments[0])}

    def _reference(self, kind: type) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.definitions:
            self.definitions[name] = {}  # a class may hold itself
            self.definitions[name] = self._object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, kind: type) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for part in (*self._merged.get(kind, ()), kind):
            described = _descriptions(part)
            for name, hint, needed in _fields(part):
                schema = self.of(hint)
                properties[name] = {"description": described[name], **schema} if name in described else schema
                required += [name] if needed else []
        made: dict[str, Any] = {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
        about = inspect.cleandoc(kind.__doc__ or "").split("\n\n", maxsplit=1)[0]
        if about and not about.startswith(f"{kind.__name__}("):  # the text that a dataclass without a docstring gets
            made = {"description": " ".join(about.split()), **made}
        return made


def _fields(kind: type) -> list[tuple[str, Any, bool]]:
    """Return the name, type and presence of each field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        return [(field.name, hints[field.name], True) for field in dataclasses.fields(kind)]
    made = []
    for name, hint in hints.items():  # `__required_keys__` does not see through annotations that are text
        optional = typing.get_origin(hint) is typing.NotRequired
        made.append((name, typing.get_args(hint)[0] if optional else hint, not optional))
    return made


def _descriptions(kind: type) -> Mapping[str, str]:
    """Return the docstring of each field, inherited fields included: the text that follows the field in the source."""
    classes, found = _classes(kind.__module__), dict[str, str]()
    waiting = [kind.__name__]
    while waiting:
        body = classes.get(waiting.pop())
        if body is not None:
            found = _docstrings(body.body) | found
            waiting += [base.id for base in body.bases if isinstance(base, ast.Name)]
    return found


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """Return the classes of a module by name; a typed dictionary itself does not know its bases."""
    tree = parse_source(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _docstrings(body: Sequence[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            value = text.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[field.target.id] = " ".join(value.value.split()).removesuffix(".")
    return found
