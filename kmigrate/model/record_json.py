"""Encodes and decodes the JSON of every record in the state log and the presence log."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache, partial
from math import isfinite
from typing import Any, TypeVar
from uuid import UUID

from kmigrate.errors import StateLogBroken
from kmigrate.model.presences import (
    ControllerPresence,
    FencedProgress,
    GroupReport,
    MirrorPresence,
    PartitionProgress,
    RehearsalPresence,
    RouterPresence,
)
from kmigrate.model.records import (
    AssignmentRecord,
    BarrierRecord,
    DirectRecord,
    GroupRecord,
    LateRecord,
    LeaseRecord,
    LinkRecord,
    MisplacedRecord,
    ProducerMark,
    RouterRecord,
    StrayRecord,
    TopicRecord,
    TransactionRecord,
    VerifiedRecord,
)
from kmigrate.model.reports import ReportRecord

__all__ = [
    "KINDS",
    "Record",
    "decode_part",
    "decode_record",
    "encode_record",
    "number_of",
    "plain",
]

Record = (
    LinkRecord
    | TopicRecord
    | GroupRecord
    | BarrierRecord
    | DirectRecord
    | LateRecord
    | VerifiedRecord
    | TransactionRecord
    | RouterRecord
    | StrayRecord
    | LeaseRecord
    | AssignmentRecord
    | MisplacedRecord
    | ReportRecord
    | MirrorPresence
    | FencedProgress
    | RouterPresence
    | ControllerPresence
    | RehearsalPresence
)

KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in typing.get_args(Record)}


def encode_record(record: Record) -> dict[str, Any]:
    """Return the JSON object of a record, with its kind."""
    return {"kind": type(record).__name__, **plain(record)}


_Part = TypeVar("_Part")
_BOUNDED = frozenset({int, float})
"""Types whose values in Python may exceed the range of a record's values."""
_TOP = 1 << 63
_SCALARS = frozenset({int, str, float, bool, type(None)})


@cache
def _named_defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return a dataclass's field names, each with the value that may be left out; None for another type.

    Only partitions' progress and reports on groups leave values out: a presence's message may have thousands of them.
    """
    if not dataclasses.is_dataclass(kind):
        return None
    nothing = object()
    sparse = kind in (PartitionProgress, GroupReport)
    return tuple((f.name, f.default if sparse else nothing) for f in dataclasses.fields(kind))


def plain(value: Any) -> Any:
    """Return a dataclass, or a value of its fields, as JSON."""
    kind: Any = type(value)
    if kind in _SCALARS:  # nearly all values, and a mirror reports them of each partition twice a second
        return value
    if kind is ProducerMark:  # a record may hold thousands of marks: names would be most of its bytes
        return [value.producer_id, value.epoch, value.last_sequence]
    if (fields := _named_defaults(kind)) is not None:
        return {
            name: given if type(given) in _SCALARS else plain(given)
            for name, default in fields
            if (given := getattr(value, name)) != default
        }
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [plain(v) for v in value]
    return value


def decode_record(data: Mapping[str, Any]) -> Record:
    """Return the record of a JSON object; refuse unknown kinds and missing fields, and ignore unknown fields."""
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        raise StateLogBroken(
            "unknown-record",
            f"the state log holds a record of kind {data.get('kind')!r}, which this version does not know",
            still_true="nothing was changed",
            next_step="use the version of kmigrate that wrote it",
        )
    return decode_part(kind, data)


def decode_part(kind: type[_Part], data: Any) -> _Part:
    """Return a record, or a part of a record, from its JSON; raise StateLogBroken if the JSON does not fit."""
    try:
        part = _reader(typing.cast("Any", kind))(data)
        if isinstance(part, TopicRecord):
            _check_topic(part)
        return typing.cast("_Part", part)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise StateLogBroken(
            "malformed-record", f"a {kind.__name__} of the state log cannot be read: {error!r}"
        ) from error


_MOST_PARTITIONS = 1 << 20
"""Upper bound for a topic's partitions: more than a cluster can have."""


def _check_topic(record: TopicRecord) -> None:
    """Raise ValueError for a topic that no cluster has: readers make UUIDs of topic ids, and lists of partitions."""
    if not 0 <= record.partitions <= _MOST_PARTITIONS:
        raise ValueError(f"{record.partitions} partitions")
    for topic_id in (record.source_topic_id, record.target_topic_id):
        if topic_id:
            UUID(topic_id)


_Read = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> _Read:
    """Return the function that makes a value of a type from JSON; cached by type, because 100,000 records use it."""
    if kind is ProducerMark:
        return _read_mark
    if dataclasses.is_dataclass(kind):
        return _fields_reader(typing.cast("type[Any]", kind))
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        given = _reader(next(a for a in typing.get_args(kind) if a is not type(None)))
        return lambda data: None if data is None else given(data)
    if origin is tuple:
        each = _reader(typing.get_args(kind)[0])
        return lambda data: tuple([each(v) for v in _listed(data)])
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_value = typing.get_args(kind)
        value = _reader(of_value)
        key = number_of if of_key is int else of_key
        return lambda data: {key(k): value(v) for k, v in data.items()}
    if kind is float:
        return _finite
    if kind is int:
        return _number
    if not isinstance(kind, type):
        return lambda data: data
    other = kind if issubclass(kind, StrEnum) else partial(_mistyped, kind)
    return lambda data: data if isinstance(data, kind) else other(data)


def _read_mark(data: Any) -> ProducerMark:
    producer_id, epoch, last_sequence = data
    if not type(producer_id) is type(epoch) is type(last_sequence) is int:
        raise TypeError(f"expected three numbers, found {data!r}")
    return ProducerMark(producer_id, epoch, last_sequence)


def _fields_reader(kind: type[Any]) -> _Read:
    hints = typing.get_type_hints(kind)
    # A value of the field's own type needs no reader, unless the type is bounded; nor does the JSON of a default value.
    fields = {
        f.name: (
            None if hints[f.name] in _BOUNDED else hints[f.name],
            _plain_default(f),
            _reader(hints[f.name]),
        )
        for f in dataclasses.fields(kind)
    }

    def read(data: Any) -> Any:
        known: dict[str, Any] = {}
        for name, value in data.items():
            if (field := fields.get(name)) is not None:
                of, default, reader = field
                if type(value) is of:
                    known[name] = value
                elif value != default or type(value) is not type(default):
                    known[name] = reader(value)
        return kind(**known)

    return read


def _plain_default(field: dataclasses.Field[Any]) -> Any:
    """Return the JSON of a field's default value; for a field without one, a value that equals nothing."""
    if field.default_factory is not dataclasses.MISSING:
        return plain(field.default_factory())
    return object() if field.default is dataclasses.MISSING else plain(field.default)


def _listed(data: Any) -> Any:
    """Return a list of JSON; a text is no list, though Python iterates over its characters."""
    return data if isinstance(data, list | tuple) else _mistyped(list, data)


def number_of(text: Any) -> int:
    """Return the number that a key of JSON stands for."""
    return _number(int(text))


def _number(data: Any) -> int:
    """Return a whole number of 64 bits: a larger number is no offset, time or count, and breaks calculations."""
    if type(data) is not int or not -_TOP <= data < _TOP:
        return int(_mistyped(int, data))
    return data


def _finite(data: Any) -> float:
    """Return a number that is neither infinite nor beyond the range of floats."""
    number = float(data)
    if not isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _mistyped(kind: type[Any], data: Any) -> Any:
    raise TypeError(f"expected {kind.__name__}, found {data!r:.100}")
