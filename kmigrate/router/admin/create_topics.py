"""Creates topics for clients, if no source has a topic of that name that is not mirrored yet (D11).

After such a creation mirroring could not begin any more: the topic would then exist at the target with data that would
be nowhere else.

A Metadata request may ask the broker to create unknown topics. The router first asks without creation. If the answer
lacks a topic that the client would have had created, the router asks the sources for that topic. Topics that no source
has are then requested separately, as the client asked, and the two answers are merged.

For a CreateTopics request the router asks the sources at once. If a source has the topic, the creation is only tried
(validate only). The target then reports its own objections, first of all that the topic exists there, too. If the
target could create the topic, the router refuses with the reason. Topics that no source has are created as the client
asked, and the answers are merged.
"""

from __future__ import annotations

from kmigrate.protocol.api import Message, blank, encode_request, frame_answer, read_answer, replace
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead
from kmigrate.router.shared.conversation import Conversation
from kmigrate.router.shared.state import ClientLink, SharedState
from kmigrate.router.wire.admin import answer_with

__all__ = ["ask_metadata", "create_topics"]

_UNKNOWN = Code.UNKNOWN_TOPIC_OR_PARTITION.to_bytes(2, "big")


def ask_metadata(
    shared: SharedState, client: ClientLink, head: RequestHead, frame: bytearray, request: Message
) -> Conversation[bytearray]:
    """Ask the target for metadata on behalf of a client; return the target's answer."""
    if not request.allow_auto_topic_creation or not request.topics:  # a request for all topics creates none
        return (yield from client.ask_target([frame], head.correlation_id))
    quiet = encode_request(frame, head, replace(request, allow_auto_topic_creation=False))
    answer = yield from client.ask_target([quiet], head.correlation_id)
    free = _missing(answer, head)
    if free:
        free -= yield from shared.backend.at_sources(free)
    if not free:
        return answer
    named = tuple(topic for topic in request.topics if topic.name is not None and str(topic.name) in free)
    creating = encode_request(frame, head, replace(request, topics=named))
    created = yield from client.ask_target([creating], head.correlation_id)
    return _merged(answer, created, head)


def create_topics(
    shared: SharedState, client: ClientLink, head: RequestHead, frame: bytearray, request: Message
) -> Conversation[bytearray]:
    """Ask the target to create topics for a client, none of them mirrored; return the answer."""
    # A promoted topic belongs to the target: clients may delete the topic and create it again.
    asked = frozenset(str(topic.name) for topic in request.topics) - shared.table.topics.keys()
    at_sources = yield from shared.backend.at_sources(asked)
    if not at_sources:
        return (yield from client.ask_target([frame], head.correlation_id))
    tried = tuple(topic for topic in request.topics if str(topic.name) in at_sources)
    free = tuple(topic for topic in request.topics if str(topic.name) not in at_sources)
    trial = encode_request(frame, head, replace(request, topics=tried, validate_only=True))
    refused = _refused(shared, head, (yield from client.ask_target([trial], head.correlation_id)))
    if not free:
        return answer_with(head, refused)
    creating = encode_request(frame, head, replace(request, topics=free))
    return answer_with(head, refused, (yield from client.ask_target([creating], head.correlation_id)))


def _refused(shared: SharedState, head: RequestHead, answer: bytearray) -> tuple[Message, ...]:
    """Return the target's answer for tried topics, with a refusal for each topic that could be created."""
    results = []
    for topic in read_answer(head, answer).topics:
        if not code_of(topic.error_code):
            why = f"topic {topic.name} is not mirrored yet, and a source has it or cannot be asked: mirror it first"
            shared.backend.say(f"{head.client_id or 'a client'}: {why}; it was not created")
            refused = {"error_code": Code.POLICY_VIOLATION, "error_message": f"kmigrate: {why}"}
            topic = blank(type(topic), name=topic.name, **refused)
        results.append(topic)
    return tuple(results)


def _missing(answer: bytearray, head: RequestHead) -> frozenset[str]:
    """Return the topics of an answer that the target does not have."""
    if _UNKNOWN not in answer:  # nearly always; then the answer need not be decoded here
        return frozenset()
    return frozenset(
        str(topic.name)
        for topic in read_answer(head, answer).topics
        if topic.name is not None and code_of(topic.error_code) == Code.UNKNOWN_TOPIC_OR_PARTITION
    )


def _merged(first: bytearray, second: bytearray, head: RequestHead) -> bytearray:
    """Return the first answer with the topics of the second in place of its own."""
    answer, newer = (read_answer(head, frame) for frame in (first, second))
    by_name = {topic.name: topic for topic in newer.topics}
    topics = tuple(by_name.get(topic.name, topic) for topic in answer.topics)
    return bytearray(frame_answer(replace(answer, topics=topics), head.correlation_id))
