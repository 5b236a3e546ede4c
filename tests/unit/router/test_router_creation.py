"""Topics that a client's Metadata request may create, and those that it must not (D11)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kmigrate.protocol.api import decode_body, encode_body, entity, is_flexible
from kmigrate.protocol.frames import encode_request_head, peek_request, response_body_offset
from kmigrate.router.apis.addresses import decode_request
from kmigrate.router.apis.blank import blank, element, frame_answer
from kmigrate.router.core import Outcome
from tests.unit.router.router_fakes import Stage

UNKNOWN, REFUSED = 3, 38
VERSIONS = range(4, 14)


def _ask(stage: Stage, version: int, *topics: str, create: bool = True) -> None:
    kind = entity(3, version, "request")
    named = tuple(blank(element(kind, "topics"), name=topic) for topic in topics)
    body = encode_body(blank(kind, topics=named, allow_auto_topic_creation=create))
    raw = encode_request_head(3, version, 7, b"c", is_flexible(3, version)) + body
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))


def _sent(stage: Stage, version: int) -> list[tuple[list[str], bool]]:
    """What the target was asked: the topics, and whether they may be created."""
    out = []
    for sent in stage.edge.sent:
        head = peek_request(sent.frame, is_flexible(3, version))
        request = decode_request(sent.frame, head)
        out.append(([str(topic.name) for topic in request.topics], bool(request.allow_auto_topic_creation)))
    return out


def _answer(stage: Stage, version: int, **errors: int) -> None:
    """Answer the newest request: each topic with its error, or with one partition where that is 0."""
    kind = entity(3, version, "response")
    topic_type = element(kind, "topics")
    part = blank(element(topic_type, "partitions"), leader_id=1)
    topics = tuple(
        blank(topic_type, name=n, topic_id=uuid.uuid4(), error_code=e, partitions=() if e else (part,))
        for n, e in errors.items()
    )
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(bytearray(frame_answer(blank(kind, topics=topics), 7))))


def _told(stage: Stage, version: int) -> list[tuple[str, int]]:
    [reply] = stage.edge.replies
    kind = entity(3, version, "response")
    answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    return [(str(topic.name), int(topic.error_code)) for topic in answer.topics]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_nobody_has_is_created_as_the_client_asked(version: int) -> None:
    stage = Stage()
    _ask(stage, version, "there", "new")
    _answer(stage, version, there=0, new=UNKNOWN)
    _answer(stage, version, new=REFUSED)
    assert _sent(stage, version) == [(["there", "new"], False), (["new"], True)]
    assert _told(stage, version) == [("there", 0), ("new", REFUSED)], "the target's word on the creation"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_a_source_has_does_not_spring_up_empty(version: int) -> None:
    stage = Stage()
    stage.outside.source_topics = frozenset({"later"})
    _ask(stage, version, "later", "new")
    _answer(stage, version, later=UNKNOWN, new=UNKNOWN)
    _answer(stage, version, new=UNKNOWN)
    assert _sent(stage, version) == [(["later", "new"], False), (["new"], True)]
    assert _told(stage, version) == [("later", UNKNOWN), ("new", UNKNOWN)]


def test_nothing_is_created_where_a_source_has_all_that_is_missing() -> None:
    stage = Stage()
    stage.outside.source_topics = frozenset({"later"})
    _ask(stage, 12, "later")
    _answer(stage, 12, later=UNKNOWN)
    assert _sent(stage, 12) == [(["later"], False)]
    assert _told(stage, 12) == [("later", UNKNOWN)]


@pytest.mark.parametrize("create", [True, False])
def test_who_asks_for_what_is_there_or_for_no_creation_asks_the_target_once(create: bool) -> None:
    stage = Stage()
    _ask(stage, 12, "t", create=create)
    _answer(stage, 12, t=0 if create else UNKNOWN)
    assert _sent(stage, 12) == [(["t"], False)]
    assert _told(stage, 12) == [("t", 0 if create else UNKNOWN)]
