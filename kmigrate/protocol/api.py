"""The Kafka messages that kmigrate itself sends, one version each, and their encoding by kio.

One version per API keeps both ends of the code simple: the lowest version with the needed fields, so that Kafka 2.8
(source) and 4.x (target) both support that version (D6).

| api | version | reason |
|---|---|---|
| Produce | 9 | flexible, by topic name; written by hand in `hot` |
| Fetch | 12 | last_fetched_epoch reports truncation (W7); by hand in `hot` |
| ListOffsets | 5 | leader epochs, replica_id −2 for the log end (V1); by hand in `offsets` |
| Metadata | 10 | topic ids; responses by hand in `metadata` |
| FindCoordinator | 3 | key types |
| InitProducerId | 4 | producer id and epoch in the request |
| DeleteRecords | 2 | |
| WriteTxnMarkers | 1 | flexible; the version measured in M2 |
| AddPartitionsToTxn, EndTxn | 3 | newest version for clients; newer versions are for brokers (D6) |
| DescribeProducers | 0 | Kafka ≥ 2.8 |
| IncrementalAlterConfigs | 1 | the only admin call that confluent-kafka cannot make: default broker resource (W1) |
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, cast

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from kmigrate.errors import Failed, ProtocolViolation
from kmigrate.protocol.described import read_described
from kmigrate.protocol.frames import RequestHead, encode_request_head, response_body_offset
from kmigrate.protocol.lengths import checked

__all__ = [
    "API_NAMES",
    "ApiKey",
    "Message",
    "answer_type",
    "blank",
    "build_answer",
    "change_each",
    "decode_answer",
    "decode_body",
    "decode_request",
    "element_type",
    "encode_body",
    "encode_request",
    "entity",
    "field_type",
    "frame_answer",
    "frame_request",
    "is_flexible",
    "millis_of",
    "read_answer",
    "recast",
    "replace",
]


class ApiKey(IntEnum):
    """An API key of the Kafka protocol, of the APIs on a broker's client listener."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


API_NAMES: dict[int, str] = dict(api_key_map)


class Message:
    """A message or a part, for type checkers; at run time one of kio's frozen dataclasses, from Kafka's schemas."""

    __type__: ClassVar[EntityType]
    __api_key__: ClassVar[int]
    __version__: ClassVar[int]
    __flexible__: ClassVar[bool]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    if TYPE_CHECKING:

        def __init__(self, **fields: object) -> None: ...
        def __getattr__(self, name: str) -> Any: ...


# classes of messages

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _cached(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Cache the results of a function of message classes; for mypy, classes are not hashable as `cache` demands."""
    return cast("Callable[_P, _R]", cache(function))


@cache
def entity(api_key: int, version: int, kind: str) -> type[Message]:
    """Return the kio class of a message: `kind` is request or response."""
    name = API_NAMES[api_key]
    module = importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")
    title = "".join(part.capitalize() for part in name.split("_"))
    found: type[Message] = getattr(module, title + kind.capitalize())
    return found


def answer_type(request: RequestHead | type[Message]) -> type[Message]:
    """Return the class of the answer to a request, in the request's version; a head or a class says which request."""
    if isinstance(request, RequestHead):
        return entity(request.api_key, request.version, "response")
    return entity(request.__api_key__, request.__version__, "response")


@_cached
def _field_types(kind: type[Message]) -> Mapping[str, tuple[object, ...]]:
    """Return the type of each field of a message; several types where the field is a union."""
    return {
        name: typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        for name, hint in typing.get_type_hints(kind).items()
    }


@_cached
def element_type(kind: type[Message], name: str) -> type[Message]:
    """Return the class of the elements of a message's array field."""
    for choice in _field_types(kind)[name]:
        if typing.get_origin(choice) is tuple:
            found: type[Message] = typing.get_args(choice)[0]
            return found
    raise Failed("kio-schema", f"{kind.__name__}.{name} is not an array of messages")


@_cached
def field_type(kind: type[Message], name: str) -> type[Message]:
    """Return the class of a message's field that holds a message or None."""
    for choice in _field_types(kind)[name]:
        if dataclasses.is_dataclass(choice):
            return cast("type[Message]", choice)
    raise Failed("kio-schema", f"{kind.__name__}.{name} is not a message")


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version's headers have tagged fields (KIP-482)."""
    return bool(entity(api_key, version, "request").__flexible__)


# messages


def replace(message: Message, **fields: object) -> Message:
    """Return a copy of a message with other values in some fields."""
    return cast("Message", dataclasses.replace(cast("Any", message), **fields))


def change_each(message: Message, path: tuple[str, ...], change: Callable[[Message], Message]) -> Message:
    """Return a message with changed elements of a nested array; `path` names the arrays, the outermost first."""
    name, *inner = path
    each = partial(change_each, path=tuple(inner), change=change) if inner else change
    elements = getattr(message, name)
    return message if elements is None else replace(message, **{name: tuple(map(each, elements))})


def blank(kind: type[Message], **fields: object) -> Message:
    """Return a `kind` with these fields, others empty; unknown fields are left out, so a call serves all versions."""
    given: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.name in fields:
            value = fields[field.name]
            given[field.name] = ErrorCode(cast("int", value)) if field.name.endswith("error_code") else value
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            given[field.name] = _empty(_field_types(kind)[field.name])
    return kind(**given)


def _empty(choices: tuple[object, ...]) -> object:
    if len(choices) > 1:
        return None
    (hint,) = choices
    if typing.get_origin(hint) is tuple:
        return ()
    if hint is ErrorCode:
        return ErrorCode(0)
    if dataclasses.is_dataclass(hint):
        return blank(cast("type[Message]", hint))
    for plain in (dt.timedelta, bool, int, str, bytes, float):
        if isinstance(hint, type) and issubclass(hint, plain):
            return plain()
    raise ProtocolViolation("no-empty-value", f"a field of type {hint!r} has no empty value")


def recast(message: Message, kind: type[Message]) -> Message:
    """Return the message in another version of its API: unknown fields are left out, and new fields are empty."""
    if type(message) is kind:
        return message
    shared = (field.name for field in dataclasses.fields(kind) if hasattr(message, field.name))
    return blank(kind, **{name: _recast_field(getattr(message, name), name, kind) for name in shared})


def _recast_field(value: object, name: str, kind: type[Message]) -> object:
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return tuple(recast(each, element_type(kind, name)) for each in value)
    return recast(cast("Message", value), field_type(kind, name)) if dataclasses.is_dataclass(value) else value


def millis_of(value: dt.datetime | int | None) -> int:
    """Return a kio time in milliseconds since the epoch, −1 for none; kio has some times as numbers."""
    if isinstance(value, int):
        return value
    return -1 if value is None else round(value.timestamp() * 1000)


# bytes

_reader: Callable[[type[Message]], Callable[[bytes, int], tuple[object, int]]] = _cached(cast("Any", entity_reader))
_writer: Callable[[type[Message]], Callable[[io.BytesIO, Message], None]] = _cached(cast("Any", entity_writer))


def encode_body(message: Message) -> bytes:
    """Return the bytes of a kio message's body, without header."""
    out = io.BytesIO()
    _writer(type(message))(out, message)
    return out.getvalue()


def decode_body(kind: type[Message], frame: bytearray | memoryview, at: int) -> Message:
    """Read a message of class `kind` from a frame at the position of the body."""
    body = checked(kind, frame, at)
    by_hand = kind.__api_key__ == ApiKey.DESCRIBE_TRANSACTIONS and kind.__type__ is EntityType.response
    try:
        value, _ = read_described(body, 0) if by_hand else _reader(kind)(body, 0)
    except Exception as error:  # kio raises several kinds of errors with the same meaning for us
        raise ProtocolViolation(
            "undecodable-message", f"{kind.__name__} v{kind.__version__} cannot be read: {error}"
        ) from error
    message = cast("Message", value)
    _check_nulls(message, kind)
    return message


def decode_request(frame: bytearray, head: RequestHead) -> Message:
    """Return the message of a client's request."""
    return decode_body(entity(head.api_key, head.version, "request"), frame, head.body)


def decode_answer(kind: type[Message], frame: bytearray) -> Message:
    """Read a whole response frame as a message of class `kind`."""
    return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))


def read_answer(request: RequestHead | type[Message], frame: bytearray) -> Message:
    """Return the answer to a request; a head or a class says which request."""
    return decode_answer(answer_type(request), frame)


def encode_request(frame: bytearray, head: RequestHead, message: Message) -> bytearray:
    """Return a client's frame with another body."""
    body = encode_body(message)
    return bytearray((head.body - 4 + len(body)).to_bytes(4, "big") + frame[4 : head.body] + body)


def frame_request(message: Message, correlation: int, client_id: str | None) -> bytes:
    """Return a request of the router's own for a client's connection, as a whole frame."""
    key, version = message.__api_key__, message.__version__
    head = encode_request_head(key, version, correlation, (client_id or "").encode(), message.__flexible__)
    body = encode_body(message)
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def frame_answer(message: Message, correlation: int) -> bytes:
    """Return a whole response frame: size, correlation id, header tags where the version has them, body."""
    body = encode_body(message)
    tags = b"\0" if message.__flexible__ and message.__api_key__ != ApiKey.API_VERSIONS else b""
    size = 4 + len(tags) + len(body)
    return size.to_bytes(4, "big") + correlation.to_bytes(4, "big", signed=True) + tags + body


def build_answer(head: RequestHead, **fields: object) -> bytes:
    """Return the frame of an answer to a request with the given fields, every other field empty."""
    return frame_answer(blank(answer_type(head), **fields), head.correlation_id)


def _check_nulls(message: Message, kind: type[Message]) -> None:
    """Refuse a null array that the schema forbids: kio reads the array as None, and no reader expects None."""
    for name, nullable, element in _arrays(kind):
        found = getattr(message, name)
        if found is None:
            if not nullable:
                raise ProtocolViolation("null-array", f"{kind.__name__} cannot be read: its {name} are null")
        elif element is not None:
            for each in found:
                _check_nulls(each, element)


@_cached
def _arrays(kind: type[Message]) -> tuple[tuple[str, bool, type[Message] | None], ...]:
    """Return each array field of a message, whether null is allowed, and the class of elements that hold arrays."""
    out = []
    for name, choices in _field_types(kind).items() if dataclasses.is_dataclass(kind) else ():
        for choice in choices:
            if typing.get_origin(choice) is tuple:
                element = typing.get_args(choice)[0]
                out.append((name, len(choices) > 1, element if _arrays(element) else None))
    return tuple(out)
