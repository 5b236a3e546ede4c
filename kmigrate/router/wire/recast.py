"""Converts a message to another version of its API, for a cluster that does not speak the client's version."""

from __future__ import annotations

import dataclasses
from typing import Any

from kmigrate.router.wire.blank import blank, element, part

__all__ = ["recast"]


def recast(message: Any, kind: type[Any]) -> Any:
    """Return the message as a message of class `kind`: unknown fields are left out, and new fields are empty."""
    if type(message) is kind:
        return message
    return blank(kind, **{field.name: _value(message, field.name, kind) for field in dataclasses.fields(kind)
                          if hasattr(message, field.name)})  # fmt: skip


def _value(message: Any, name: str, kind: type[Any]) -> Any:
    value = getattr(message, name)
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        inner = element(kind, name)
        return tuple(recast(each, inner) for each in value)
    if dataclasses.is_dataclass(value):
        return recast(value, part(kind, name))
    return value
