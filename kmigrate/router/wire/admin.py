"""Answers admin requests about mirrored topics, and makes the rest fit for the target, with the target's node ids.

While a topic is mirrored, its shape and configuration follow the source. A change at the target would be undone or
would break identity. So the router answers POLICY_VIOLATION, which admin clients show with the message beside it.

CreateTopics for a mirrored topic changes nothing. Applications send CreateTopics at each start, and go on when the
answer is TOPIC_ALREADY_EXISTS. Each topic of a request is judged by itself, as brokers do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kmigrate.protocol.api import ApiKey, answer_type, blank, decode_answer, element_type, frame_answer
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.broker_names import make_names_real
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.quorum import make_replicas_real

__all__ = ["Split", "answer_with", "make_nodes_real", "split_mirrored"]


_NAMED_BY = ("name", "topic_id", "resource_type", "resource_name")
_TOPIC_RESOURCE = 2


class Split(NamedTuple):
    """A request, split into a part for the target and the router's own answers."""

    rest: Any | None
    """Request for the target; None where nothing is left."""
    told: tuple[Any, ...]
    """Elements of the answer for the mirrored topics."""
    refused: tuple[str, ...]
    """Mirrored topics that the client wanted to change."""


def split_mirrored(head: RequestHead, request: Any, mirrored: Mapping[str, str]) -> Split:
    """Answer for the mirrored topics that a request names; `mirrored` also has the topics' ids at the target."""
    names = {target_id: name for name, target_id in mirrored.items()}
    (asked,) = (field for field in APIS[head.api_key].topics if hasattr(request, field))
    elements = [(_topic(each, names), each) for each in getattr(request, asked)]
    others = tuple(each for name, each in elements if name not in mirrored)
    own = [(name, each) for name, each in elements if name in mirrored]
    rest = dataclasses.replace(request, **{asked: others}) if others or not own else None
    refused = () if head.api_key == ApiKey.CREATE_TOPICS else tuple(sorted({name for name, _ in own}))
    return Split(rest, tuple(_told(head, name, each) for name, each in own), refused)


def answer_with(head: RequestHead, told: tuple[Any, ...], answer: bytearray | None = None) -> bytearray:
    """Return the router's elements together with the target's answer, or alone where the target was not asked."""
    kind, where = answer_type(head), APIS[head.api_key].results
    if answer is None:
        message = blank(kind, **{where: told})
    else:
        heard = decode_answer(kind, answer)
        message = dataclasses.replace(heard, **{where: told + getattr(heard, where)})
    return bytearray(frame_answer(message, head.correlation_id))


def make_nodes_real(head: RequestHead, request: Any, book: AddressBook, asked: Collection[str] = ()) -> Any | None:
    """Return the request with the target's own broker ids, or None where the request names no broker.

    `asked` are the brokers that configuration resources name.
    """
    if head.api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return make_replicas_real(request, book)
    if asked:
        return make_names_real(request, book)
    found = False
    topics = []
    for topic in getattr(request, "topics", None) or ():
        changed = []
        for assignment in getattr(topic, "assignments", None) or ():
            found = True
            nodes = tuple(book.real(int(node)) for node in assignment.broker_ids)
            changed.append(dataclasses.replace(assignment, broker_ids=nodes))
        topics.append(dataclasses.replace(topic, assignments=tuple(changed)) if changed else topic)
    return dataclasses.replace(request, topics=tuple(topics)) if found else None


def _topic(asked: Any, names: Mapping[str, str]) -> str:
    """Return the topic that an element of a request is about; '' where the element is about something else."""
    if isinstance(asked, str):
        return str(asked)
    if hasattr(asked, "resource_name"):
        return str(asked.resource_name) if int(asked.resource_type) == _TOPIC_RESOURCE else ""
    return names.get(str(asked.topic_id), "") if asked.name is None else str(asked.name)


def _told(head: RequestHead, name: str, asked: Any) -> Any:
    kind = element_type(answer_type(head), APIS[head.api_key].results)
    named = {field: getattr(asked, field) for field in _NAMED_BY if hasattr(asked, field)} or {"name": asked}
    if head.api_key == ApiKey.CREATE_TOPICS:
        text = f"Topic '{name}' already exists: kmigrate mirrors it"
        return blank(kind, **named, error_code=Code.TOPIC_ALREADY_EXISTS, error_message=text)
    refused = Code.POLICY_VIOLATION
    if head.api_key == ApiKey.DELETE_RECORDS:
        part_type = element_type(kind, "partitions")
        parts = (
            blank(part_type, partition_index=part.partition_index, low_watermark=-1, error_code=refused)
            for part in asked.partitions
        )
        return blank(kind, **named, partitions=tuple(parts))
    text = f"kmigrate: topic {name} is mirrored; its source decides its shape until its promote"
    return blank(kind, **named, error_code=refused, error_message=text)
