"""The Kafka messages that kmigrate itself sends, one version each, and their encoding by kio.

One version per API keeps both ends of the code simple. Each version is the lowest that carries the needed fields, so
that Kafka 2.8 (source) and 4.x (target) both support that version (D6).

| api | version | reason |
|---|---|---|
| Produce | 9 | flexible, by topic name; written by hand in `hot` |
| Fetch | 12 | last_fetched_epoch reports truncation (W7); by hand in `hot` |
| ListOffsets | 5 | leader epochs, replica_id −2 for the log end (V1) |
| Metadata | 10 | topic ids |
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
import importlib
import io
import types
import typing
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer

from kmigrate.errors import Failed, ProtocolViolation
from kmigrate.protocol.described import read_described
from kmigrate.protocol.frames import response_body_offset
from kmigrate.protocol.lengths import checked

__all__ = [
    "API_NAMES",
    "ApiKey",
    "decode_answer",
    "decode_body",
    "element_type",
    "encode_body",
    "entity",
    "is_flexible",
    "known_versions",
    "millis_of",
    "response_type",
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
_ELEMENTS: dict[tuple[type[Any], str], type[Any]] = {}
"""Cache of `element_type`, because reading type hints is slow."""


def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


@cache
def entity(api_key: int, version: int, kind: str) -> type[Any]:
    """Return the kio class of a message: `kind` is request or response."""
    name = API_NAMES[api_key]
    module = importlib.import_module(f"kio.schema.{name}.v{version}.{kind}")
    found: type[Any] = getattr(module, _title(name) + kind.capitalize())
    return found


def response_type(request: type[Any]) -> type[Any]:
    """Return the response class of a request class, in the same version."""
    return entity(int(request.__api_key__), int(request.__version__), "response")


def element_type(kind: type[Any], name: str) -> type[Any]:
    """Return the class of the elements of a message's array field."""
    if (kind, name) not in _ELEMENTS:
        _ELEMENTS[(kind, name)] = _element_type(kind, name)
    return _ELEMENTS[(kind, name)]


def _element_type(kind: type[Any], name: str) -> type[Any]:
    hints = typing.get_type_hints(kind)
    for candidate in [hints[name], *typing.get_args(hints[name])]:
        args = typing.get_args(candidate)
        if args and isinstance(args[0], type):
            found: type[Any] = args[0]
            return found
    raise Failed("kio-schema", f"{kind.__name__}.{name} is not an array of messages")


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Return whether this version's headers have tagged fields (KIP-482)."""
    return bool(entity(api_key, version, "request").__flexible__)


@cache
def known_versions(api_key: int) -> tuple[int, int] | None:
    """Return the lowest and highest version of an API that kio can read, or None."""
    name = API_NAMES.get(api_key)
    if name is None:
        return None
    versions = sorted(int(v) for v in schema_name_map[name])
    return versions[0], versions[-1]


_READERS: dict[type[Any], Callable[[bytes, int], tuple[Any, int]]] = {}
_WRITERS: dict[type[Any], Callable[[io.BytesIO, Any], None]] = {}


def _reader(kind: type[Any]) -> Callable[[bytes, int], tuple[Any, int]]:
    if kind not in _READERS:
        by_hand = int(kind.__api_key__) == ApiKey.DESCRIBE_TRANSACTIONS and "Response" in kind.__name__
        _READERS[kind] = read_described if by_hand else entity_reader(kind)
    return _READERS[kind]


def _writer(kind: type[Any]) -> Callable[[io.BytesIO, Any], None]:
    if kind not in _WRITERS:
        _WRITERS[kind] = entity_writer(kind)
    return _WRITERS[kind]


def encode_body(message: Any) -> bytes:
    """Return the bytes of a kio message's body, without header."""
    out = io.BytesIO()
    _writer(type(message))(out, message)
    return out.getvalue()


def decode_body(kind: type[Any], frame: bytearray | memoryview, at: int) -> Any:
    """Read a message of class `kind` from a frame at the position of the body."""
    body = checked(kind, frame, at)
    try:
        value, _ = _reader(kind)(body, 0)
    except Exception as error:  # kio raises several kinds of errors with the same meaning for us
        raise ProtocolViolation(
            "undecodable-message", f"{kind.__name__} v{kind.__version__} cannot be read: {error}"
        ) from error
    _check_nulls(value, kind)
    return value


def decode_answer(kind: type[Any], frame: bytearray) -> Any:
    """Read a whole response frame as a message of class `kind`."""
    return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))


def _check_nulls(message: Any, kind: type[Any]) -> None:
    """Refuse a null array that the schema does not allow, because kio reads such an array as None.

    No code that reads the field expects None.
    """
    for name, nullable, element in _arrays(typing.cast("Any", kind)):
        found = getattr(message, name)
        if found is None:
            if not nullable:
                raise ProtocolViolation("null-array", f"{kind.__name__} cannot be read: its {name} are null")
        elif element is not None:
            for each in found:
                _check_nulls(each, element)


@cache
def _arrays(kind: Any) -> tuple[tuple[str, bool, type[Any] | None], ...]:
    """Return each array field of a message, whether null is allowed, and the class of elements that hold arrays."""
    out = []
    for name, hint in typing.get_type_hints(kind).items() if dataclasses.is_dataclass(kind) else ():
        choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
        for choice in choices:
            if typing.get_origin(choice) is tuple:
                element = typing.get_args(choice)[0]
                out.append((name, len(choices) > 1, element if _arrays(element) else None))
    return tuple(out)


def millis_of(value: Any) -> int:
    """Return a kio time in milliseconds since the epoch, −1 for none; kio has some times as numbers."""
    if isinstance(value, int):
        return value
    return -1 if value is None else round(value.timestamp() * 1000)
