"""Topics that spring up because a client asked for them: let happen, unless a source has one of that name (D11).

A Metadata request may ask the broker to create what it does not know. The router first asks without that. Where the
answer lacks a topic that the client would have had created, the sources of all unfinished links are asked for it: one
that has it may mirror it later, and an empty namesake at the target would stand in its way. What no source has is then
asked for as the client did, by itself, and the two answers are merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kmigrate.protocol.api import decode_body, entity
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, response_body_offset
from kmigrate.router.apis.addresses import METADATA, encode_request
from kmigrate.router.apis.blank import frame_answer
from kmigrate.router.core import Buffer, Core, Edge

__all__ = ["ask_layout"]

_UNKNOWN = Code.UNKNOWN_TOPIC_OR_PARTITION.to_bytes(2, "big")


def ask_layout(
    core: Core, edge: Edge, head: RequestHead, frame: bytearray, request: Any, then: Callable[[bytearray], None]
) -> None:
    """Ask the target for metadata on behalf of a client; `then` gets the answer as the target gives it."""
    if not request.allow_auto_topic_creation:
        edge.to_target([frame], head.correlation_id, then)
        return

    def answered(answer: bytearray) -> None:
        missing = _missing(answer, head)
        if not missing:
            then(answer)
            return
        core.outside.at_sources(missing, lambda there: create(answer, missing - there))

    def create(answer: bytearray, free: frozenset[str]) -> None:
        if not free:
            then(answer)
            return
        named = tuple(topic for topic in request.topics if topic.name is not None and str(topic.name) in free)
        alone = encode_request(frame, head, dataclasses.replace(request, topics=named))
        edge.to_target([alone], head.correlation_id, lambda second: then(_merged(answer, second, head)))

    quiet = encode_request(frame, head, dataclasses.replace(request, allow_auto_topic_creation=False))
    edge.to_target([quiet], head.correlation_id, answered)


def _missing(answer: bytearray, head: RequestHead) -> frozenset[str]:
    """The topics of an answer that the target does not have."""
    if _UNKNOWN not in answer:  # nearly always: then the answer need not be read for this
        return frozenset()
    return frozenset(
        str(topic.name)
        for topic in _read(answer, head).topics
        if topic.name is not None and code_of(topic.error_code) == Code.UNKNOWN_TOPIC_OR_PARTITION
    )


def _merged(first: Buffer, second: Buffer, head: RequestHead) -> bytearray:
    """The first answer with the topics of the second in place of its own."""
    answer, newer = _read(first, head), {topic.name: topic for topic in _read(second, head).topics}
    topics = tuple(newer.get(topic.name, topic) for topic in answer.topics)
    return bytearray(frame_answer(dataclasses.replace(answer, topics=topics), head.correlation_id))


def _read(answer: Buffer, head: RequestHead) -> Any:
    kind = entity(METADATA, head.version, "response")
    frame = bytearray(answer)
    return decode_body(kind, frame, response_body_offset(frame, kind.__flexible__))
