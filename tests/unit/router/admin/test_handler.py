"""Topics that a client may create by Metadata or CreateTopics, and topics that a client must not create (D11)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import (
    blank,
    decode_body,
    decode_request,
    element_type,
    encode_body,
    entity,
    frame_answer,
    is_flexible,
)
from kmigrate.protocol.codes import code_of
from kmigrate.protocol.frames import encode_request_head, peek_request, response_body_offset
from kmigrate.router.shared.state import Outcome
from tests.unit.router.router_fakes import Stage, route

UNKNOWN, REFUSED = 3, 38
VERSIONS = range(4, 14)


def _ask(stage: Stage, version: int, *topics: str, create: bool = True) -> None:
    kind = entity(3, version, "request")
    named = tuple(blank(element_type(kind, "topics"), name=topic) for topic in topics)
    stage.request(blank(kind, topics=named, allow_auto_topic_creation=create))


def _sent(stage: Stage, version: int) -> list[tuple[list[str], bool]]:
    """Return the requests that reached the target: the topics, and whether the target may create the topics."""
    out = []
    for sent in stage.edge.sent:
        head = peek_request(sent.frame, is_flexible(3, version))
        request = decode_request(sent.frame, head)
        out.append(([str(topic.name) for topic in request.topics], bool(request.allow_auto_topic_creation)))
    return out


def _answer(stage: Stage, version: int, **errors: int) -> None:
    """Answer the newest request: each topic with the given error, or with a partition for error 0."""
    kind = entity(3, version, "response")
    topic_type = element_type(kind, "topics")
    part = blank(element_type(topic_type, "partitions"), leader_id=1)
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
def test_who_asks_for_all_topics_creates_none_and_nobody_looks_for_what_is_missing(version: int) -> None:
    """Java's consumers that subscribe to a pattern send such a request, and the request would allow creation."""
    stage, kind = Stage(), entity(3, version, "request")
    raw = encode_request_head(3, version, 7, b"c", is_flexible(3, version)) + encode_body(blank(kind, topics=None))
    frame = len(raw).to_bytes(4, "big") + raw
    assert decode_request(bytearray(frame), peek_request(bytearray(frame), is_flexible(3, version))).topics is None
    stage.session.frame(bytearray(frame))
    assert stage.edge.sent[-1].frame == frame
    _answer(stage, version, gone=UNKNOWN)
    assert _told(stage, version) == [("gone", UNKNOWN)]
    assert len(stage.edge.sent) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_a_source_has_does_not_spring_up_empty(version: int) -> None:
    stage = Stage()
    stage.backend.source_topics = frozenset({"later"})
    _ask(stage, version, "later", "new")
    _answer(stage, version, later=UNKNOWN, new=UNKNOWN)
    _answer(stage, version, new=UNKNOWN)
    assert _sent(stage, version) == [(["later", "new"], False), (["new"], True)]
    assert _told(stage, version) == [("later", UNKNOWN), ("new", UNKNOWN)]


def test_nothing_is_created_where_a_source_has_all_that_is_missing() -> None:
    stage = Stage()
    stage.backend.source_topics = frozenset({"later"})
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


# CreateTopics

EXISTS, POLICY = 36, 44
CREATE_VERSIONS = range(2, 8)


def _create(stage: Stage, version: int, *topics: str, validate_only: bool = False) -> None:
    kind = entity(19, version, "request")
    named = tuple(blank(element_type(kind, "topics"), name=topic, num_partitions=3) for topic in topics)
    stage.request(blank(kind, topics=named, validate_only=validate_only))


def _asked_to_create(stage: Stage, version: int) -> list[tuple[list[str], bool]]:
    """Return the CreateTopics requests that reached the target: the topics, and the flag `validate_only`."""
    out = []
    for sent in stage.edge.sent:
        request = decode_request(sent.frame, peek_request(sent.frame, is_flexible(19, version)))
        assert all(int(topic.num_partitions) == 3 for topic in request.topics)
        out.append(([str(topic.name) for topic in request.topics], bool(request.validate_only)))
    return out


def _answer_creation(stage: Stage, version: int, **errors: int) -> None:
    kind = entity(19, version, "response")
    topic_type = element_type(kind, "topics")
    topics = tuple(blank(topic_type, name=n, error_code=e, num_partitions=3) for n, e in errors.items())
    stage.edge.sent[-1].answered_with(bytearray(frame_answer(blank(kind, topics=topics), 7)))


def _told_of_creation(stage: Stage, version: int) -> dict[str, int]:
    [reply] = stage.edge.replies
    kind = entity(19, version, "response")
    answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    return {str(topic.name): code_of(topic.error_code) for topic in answer.topics}


@pytest.mark.parametrize("version", CREATE_VERSIONS)
@pytest.mark.parametrize("validate_only", [True, False])
def test_who_creates_what_he_misses_hears_that_a_mirrored_topic_exists_and_gets_the_others(
    version: int, *, validate_only: bool
) -> None:
    stage = Stage(route("mirrored", Serve.FORWARD))
    _create(stage, version, "mirrored", "new", "there", validate_only=validate_only)
    _answer_creation(stage, version, new=0, there=EXISTS)
    assert _asked_to_create(stage, version) == [(["new", "there"], validate_only)]
    assert _told_of_creation(stage, version) == {"mirrored": EXISTS, "new": 0, "there": EXISTS}
    assert stage.backend.said == [], "nobody was refused anything"


@pytest.mark.parametrize("serve", [Serve.HIDDEN, Serve.FORWARD, Serve.HOLD])
def test_a_topic_exists_from_the_moment_it_is_to_be_mirrored(serve: Serve) -> None:
    stage = Stage(route("t", serve))
    _create(stage, 7, "t")
    assert stage.edge.sent == []
    assert _told_of_creation(stage, 7) == {"t": EXISTS}


def test_a_promoted_topic_is_the_targets_to_create_though_its_source_still_has_it() -> None:
    stage = Stage(route("t", Serve.LOCAL))
    stage.backend.source_topics = frozenset({"t"})
    _create(stage, 7, "t")
    _answer_creation(stage, 7, t=EXISTS)
    assert _asked_to_create(stage, 7) == [(["t"], False)]
    assert _told_of_creation(stage, 7) == {"t": EXISTS}


@pytest.mark.parametrize("version", CREATE_VERSIONS)
@pytest.mark.parametrize("validate_only", [True, False])
def test_who_comes_before_his_topic_is_mirrored_makes_no_empty_namesake(version: int, *, validate_only: bool) -> None:
    stage = Stage(route("mirrored", Serve.FORWARD))
    stage.backend.source_topics = frozenset({"early", "mirrored"})
    _create(stage, version, "early", "new", "mirrored", validate_only=validate_only)
    _answer_creation(stage, version, early=0)
    _answer_creation(stage, version, new=0)
    assert _asked_to_create(stage, version) == [(["early"], True), (["new"], validate_only)]
    assert _told_of_creation(stage, version) == {"mirrored": EXISTS, "early": POLICY, "new": 0}
    assert ["early is not mirrored yet" in said for said in stage.backend.said] == [True]


@pytest.mark.parametrize("code", [EXISTS, REFUSED])
def test_of_a_topic_that_a_source_has_the_target_tells_what_stands_against_it(code: int) -> None:
    stage = Stage()
    stage.backend.source_topics = frozenset({"early"})
    _create(stage, 7, "early")
    _answer_creation(stage, 7, early=code)
    assert _asked_to_create(stage, 7) == [(["early"], True)]
    assert _told_of_creation(stage, 7) == {"early": code}
    assert stage.backend.said == []
