"""Translates node ids and addresses between the target and the router's clients (D5).

Answers name brokers as the router shows them; a request reaches the target with the target's own ids. kio reads and
writes these messages in all versions. `wire.metadata` handles the topics of Metadata answers. `produce` and `fetch`
handle their answers, which must not be decoded. Controllers share the brokers' numbers, so controllers' ids are
translated, too. Controllers' addresses stay as they are, because no client of a router talks to controllers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from kio.schema.errors import ErrorCode

from kmigrate.model.ids import is_own_topic
from kmigrate.protocol.api import ApiKey, Message, change_each, frame_answer, read_answer, replace
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.aligning import IsAligning
from kmigrate.router.wire.metadata import put_topics, show_topics
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["make_nodes_real", "rewrite_answer", "show_nodes", "show_share_read"]

_BROKERS = frozenset({"brokers", "node_endpoints"})
_NESTED = frozenset({"topics", "responses", "partitions", "nodes", "current_voters", "observers"})
_NODES = frozenset(
    {
        "controller_id", "node_id", "leader_id", "replica_id", "replicas", "adding_replicas", "removing_replicas",
        "replica_nodes", "isr_nodes", "eligible_leader_replicas", "last_known_elr", "offline_replicas",
    }
)  # fmt: skip


# answers


def rewrite_answer(
    frame: bytearray, head: RequestHead, book: AddressBook, hidden: Collection[str]
) -> tuple[bytes, bool]:
    """Return the answer as the client may see it, and whether the answer named a broker that has no listener yet."""
    if head.api_key == ApiKey.FIND_COORDINATOR:
        answer = read_answer(head, frame)
        batch = answer.coordinators if hasattr(answer, "coordinators") else (answer,)
        unknown = any(each.node_id >= 0 and book.address(int(each.node_id)) is None for each in batch)
        return frame_answer(_coordinators(answer, book), head.correlation_id), unknown
    apart = show_topics(frame, head.version, book, hidden) if head.api_key == ApiKey.METADATA else None
    answer = read_answer(head, apart[0] if apart is not None else frame)
    shown = _shown(answer, book)
    unknown = len(shown.brokers) < len(answer.brokers)
    if head.api_key == ApiKey.METADATA:
        topics = (_without_leader(topic, hidden) for topic in shown.topics if not is_own_topic(str(topic.name)))
        shown = replace(shown, topics=tuple(topics), brokers=shown.brokers + _fallback_brokers(shown, book))
    rest = frame_answer(shown, head.correlation_id)
    return put_topics(rest, head.version, apart[1]) if apart is not None else rest, unknown


def show_nodes(answer: bytearray, head: RequestHead, book: AddressBook, hidden: Collection[str]) -> bytes:
    """Return an answer of an admin API as the client may see it; a topic that still aligns has no layout yet."""
    message = _shown(read_answer(head, answer), book)
    if head.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:
        message = change_each(message, ("topics",), lambda topic: _without_leader(topic, hidden))
    return frame_answer(message, head.correlation_id)


def show_share_read(answer: bytearray, head: RequestHead, book: AddressBook, is_aligning: IsAligning) -> bytes:
    """Return the answer to a share read (KIP-932) without records of partitions that still align."""

    def ready(topic: Message) -> Message:
        topic_id = topic.topic_id.bytes if topic.topic_id is not None else b""
        return change_each(
            topic,
            ("partitions",),
            lambda part: _without_records(part) if is_aligning(topic_id, int(part.partition_index)) else part,
        )

    message = change_each(read_answer(head, answer), ("responses",), ready)
    return frame_answer(_shown(message, book), head.correlation_id)


def _shown(message: Message, book: AddressBook) -> Message:
    """Return a message with the nodes as clients see them; brokers without a listener are left out."""
    changed: dict[str, object] = {}
    for field in dataclasses.fields(message):
        name, value = field.name, getattr(message, field.name)
        if value is None:
            continue
        if name in _BROKERS:
            changed[name] = tuple(_broker(each, book) for each in value if _address(each, book) is not None)
        elif name in _NESTED:
            changed[name] = tuple(_shown(each, book) for each in value)
        elif name == "current_leader":
            changed[name] = _shown(value, book)
        elif name in _NODES:
            many = isinstance(value, tuple)
            changed[name] = tuple(book.shown(int(node)) for node in value) if many else book.shown(int(value))
    return replace(message, **changed) if changed else message


def _id_name(broker: Message) -> str:
    return "broker_id" if hasattr(broker, "broker_id") else "node_id"


def _address(broker: Message, book: AddressBook) -> tuple[str, int] | None:
    return book.address(int(getattr(broker, _id_name(broker))))


def _broker(broker: Message, book: AddressBook) -> Message:
    """Return a broker, coordinator or endpoint under its listener's address, where there is a listener."""
    name, address = _id_name(broker), _address(broker, book)
    if address is None:
        return broker
    return replace(broker, **{name: book.shown(int(getattr(broker, name)))}, host=address[0], port=address[1])


def _fallback_brokers(metadata: Message, book: AddressBook) -> tuple[Message, ...]:
    if not metadata.brokers:
        return ()
    plain = replace(metadata.brokers[0], rack=None)
    return tuple(replace(plain, node_id=each.node, host=each.host, port=each.port) for each in book.fallbacks)


def _coordinators(answer: Message, book: AddressBook) -> Message:
    if hasattr(answer, "coordinators"):
        return change_each(answer, ("coordinators",), lambda each: _coordinators(each, book))
    if answer.node_id < 0 or _address(answer, book) is not None:
        return _broker(answer, book)
    none_yet = ErrorCode(Code.COORDINATOR_NOT_AVAILABLE)
    return replace(answer, error_code=none_yet, node_id=-1, host="", port=-1)


def _without_leader(topic: Message, hidden: Collection[str]) -> Message:
    if str(topic.name) not in hidden:
        return topic
    return replace(topic, error_code=ErrorCode(Code.LEADER_NOT_AVAILABLE), partitions=())


def _without_records(part: Message) -> Message:
    """Return a partition of an answer with an error in place of records, if the answer may have records."""
    if not hasattr(part, "records"):
        return part
    error = ErrorCode(Code.NOT_LEADER_OR_FOLLOWER)
    return replace(part, error_code=error, records=b"", acquired_records=())


# requests


def make_nodes_real(head: RequestHead, request: Message, book: AddressBook) -> Message:
    """Return the request with the target's own broker ids; no replicas means that a reassignment is cancelled."""

    def real(field: str, element: Message) -> Message:
        nodes = getattr(element, field)
        return element if nodes is None else replace(element, **{field: tuple(book.real(int(node)) for node in nodes)})

    if head.api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return change_each(request, ("topics", "partitions"), lambda part: real("replicas", part))
    if head.api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        return change_each(request, ("topics", "assignments"), lambda assignment: real("broker_ids", assignment))
    return request
