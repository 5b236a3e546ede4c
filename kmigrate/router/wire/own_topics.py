"""Hides kmigrate's own topics in answers, and refuses them in requests, by name and by topic id.

The state log, the presence log and the offset maps stand on the target beside the topics of applications. A client that
writes, alters or deletes them ends the migration, so no client reaches them through a router:

- An answer that lists topics leaves kmigrate's topics out.
- A request that names them is split. The router refuses the named elements and forwards the rest.
- A refusal is TOPIC_AUTHORIZATION_FAILED for a name and UNKNOWN_TOPIC_ID for a topic id. Every name with the prefix
  gets the same refusal, so a client does not learn which of these topics exist.
- A transaction gets no partition at all (OPERATION_NOT_ATTEMPTED), as brokers do where a partition is refused.

`produce.decide` refuses Produce requests. ACL requests are refused where a rule names these topics literally or by a
prefix of theirs. Broader rules are the administrator's; `doctor` names the principals that such rules let in.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, NamedTuple

from kmigrate.model.ids import OWN_PREFIX, is_own_topic
from kmigrate.protocol.api import (
    ApiKey,
    answer_type,
    blank,
    decode_answer,
    decode_request,
    element_type,
    encode_request,
    frame_answer,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.metadata import put_topics, show_topics
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["HIDING", "REFUSING", "Guarded", "guard", "hide", "mentions"]

_PREFIX = OWN_PREFIX.encode()


REFUSING = frozenset(key for key, api in APIS.items() if api.topics)
HIDING = frozenset(key for key, api in APIS.items() if api.lists_topics)
_STILL_SENT = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""APIs whose requests go to the target even without a topic."""
_POSITIONAL = frozenset({ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS})
"""APIs whose responses identify elements by their place in the request."""
_NAMES = ("name", "topic", "topic_name", "resource_name", "resource_name_filter")
_INDEXES = ("partition_index", "partition", "partition_id")
_TYPES = ("resource_type", "resource_type_filter")
_TOPIC, _ANY = 2, 1
_ERRORS = ("error_code", "partition_error_code")
_MESSAGE = "kmigrate: topics that begin with " + OWN_PREFIX + " are kmigrate's own"

Change = Callable[[bytearray], bytes | bytearray | memoryview]


class Guarded(NamedTuple):
    """A request without kmigrate's own topics."""

    rest: bytearray | None
    """The frame for the target; None where the router answers alone."""
    answer: bytes
    """The router's own answer, where `rest` is None."""
    change: Change | None
    """Function that puts the refusals into the target's answer."""
    refused: tuple[str, ...]
    """Names or topic ids of the refused elements."""


def mentions(frame: bytearray | bytes | memoryview, ids: Collection[bytes]) -> bool:
    """Return whether the bytes may name any of kmigrate's topics: a quick look before anything is decoded."""
    raw = bytes(frame) if isinstance(frame, memoryview) else frame
    return _PREFIX in raw or any(each in raw for each in ids)


def guard(head: RequestHead, frame: bytearray, ids: Collection[bytes]) -> Guarded | None:
    """Take kmigrate's own topics out of a request; None where the request names none of them."""
    fields, where = APIS[head.api_key].topics, APIS[head.api_key].results
    request = decode_request(frame, head)
    if head.api_key == ApiKey.ALTER_REPLICA_LOG_DIRS:
        return _guard_log_dirs(head, frame, request, ids)
    parts = {name: _parted(getattr(request, name, None) or (), ids) for name in fields}
    own = [each for mine, _ in parts.values() for each in mine]
    if not own:
        return None
    refused = tuple(sorted({_shown(each) for each in own}))
    asked = parts[next(name for name in fields if hasattr(request, name))]
    told = _refusals(head, where, asked, ids) if where else ()
    alone = head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN or not (asked[1] or head.api_key in _STILL_SENT)
    if alone:
        answer = blank(answer_type(head), **({where: told} if where else {}))
        return Guarded(None, frame_answer(answer, head.correlation_id), None, refused)
    kept = {name: others for name, (mine, others) in parts.items() if mine}
    rest = encode_request(frame, head, dataclasses.replace(request, **kept))
    places = _places(getattr(request, fields[0]), ids) if head.api_key in _POSITIONAL else None
    change = (lambda answer: _with(head, where, told, places, answer)) if where and told else None
    return Guarded(rest, b"", change, refused)


def hide(head: RequestHead, answer: bytearray, ids: Collection[bytes]) -> bytes | bytearray:
    """Return the target's answer without kmigrate's own topics."""
    if not mentions(answer, ids):
        return answer
    if head.api_key == ApiKey.METADATA:
        apart = show_topics(answer, head.version, AddressBook(0), ())
        if apart is not None:
            return put_topics(bytes(apart[0]), head.version, apart[1])
    message = decode_answer(answer_type(head), answer)
    return frame_answer(_without_own(message, ids), head.correlation_id)


def _guard_log_dirs(head: RequestHead, frame: bytearray, request: Any, ids: Collection[bytes]) -> Guarded | None:
    """Guard AlterReplicaLogDirs, which names topics within log directories."""
    own: list[Any] = []
    dirs: list[Any] = []
    for each in request.dirs:
        mine, others = _parted(each.topics, ids)
        own += mine
        if others:
            dirs.append(dataclasses.replace(each, topics=tuple(others)))
    if not own:
        return None
    kind = answer_type(head)
    told = tuple(_refusal(element_type(kind, "results"), each, Code.TOPIC_AUTHORIZATION_FAILED) for each in own)
    refused = tuple(sorted({_shown(each) for each in own}))
    if not dirs:
        return Guarded(None, frame_answer(blank(kind, results=told), head.correlation_id), None, refused)
    rest = encode_request(frame, head, dataclasses.replace(request, dirs=tuple(dirs)))
    return Guarded(rest, b"", lambda answer: _with(head, "results", told, None, answer), refused)


def _parted(elements: Collection[Any], ids: Collection[bytes]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return kmigrate's own elements, and the others."""
    mine = tuple(each for each in elements if _is_own(each, ids))
    return mine, tuple(each for each in elements if not _is_own(each, ids)) if mine else tuple(elements)


def _places(elements: Collection[Any], ids: Collection[bytes]) -> tuple[int, ...]:
    return tuple(place for place, each in enumerate(elements) if _is_own(each, ids))


def _is_own(each: Any, ids: Collection[bytes]) -> bool:
    if isinstance(each, str):
        return is_own_topic(each)
    type_ = next((getattr(each, name) for name in _TYPES if hasattr(each, name)), _TOPIC)
    if int(type_) not in (_TOPIC, _ANY):
        return False
    name = next((getattr(each, name) for name in _NAMES if hasattr(each, name)), None)
    if name is not None:
        # A prefixed ACL may leave out the last underscore and still mean these topics alone.
        bare = hasattr(each, "resource_pattern_type") and str(name) == OWN_PREFIX[:-1]
        return is_own_topic(str(name)) or bare
    topic_id = getattr(each, "topic_id", None)
    return topic_id is not None and topic_id.bytes in ids


def _shown(each: Any) -> str:
    if isinstance(each, str):
        return each
    name = next((getattr(each, name) for name in _NAMES if getattr(each, name, None) is not None), None)
    return str(name) if name is not None else f"topic id {each.topic_id}"


def _refusals(
    head: RequestHead, where: str, asked: tuple[tuple[Any, ...], tuple[Any, ...]], ids: Collection[bytes]
) -> tuple[Any, ...]:
    kind = element_type(answer_type(head), where)
    told = tuple(_refusal(kind, each, _code(each)) for each in asked[0])
    if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        told += tuple(_refusal(kind, each, Code.OPERATION_NOT_ATTEMPTED) for each in asked[1])
    return told


def _code(each: Any) -> Code:
    by_name = isinstance(each, str) or any(getattr(each, name, None) is not None for name in _NAMES)
    return Code.TOPIC_AUTHORIZATION_FAILED if by_name else Code.UNKNOWN_TOPIC_ID


def _refusal(kind: type[Any], asked: Any, code: int) -> Any:
    """Return the response's element, with partitions, for a refused element of the request."""
    values: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(kind)}
    for name in names:
        if name in _ERRORS:
            values[name] = code
        elif name == "error_message":
            values[name] = _MESSAGE
        elif name in _NAMES:
            values[name] = asked if isinstance(asked, str) else _name_of(asked)
        elif name in ("topic_id", "resource_type") and hasattr(asked, name):
            values[name] = getattr(asked, name)
        elif name == "preferred_read_replica":
            values[name] = -1
        elif (of_part := _partition_type(typing.cast("Any", kind), name)) is not None:
            values[name] = tuple(_of_partition(of_part, each, code) for each in _partitions(asked))
    return blank(kind, **values)


def _name_of(asked: Any) -> Any:
    return next((getattr(asked, name) for name in _NAMES if hasattr(asked, name)), None)


def _partitions(asked: Any) -> tuple[Any, ...]:
    for name in ("partitions", "partition_indexes"):
        found = getattr(asked, name, None)
        if found is not None:
            return tuple(found) if not isinstance(found, int) else ()
    return ()


def _of_partition(kind: type[Any], asked: Any, code: int) -> Any:
    index = asked if isinstance(asked, int) else next(getattr(asked, n) for n in _INDEXES if hasattr(asked, n))
    values: dict[str, Any] = dict.fromkeys(_INDEXES, index) | dict.fromkeys(_ERRORS, code)
    return blank(kind, **values, error_message=_MESSAGE, preferred_read_replica=-1)


@cache
def _partition_type(kind: Any, name: str) -> Any:
    """Return the class of an array's elements where the elements are partitions of a response, or else None."""
    hint = typing.get_type_hints(kind)[name]
    for candidate in (hint, *typing.get_args(hint)):
        args = typing.get_args(candidate)
        if typing.get_origin(candidate) is tuple and dataclasses.is_dataclass(args[0]):
            fields = {field.name for field in dataclasses.fields(args[0])}
            return args[0] if fields.intersection(_INDEXES) else None
    return None


def _with(
    head: RequestHead, where: str, told: tuple[Any, ...], places: tuple[int, ...] | None, answer: bytearray
) -> bytes:
    """Return the target's answer with refusals: behind the target's elements, or in their places."""
    heard = decode_answer(answer_type(head), answer)
    elements = list(getattr(heard, where) or ())
    if places is None:
        elements += told
    else:
        for place, each in zip(places, told, strict=True):
            elements.insert(place, each)
    return frame_answer(dataclasses.replace(heard, **{where: tuple(elements)}), head.correlation_id)


def _without_own(value: Any, ids: Collection[bytes]) -> Any:
    """Return a message without the array elements that name kmigrate's topics, at any depth."""
    if isinstance(value, tuple):
        return tuple(_without_own(each, ids) for each in value if not _tells_own(each, ids))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = _without_own(before, ids) if isinstance(before, tuple) or dataclasses.is_dataclass(before) else before
        if after is not before:
            changed[field.name] = after
    return dataclasses.replace(value, **changed) if changed else value


def _tells_own(each: Any, ids: Collection[bytes]) -> bool:
    if not isinstance(each, str) and not dataclasses.is_dataclass(each):
        return False
    topic_id = getattr(each, "topic_id", None)
    return _is_own(each, ids) or (topic_id is not None and topic_id.bytes in ids)
