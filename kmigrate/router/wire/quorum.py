"""Translates node ids in layouts of single topics, reassignments and the description of the quorum.

Answers name brokers as the router shows them; a reassignment reaches the target with the target's own ids. Controllers
have their ids from the same numbers, so controllers' ids are translated, too. The addresses of controllers stay as they
are, because no client of a router talks to controllers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from kmigrate.protocol.api import ApiKey, answer_type, decode_answer, frame_answer
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.node_ids import AddressBook

__all__ = ["make_replicas_real", "show_nodes"]


_NODES = frozenset(
    {
        "node_id", "leader_id", "replica_id", "replicas", "adding_replicas", "removing_replicas", "replica_nodes",
        "isr_nodes", "eligible_leader_replicas", "last_known_elr", "offline_replicas",
    }
)  # fmt: skip
_NESTED = frozenset({"topics", "partitions", "nodes", "current_voters", "observers"})


def make_replicas_real(request: Any, book: AddressBook) -> Any:
    """Return a reassignment with the target's own broker ids; no replicas means that a reassignment is cancelled."""
    topics = []
    for topic in request.topics:
        parts = tuple(
            part if part.replicas is None
            else dataclasses.replace(part, replicas=tuple(book.real(int(node)) for node in part.replicas))
            for part in topic.partitions
        )  # fmt: skip
        topics.append(dataclasses.replace(topic, partitions=parts))
    return dataclasses.replace(request, topics=tuple(topics))


def show_nodes(answer: bytearray, head: RequestHead, book: AddressBook, hidden: Collection[str]) -> bytes:
    """Return the answer as the client may see it; a topic that still aligns has no layout yet."""
    kind = answer_type(head)
    message = _shown(decode_answer(kind, answer), book)
    if head.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS:
        not_yet = ErrorCode(Code.LEADER_NOT_AVAILABLE)
        topics = (
            dataclasses.replace(topic, error_code=not_yet, partitions=()) if str(topic.name) in hidden else topic
            for topic in message.topics
        )
        message = dataclasses.replace(message, topics=tuple(topics))
    return frame_answer(message, head.correlation_id)


def _shown(message: Any, book: AddressBook) -> Any:
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if value is None:
            continue
        if field.name in _NESTED:
            changed[field.name] = tuple(_shown(each, book) for each in value)
        elif field.name in _NODES:
            changed[field.name] = (
                tuple(book.shown(int(node)) for node in value) if isinstance(value, tuple) else book.shown(int(value))
            )
    return dataclasses.replace(message, **changed) if changed else message
