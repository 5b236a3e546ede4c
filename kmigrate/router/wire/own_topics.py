"""Hides kmigrate's own topics in answers, and refuses them in requests, by name and by topic id.

The state log, the presence log and the offset maps stand on the target. A client that writes, alters or deletes them
ends the migration, so no client reaches them through a router:

- An answer that lists topics leaves kmigrate's topics out.
- A request that names them is split. The router refuses the named elements and forwards the rest.
- A refusal is TOPIC_AUTHORIZATION_FAILED for a name and UNKNOWN_TOPIC_ID for a topic id. Every name with the prefix
  gets the same refusal, so a client does not learn which of these topics exist.
- A transaction gets no partition at all (OPERATION_NOT_ATTEMPTED), as brokers do where a partition is refused.

`produce.decide` refuses Produce requests. ACL requests are refused where a rule names these topics or a prefix of
theirs. Broader rules are the administrator's; `doctor` names the principals that such rules let in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, cast

from kmigrate.model.ids import OWN_PREFIX, is_own_topic
from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    build_answer,
    decode_request,
    element_type,
    encode_request,
    frame_answer,
    read_answer,
    replace,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.metadata import put_topics, show_topics
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.refusals import refusal, topic_name

__all__ = ["HIDING", "REFUSING", "Guarded", "guard", "hide", "mentions"]

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
"""APIs whose responses identify elements by their position in the request."""
_PREFIX = OWN_PREFIX.encode()
_TYPES = ("resource_type", "resource_type_filter")
_TOPIC, _ANY = 2, 1
_MESSAGE = "kmigrate: topics that begin with " + OWN_PREFIX + " are kmigrate's own"

Change = Callable[[bytearray], bytes | bytearray | memoryview]
Element = Message | str
"""An element of an array that names topics."""


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
    request, api = decode_request(frame, head), APIS[head.api_key]
    if head.api_key == ApiKey.ALTER_REPLICA_LOG_DIRS:
        own, rest = _split_log_dirs(request, ids)
        refused, others = own, rest.dirs
    else:
        parts = {name: _split(getattr(request, name, None) or (), ids) for name in api.topics}
        own = [each for mine, _ in parts.values() for each in mine]
        rest = replace(request, **{name: tuple(others) for name, (mine, others) in parts.items() if mine})
        refused, others = parts[next(name for name in api.topics if hasattr(request, name))]
    if not own:
        return None
    names = tuple(sorted({topic_name(each) or f"topic id {cast('Message', each).topic_id}" for each in own}))
    refused_here = _refusals(head, refused, others) if api.results else ()
    if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN or not (others or head.api_key in _STILL_SENT):
        return Guarded(None, build_answer(head, **({api.results: refused_here} if api.results else {})), None, names)
    positions: Sequence[int] = ()
    if head.api_key in _POSITIONAL:
        positions = [i for i, each in enumerate(getattr(request, api.topics[0])) if _is_own(each, ids)]
    change = (lambda frame: _with_refusals(head, refused_here, positions, frame)) if refused_here else None
    return Guarded(encode_request(frame, head, rest), b"", change, names)


def hide(head: RequestHead, frame: bytearray, ids: Collection[bytes]) -> bytes | bytearray:
    """Return the target's answer without kmigrate's own topics."""
    if not mentions(frame, ids):
        return frame
    if head.api_key == ApiKey.METADATA:
        apart = show_topics(frame, head.version, AddressBook(0), ())
        if apart is not None:
            return put_topics(bytes(apart[0]), head.version, apart[1])
    return frame_answer(cast("Message", _without_own(read_answer(head, frame), ids)), head.correlation_id)


def _split_log_dirs(request: Message, ids: Collection[bytes]) -> tuple[list[Element], Message]:
    """Split AlterReplicaLogDirs, which names topics within log directories."""
    own: list[Element] = []
    dirs: list[Message] = []
    for each in request.dirs:
        mine, others = _split(each.topics, ids)
        own += mine
        if others:
            dirs.append(replace(each, topics=tuple(others)))
    return own, replace(request, dirs=tuple(dirs))


def _split(elements: Collection[Element], ids: Collection[bytes]) -> tuple[list[Element], list[Element]]:
    """Return kmigrate's own elements, and the others."""
    own = [each for each in elements if _is_own(each, ids)]
    return own, [each for each in elements if not _is_own(each, ids)] if own else list(elements)


def _is_own(each: Element, ids: Collection[bytes]) -> bool:
    if isinstance(each, str):
        return is_own_topic(each)
    type_ = next((getattr(each, name) for name in _TYPES if hasattr(each, name)), _TOPIC)
    if int(type_) not in (_TOPIC, _ANY):
        return False
    name = topic_name(each)
    if name is not None:
        # A prefixed ACL may leave out the last underscore and still mean these topics alone.
        bare = hasattr(each, "resource_pattern_type") and str(name) == OWN_PREFIX[:-1]
        return is_own_topic(str(name)) or bare
    return _has_own_id(each, ids)


def _has_own_id(each: Message, ids: Collection[bytes]) -> bool:
    topic_id = getattr(each, "topic_id", None)
    return topic_id is not None and topic_id.bytes in ids


def _refusals(head: RequestHead, refused: Collection[Element], others: Collection[Element]) -> tuple[Message, ...]:
    kind = element_type(answer_type(head), APIS[head.api_key].results)
    refused_here = [refusal(kind, each, _code(each), _MESSAGE) for each in refused]
    if head.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        refused_here += [refusal(kind, each, Code.OPERATION_NOT_ATTEMPTED, _MESSAGE) for each in others]
    return tuple(refused_here)


def _code(each: Element) -> Code:
    return Code.UNKNOWN_TOPIC_ID if topic_name(each) is None else Code.TOPIC_AUTHORIZATION_FAILED


def _with_refusals(
    head: RequestHead, refused_here: tuple[Message, ...], positions: Sequence[int], frame: bytearray
) -> bytes:
    """Return the target's answer with refusals: behind the target's elements, or at their positions."""
    message, array = read_answer(head, frame), APIS[head.api_key].results
    elements = list(getattr(message, array) or ())
    for position, each in zip(
        positions or range(len(elements), len(elements) + len(refused_here)), refused_here, strict=True
    ):
        elements.insert(position, each)
    return frame_answer(replace(message, **{array: tuple(elements)}), head.correlation_id)


def _without_own(value: object, ids: Collection[bytes]) -> object:
    """Return a message without the array elements that name kmigrate's topics, at any depth."""
    if isinstance(value, tuple):
        return tuple(_without_own(each, ids) for each in value if not _names_own(each, ids))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in dataclasses.fields(value):
        before = getattr(value, field.name)
        after = _without_own(before, ids) if isinstance(before, tuple) or dataclasses.is_dataclass(before) else before
        if after is not before:
            changed[field.name] = after
    return replace(cast("Message", value), **changed) if changed else value


def _names_own(each: object, ids: Collection[bytes]) -> bool:
    if isinstance(each, str):
        return is_own_topic(each)
    message = cast("Message", each)
    return dataclasses.is_dataclass(each) and (_is_own(message, ids) or _has_own_id(message, ids))
