"""Topics that are created because a client asks for them: allowed, unless a source has a topic of that name (D11).

A source of an unfinished link that has a topic may mirror the topic later. An empty topic of the same name at the
target would block that. Records that an application writes there after moving too early would be nowhere else.

A Metadata request may ask the broker to create unknown topics. The router first asks without creation. If the answer
lacks a topic that the client would have had created, the router asks the sources for that topic. Topics that no source
has are then requested separately, as the client asked, and the two answers are merged.

For a CreateTopics request the router asks the sources at once. If a source has the topic, the creation is only tried
(validate only). The target then reports its own objections, first of all that the topic exists there, too. If the
target could create the topic, the router refuses with the reason. Topics that no source has are created as the client
asked, and the answers are merged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kmigrate.protocol.api import answer_type, blank, decode_answer, encode_request, frame_answer
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.state import Buffer, ClientLink, SharedState
from kmigrate.router.wire.admin import answer_with

__all__ = ["ask_layout", "create_topics"]

_UNKNOWN = Code.UNKNOWN_TOPIC_OR_PARTITION.to_bytes(2, "big")


def ask_layout(
    shared: SharedState,
    client: ClientLink,
    head: RequestHead,
    frame: bytearray,
    request: Any,
    then: Callable[[bytearray], None],
) -> None:
    """Ask the target for metadata on behalf of a client; `then` gets the answer as the target gives it."""
    if not request.allow_auto_topic_creation or not request.topics:  # a request for all topics creates none
        client.to_target([frame], head.correlation_id, then)
        return

    def answered(answer: bytearray) -> None:
        missing = _missing(answer, head)
        if not missing:
            then(answer)
            return
        shared.backend.at_sources(missing).then(lambda there: create(answer, missing - there))

    def create(answer: bytearray, free: frozenset[str]) -> None:
        if not free:
            then(answer)
            return
        named = tuple(topic for topic in request.topics if topic.name is not None and str(topic.name) in free)
        alone = encode_request(frame, head, dataclasses.replace(request, topics=named))
        client.to_target([alone], head.correlation_id, lambda second: then(_merged(answer, second, head)))

    quiet = encode_request(frame, head, dataclasses.replace(request, allow_auto_topic_creation=False))
    client.to_target([quiet], head.correlation_id, answered)


def create_topics(
    shared: SharedState,
    client: ClientLink,
    head: RequestHead,
    frame: bytearray,
    request: Any,
    then: Callable[[bytearray], None],
) -> None:
    """Ask the target to create topics for a client, none of them mirrored; `then` gets the answer."""

    def split(there: frozenset[str]) -> None:
        if not there:
            client.to_target([frame], head.correlation_id, then)
            return
        tried = tuple(topic for topic in request.topics if str(topic.name) in there)
        free = tuple(topic for topic in request.topics if str(topic.name) not in there)
        trial = encode_request(frame, head, dataclasses.replace(request, topics=tried, validate_only=True))
        client.to_target([trial], head.correlation_id, lambda answer: create(_refused(shared, head, answer), free))

    def create(told: tuple[Any, ...], free: tuple[Any, ...]) -> None:
        if not free:
            then(answer_with(head, told))
            return
        alone = encode_request(frame, head, dataclasses.replace(request, topics=free))
        client.to_target([alone], head.correlation_id, lambda answer: then(answer_with(head, told, answer)))

    # A promoted topic belongs to the target: clients may delete the topic and create it again.
    shared.backend.at_sources(frozenset(str(topic.name) for topic in request.topics) - shared.table.topics.keys()).then(
        split
    )


def _refused(shared: SharedState, head: RequestHead, answer: bytearray) -> tuple[Any, ...]:
    """Return the target's answer for tried topics, with a refusal for each topic that could be created."""
    told = []
    for topic in _read(answer, head).topics:
        if not code_of(topic.error_code):
            why = f"topic {topic.name} is not mirrored yet, and a source has it or cannot be asked: mirror it first"
            shared.backend.say(f"{head.client_id or 'a client'}: {why}; it was not created")
            refused = {"error_code": Code.POLICY_VIOLATION, "error_message": f"kmigrate: {why}"}
            topic = blank(type(topic), name=topic.name, **refused)
        told.append(topic)
    return tuple(told)


def _missing(answer: bytearray, head: RequestHead) -> frozenset[str]:
    """Return the topics of an answer that the target does not have."""
    if _UNKNOWN not in answer:  # nearly always; then the answer need not be decoded here
        return frozenset()
    return frozenset(
        str(topic.name)
        for topic in _read(answer, head).topics
        if topic.name is not None and code_of(topic.error_code) == Code.UNKNOWN_TOPIC_OR_PARTITION
    )


def _merged(first: Buffer, second: Buffer, head: RequestHead) -> bytearray:
    """Return the first answer with the topics of the second in place of its own."""
    answer, newer = _read(first, head), {topic.name: topic for topic in _read(second, head).topics}
    topics = tuple(newer.get(topic.name, topic) for topic in answer.topics)
    return bytearray(frame_answer(dataclasses.replace(answer, topics=topics), head.correlation_id))


def _read(answer: Buffer, head: RequestHead) -> Any:
    kind = answer_type(head)
    frame = bytearray(answer)
    return decode_answer(kind, frame)
