"""Builds the router's own answers: kio messages whose unnamed fields are empty, framed for the client."""

from __future__ import annotations

import dataclasses
import datetime as dt
import types
import typing
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import encode_body

__all__ = ["blank", "element", "frame_answer", "part"]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def blank(kind: type[Any], **values: Any) -> Any:
    """Return a message of class `kind` with `values`, every other field empty.

    Values whose names the class does not have are left out. So a single call serves all versions of a message.
    """
    given: dict[str, Any] = {}
    hints = _hints(typing.cast("Any", kind))
    for field in dataclasses.fields(kind):
        if field.name in values:
            value = values[field.name]
            given[field.name] = ErrorCode(value) if field.name.endswith("error_code") else value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            given[field.name] = _empty(hints[field.name])
    return kind(**given)


def _empty(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return None
    if origin is tuple:
        return ()
    if hint is ErrorCode:
        return ErrorCode(0)
    if dataclasses.is_dataclass(hint):
        return blank(typing.cast("type[Any]", hint))
    if issubclass(hint, dt.timedelta):
        return dt.timedelta(0)
    for plain in (bool, int, str, bytes, float):
        if issubclass(hint, plain):
            return plain()
    raise ProtocolViolation("no-empty-value", f"a field of type {hint!r} has no empty value")


def element(kind: type[Any], name: str) -> type[Any]:
    """Return the class of the elements of a message's array field."""
    found: type[Any] = _element(typing.cast("Any", kind), name)
    return found


@cache
def _element(kind: Any, name: str) -> type[Any]:
    for candidate in (hint := _hints(typing.cast("Any", kind))[name], *typing.get_args(hint)):
        args = typing.get_args(candidate)
        if typing.get_origin(candidate) is tuple and isinstance(args[0], type):
            found: type[Any] = args[0]
            return found
    raise ProtocolViolation("no-array", f"{kind.__name__}.{name} is not an array of messages")


def part(kind: type[Any], name: str) -> type[Any]:
    """Return the class of a message's field that holds a message or None."""
    hint = _hints(typing.cast("Any", kind))[name]
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    raise ProtocolViolation("no-message", f"{kind.__name__}.{name} is not a message")


def frame_answer(message: Any, correlation: int) -> bytes:
    """Return a whole response frame: size, correlation id, header tags where the version has them, body."""
    body = encode_body(message)
    tags = b"\0" if type(message).__flexible__ else b""
    size = 4 + len(tags) + len(body)
    return size.to_bytes(4, "big") + correlation.to_bytes(4, "big", signed=True) + tags + body
