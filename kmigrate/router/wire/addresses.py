"""Rewrites node ids and addresses in answers to the router's own (D5), and decodes and encodes requests.

kio reads and writes these messages in all versions. `wire.metadata` handles the topics of Metadata answers. Produce and
Fetch answers must not be decoded; `produce` and `fetch` handle them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from kio.schema.errors import ErrorCode

from kmigrate.model.ids import is_own_topic
from kmigrate.protocol.api import (
    ApiKey,
    answer_type,
    blank,
    decode_answer,
    frame_answer,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.metadata import put_topics, show_topics
from kmigrate.router.wire.node_ids import AddressBook

__all__ = [
    "none_here",
    "rewrite_answer",
]


def rewrite_answer(
    frame: bytearray, head: RequestHead, book: AddressBook, hidden: Collection[str]
) -> tuple[bytes, bool]:
    """Return the answer as the client may see it, and whether the answer named a broker that has no listener yet."""
    kind = answer_type(head)
    apart = show_topics(frame, head.version, book, hidden) if head.api_key == ApiKey.METADATA else None
    message = decode_answer(kind, apart[0] if apart is not None else frame)
    change = _CHANGES[head.api_key]
    changed, stranger = change(message, book, hidden)
    shown = frame_answer(changed, head.correlation_id)
    return put_topics(shown, head.version, apart[1]) if apart is not None else shown, stranger


def none_here(head: RequestHead) -> bytes:
    """Return an empty list, in place of a broker's own list.

    Clients ask every broker that Metadata names. A fallback router's listener (`shared.fallback_routers`) stands for no
    broker of the target.
    """
    return frame_answer(blank(answer_type(head)), head.correlation_id)


def _brokers(brokers: tuple[Any, ...], book: AddressBook, id_name: str) -> tuple[tuple[Any, ...], bool]:
    out = []
    for broker in brokers:
        node = int(getattr(broker, id_name))
        known = book.address(node)
        if known is not None:
            named = {id_name: book.shown(node), "host": known[0], "port": known[1]}
            out.append(dataclasses.replace(broker, **named))
    return tuple(out), len(out) < len(brokers)


def _spares(brokers: tuple[Any, ...], book: AddressBook) -> tuple[Any, ...]:
    if not brokers:
        return ()
    plain = dataclasses.replace(brokers[0], rack=None)
    return tuple(dataclasses.replace(plain, node_id=s.node, host=s.host, port=s.port) for s in book.spares)


def _metadata(message: Any, book: AddressBook, hidden: Collection[str]) -> tuple[Any, bool]:
    brokers, stranger = _brokers(message.brokers, book, "node_id")
    changed: dict[str, Any] = {"brokers": brokers + _spares(brokers, book)}
    if hasattr(message, "controller_id"):
        changed["controller_id"] = book.shown(int(message.controller_id))
    topics = []
    for topic in message.topics:
        if is_own_topic(str(topic.name)):
            continue
        if str(topic.name) in hidden:
            not_yet = ErrorCode(Code.LEADER_NOT_AVAILABLE)
            topics.append(dataclasses.replace(topic, error_code=not_yet, partitions=()))
            continue
        parts = tuple(_metadata_partition(part, book) for part in topic.partitions)
        topics.append(dataclasses.replace(topic, partitions=parts))
    changed["topics"] = tuple(topics)
    return dataclasses.replace(message, **changed), stranger


def _metadata_partition(part: Any, book: AddressBook) -> Any:
    named: dict[str, Any] = {"leader_id": book.shown(int(part.leader_id))}
    for name in ("replica_nodes", "isr_nodes", "offline_replicas"):
        if hasattr(part, name):
            named[name] = tuple(book.shown(int(node)) for node in getattr(part, name))
    return dataclasses.replace(part, **named)


def _coordinator(message: Any, book: AddressBook, _: Collection[str]) -> tuple[Any, bool]:
    if hasattr(message, "coordinators"):
        found = [_one_coordinator(one, book) for one in message.coordinators]
        changed = dataclasses.replace(message, coordinators=tuple(one for one, _ in found))
        return changed, any(stranger for _, stranger in found)
    return _one_coordinator(message, book)


def _one_coordinator(one: Any, book: AddressBook) -> tuple[Any, bool]:
    node = int(one.node_id)
    if node < 0:
        return one, False
    known = book.address(node)
    if known is None:
        none_yet = ErrorCode(Code.COORDINATOR_NOT_AVAILABLE)
        return dataclasses.replace(one, error_code=none_yet, node_id=-1, host="", port=-1), True
    return dataclasses.replace(one, node_id=book.shown(node), host=known[0], port=known[1]), False


def _cluster(message: Any, book: AddressBook, _: Collection[str]) -> tuple[Any, bool]:
    brokers, stranger = _brokers(message.brokers, book, "broker_id")
    shown = book.shown(int(message.controller_id))
    return dataclasses.replace(message, brokers=brokers, controller_id=shown), stranger


_Change = Callable[[Any, AddressBook, Collection[str]], tuple[Any, bool]]
_CHANGES: dict[int, _Change] = {
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _coordinator,
    ApiKey.DESCRIBE_CLUSTER: _cluster,
}
