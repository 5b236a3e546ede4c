"""Answers admin requests about mirrored topics; the rest of a request goes to the target.

While a topic is mirrored, its shape and configuration follow the source. A change at the target would be undone or
would break identity, so the router answers POLICY_VIOLATION, which admin clients show with the message beside it.
CreateTopics for a mirrored topic changes nothing. Applications send CreateTopics at each start, and go on after
TOPIC_ALREADY_EXISTS. Each topic of a request is judged by itself, as brokers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kmigrate.protocol.api import (
    ApiKey,
    Message,
    answer_type,
    build_answer,
    element_type,
    frame_answer,
    read_answer,
    replace,
)
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.wire.apis import APIS
from kmigrate.router.wire.config_resources import TOPIC_RESOURCE
from kmigrate.router.wire.refusals import refusal

__all__ = ["Split", "answer_with", "split_mirrored"]


class Split(NamedTuple):
    """A request, split into a part for the target and the router's own answers."""

    rest: Message | None
    """Request for the target; None where nothing is left."""
    own: tuple[Message, ...]
    """Elements of the answer for the mirrored topics."""
    refused: tuple[str, ...]
    """Mirrored topics that the client wanted to change."""


def split_mirrored(head: RequestHead, request: Message, mirrored: Mapping[str, str]) -> Split:
    """Answer for the mirrored topics that a request names; `mirrored` also has the topics' ids at the target."""
    names = {target_id: name for name, target_id in mirrored.items()}
    (asked,) = (field for field in APIS[head.api_key].topics if hasattr(request, field))
    elements = [(_topic(each, names), each) for each in getattr(request, asked)]
    others = tuple(each for name, each in elements if name not in mirrored)
    own = [(name, each) for name, each in elements if name in mirrored]
    rest = replace(request, **{asked: others}) if others or not own else None
    refused = () if head.api_key == ApiKey.CREATE_TOPICS else tuple(sorted({name for name, _ in own}))
    return Split(rest, tuple(_refusal(head, name, each) for name, each in own), refused)


def answer_with(head: RequestHead, own: tuple[Message, ...], frame: bytearray | None = None) -> bytearray:
    """Return the router's elements together with the target's answer, or alone where the target was not asked."""
    array = APIS[head.api_key].results
    if frame is None:
        return bytearray(build_answer(head, **{array: own}))
    heard = read_answer(head, frame)
    return bytearray(frame_answer(replace(heard, **{array: own + getattr(heard, array)}), head.correlation_id))


def _topic(asked: Message | str, names: Mapping[str, str]) -> str:
    """Return the topic that an element of a request is about; '' where the element is about something else."""
    if isinstance(asked, str):
        return str(asked)
    if hasattr(asked, "resource_name"):
        return str(asked.resource_name) if int(asked.resource_type) == TOPIC_RESOURCE else ""
    return names.get(str(asked.topic_id), "") if asked.name is None else str(asked.name)


def _refusal(head: RequestHead, name: str, asked: Message | str) -> Message:
    kind = element_type(answer_type(head), APIS[head.api_key].results)
    if head.api_key == ApiKey.CREATE_TOPICS:
        return refusal(kind, asked, Code.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists: kmigrate mirrors it")
    text = f"kmigrate: topic {name} is mirrored; its source decides its shape until its promote"
    return refusal(kind, asked, Code.POLICY_VIOLATION, text)
