"""Checks before kio reads a message: every announced length must fit, and unknown tagged fields are removed.

kio allocates an array before reading its first element. If a request of forty bytes announces 2^31 elements, the
allocation fails, which ends the process instead of the request. So this module walks the lengths first, after the same
schemas. The number of elements is limited, too: a single byte on the wire is an object of a hundred bytes in memory.

A newer peer may send tagged fields in an existing version, which kio refuses. The walk cuts them out; their number is
limited, because the walk remembers each until the end. A walk is a list of steps: skip a number of bytes, a text, an
array of steps, tagged fields. Consecutive fixed fields are a single step, as is an array of fixed elements.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.static.constants import EntityType

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import MOST_TAGS
from kmigrate.protocol.primitives import I16, I32, read_length, read_uvarint, write_uvarint

__all__ = ["checked"]

_MOST_ANSWERED, _MOST_ASKED = 1_000_000, 100_000
"""Most array elements and tagged fields of a response, and of a request.

Metadata of 100,000 partitions with three replicas stays below. All clients wait while anybody's request is read.
"""
_FIXED_FOR_ONE = 10
"""Number of fixed elements of a request that count as a single element: 0.01 to 0.2 µs each, other elements 1 to 4 µs.

So a request may ask for all partitions of a large estate, as some exporters do for each group.
"""
_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}

Buffer = bytes | bytearray | memoryview
_Change = tuple[int, int, bytes]
"""Start position, end position, and the bytes that replace the bytes between them."""


class _Do(IntEnum):
    SKIP = 0
    STRING = 1
    BYTES = 2
    ARRAY = 3
    STRUCTURE = 4
    OPTIONAL = 5
    """A structure behind a byte that says whether the structure is present."""
    TAGS = 6


class _Step(NamedTuple):
    do: _Do
    size: int = 0
    """Bytes to skip; for an array, the bytes of each element if all elements have that size."""
    steps: tuple[_Step, ...] = ()
    """The steps of each element, or of the structure."""
    tags: Mapping[int, tuple[_Step, ...]] = MappingProxyType({})


def checked(kind: type[Any], data: Buffer, at: int) -> bytes:
    """Return a message of class `kind` without unknown tagged fields; refuse a message that announces too much."""
    asked = kind.__type__ is EntityType.request
    walk = _Walk(data, bool(kind.__flexible__), *((_MOST_ASKED, _FIXED_FOR_ONE) if asked else (_MOST_ANSWERED, 1)))
    try:
        walk.walk(_steps(typing.cast("Any", kind)), at)
    except (struct.error, IndexError):
        raise ProtocolViolation("short-message", f"{kind.__name__} v{kind.__version__} ends too early") from None
    view = memoryview(data)
    if not walk.changes:
        return bytes(view[at:])
    out = bytearray()
    for begin, end, instead in sorted(walk.changes):
        out += view[at:begin]
        out += instead
        at = end
    return bytes(out + view[at:])


class _Walk:
    """A single message's walk: the bytes, and the number of elements that are still allowed."""

    def __init__(self, data: Buffer, flexible: bool, most: int, fixed_for_one: int) -> None:
        self._data = data
        self._flexible = flexible
        self._most = self._left = most
        self._fixed_for_one = fixed_for_one
        self.changes: list[_Change] = []
        """The changes that remove all unknown tags; no two changes overlap."""

    def walk(self, steps: tuple[_Step, ...], at: int) -> int:
        """Return the end of the steps that begin at `at`."""
        for step in steps:
            if step.do is _Do.SKIP:
                at += step.size
            elif step.do is _Do.ARRAY:
                at = self._array(step, at)
            elif step.do is _Do.TAGS:
                at = self._tags(step, at)
            elif step.do is _Do.STRUCTURE:
                at = self.walk(step.steps, at)
            elif step.do is _Do.OPTIONAL:
                at = self.walk(step.steps, at + 1) if self._data[at] == 1 else at + 1
            else:
                size, at = read_length(self._data, at, self._flexible, I16 if step.do is _Do.STRING else I32)
                at += size
        if at > len(self._data):
            raise ProtocolViolation("short-message", "a field runs past its message")
        return at

    def _array(self, step: _Step, at: int) -> int:
        count, at = read_length(self._data, at, self._flexible)
        self._left -= count // self._fixed_for_one if step.size else count
        if count > len(self._data) - at:
            raise ProtocolViolation("absurd-count", f"a message announces an array of {count} elements")
        if self._left < 0:
            raise ProtocolViolation("absurd-count", f"a message announces more than {self._most} elements in all")
        if step.size:
            return at + count * step.size
        for _ in range(count):
            at = self.walk(step.steps, at)
        return at

    def _tags(self, step: _Step, at: int) -> int:
        begin = at
        count, at = read_uvarint(self._data, at)
        self._left -= count
        if count > MOST_TAGS or self._left < 0:
            raise ProtocolViolation("bad-tags", f"{count} tagged fields in one place")
        counted, known = at, 0
        for _ in range(count):
            entry = at
            tag, at = read_uvarint(self._data, at)
            size_at = at
            size, at = read_uvarint(self._data, at)
            if at + size > len(self._data):
                raise ProtocolViolation("bad-tags", "a tagged field runs past its message")
            if tag in step.tags:
                known += 1
                before = len(self.changes)
                self.walk(step.tags[tag], at)
                grown = sum(len(instead) - (end - start) for start, end, instead in self.changes[before:])
                if grown:
                    self.changes.append((size_at, at, write_uvarint(size + grown)))
            else:
                self.changes.append((entry, at + size, b""))
            at += size
        if known < count:
            self.changes.append((begin, counted, write_uvarint(known)))
        return at


@cache
def _steps(kind: Any) -> tuple[_Step, ...]:
    """Return the walk over a message or over an element of a message."""
    out: list[_Step] = []
    tags: dict[int, tuple[_Step, ...]] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        step = _step(hints[field.name], str(field.metadata.get("kafka_type", "")))
        if "tag" in field.metadata:
            tags[int(field.metadata["tag"])] = (step,)
        elif step.do is _Do.SKIP and out and out[-1].do is _Do.SKIP:
            out[-1] = _Step(_Do.SKIP, out[-1].size + step.size)
        else:
            out.append(step)
    if kind.__flexible__:
        out.append(_Step(_Do.TAGS, tags=tags))
    return tuple(out)


def _step(hint: Any, kafka_type: str) -> _Step:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    for choice in choices:
        if typing.get_origin(choice) is tuple:
            steps = _element(typing.get_args(choice)[0], kafka_type)
            fixed = len(steps) == 1 and steps[0].do is _Do.SKIP
            return _Step(_Do.ARRAY, steps[0].size if fixed else 0, steps)
        if dataclasses.is_dataclass(choice):
            do = _Do.OPTIONAL if len(choices) > 1 else _Do.STRUCTURE
            return _Step(do, steps=_steps(typing.cast("Any", choice)))
    return _plain(kafka_type)


def _element(kind: Any, kafka_type: str) -> tuple[_Step, ...]:
    return _steps(typing.cast("Any", kind)) if dataclasses.is_dataclass(kind) else (_plain(kafka_type),)


def _plain(kafka_type: str) -> _Step:
    if kafka_type in _FIXED:
        return _Step(_Do.SKIP, _FIXED[kafka_type])
    return _Step(_Do.STRING if kafka_type == "string" else _Do.BYTES)
