"""ListOffsets at the router: the end of a mirrored topic is answered when the copy has all records of the source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import (
    blank,
    decode_body,
    decode_request,
    element_type,
    entity,
    frame_answer,
    is_flexible,
)
from kmigrate.protocol.frames import peek_request, response_body_offset
from kmigrate.router.session.session import Session
from tests.unit.router.router_fakes import Sent, Stage, route

LATEST, EARLIEST, LARGEST, EARLIEST_LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6
NEWEST = 11


def _ask(stage: Stage, *asked: tuple[str, int, int], version: int = NEWEST) -> None:
    kind = entity(2, version, "request")
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    topics = tuple(
        blank(topic_type, name=topic, partitions=(blank(part_type, partition_index=part, timestamp=timestamp),))
        for topic, part, timestamp in asked
    )
    stage.request(blank(kind, topics=topics))


def _answer(sent: Sent, offset: int) -> None:
    """Answer with the given offset, in the version of the request."""
    _, version = int.from_bytes(sent.frame[4:6]), int.from_bytes(sent.frame[6:8])
    asked = decode_request(sent.frame, peek_request(sent.frame, is_flexible(2, version)))
    kind = entity(2, version, "response")
    topic_type = element_type(kind, "topics")
    part = blank(element_type(topic_type, "partitions"), offset=offset)
    topics = tuple(blank(topic_type, name=topic.name, partitions=(part,)) for topic in asked.topics)
    sent.answered_with(bytearray(frame_answer(blank(kind, topics=topics), 7)))


def _told(stage: Stage, version: int = NEWEST) -> list[tuple[str, int]]:
    [reply] = stage.edge.replies
    kind = entity(2, version, "response")
    answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    return [(str(topic.name), int(topic.partitions[0].offset)) for topic in answer.topics]


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
@pytest.mark.parametrize("serve", [Serve.FORWARD, Serve.HOLD])
def test_an_end_is_not_before_what_the_source_had_when_it_was_asked(version: int, serve: Serve) -> None:
    stage = Stage(route("t", serve))
    _ask(stage, ("t", 1, LATEST), version=version)
    assert not stage.edge.sent
    [(link, keys, ends)] = stage.backend.asked_ends
    assert link == "l" and set(keys) == {("t", 1)}
    ends({("t", 1): 20})
    [(positions, copied)] = stage.backend.awaited
    assert positions == {("t", 1): 20} and not stage.edge.sent
    copied(True)
    [sent] = stage.edge.sent
    _answer(sent, 21)
    assert _told(stage, version) == [("t", 21)]


@pytest.mark.parametrize("timestamp", [0, 1_700_000_000_000, LARGEST])
def test_what_is_asked_by_a_time_depends_on_the_end_too(timestamp: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _ask(stage, ("t", 0, timestamp))
    assert len(stage.backend.asked_ends) == 1 and not stage.edge.sent


@pytest.mark.parametrize("timestamp", [EARLIEST, EARLIEST_LOCAL, TIERED, PENDING])
def test_what_is_near_the_start_is_told_at_once(timestamp: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _ask(stage, ("t", 0, timestamp))
    assert len(stage.edge.sent) == 1 and not stage.backend.asked_ends


def test_of_promoted_hidden_mapped_and_other_topics_no_source_is_asked() -> None:
    mapped, back = replace(route("mapped", Serve.FORWARD), mapped=True), route("back", Serve.HOLD, rolling_back=True)
    promoted, hidden = route("promoted", Serve.LOCAL), route("hidden", Serve.HIDDEN)
    stage = Stage(route("t", Serve.FORWARD), promoted, hidden, mapped, back)
    _ask(stage, *((topic, 0, LATEST) for topic in ("promoted", "hidden", "mapped", "back", "other")))
    assert len(stage.edge.sent) == 1 and not stage.backend.asked_ends


def test_topics_of_two_sources_are_waited_for_together() -> None:
    stage = Stage(route("a", Serve.FORWARD, link="one"), route("b", Serve.FORWARD, link="two"))
    _ask(stage, ("a", 0, LATEST), ("b", 1, LATEST), ("other", 0, LATEST))
    for _, keys, told in stage.backend.asked_ends:
        told(dict.fromkeys(keys, 5))
    first, second = stage.backend.awaited
    first[1](True)
    assert not stage.edge.sent
    second[1](True)
    [sent] = stage.edge.sent
    _answer(sent, 5)
    assert _told(stage) == [("a", 5), ("b", 5), ("other", 5)]


def test_a_copy_that_is_far_behind_is_told_as_it_is_and_not_waited_for_again_at_once() -> None:
    stage = Stage(route("t", Serve.FORWARD), route("u", Serve.FORWARD))
    _ask(stage, ("t", 0, LATEST))
    stage.backend.asked_ends.pop()[2]({("t", 0): 20})
    stage.backend.awaited.pop()[1](False)
    assert len(stage.edge.sent) == 1
    _ask(stage, ("t", 1, LATEST))
    assert len(stage.edge.sent) == 2, "the next partition of the same topic"
    _ask(stage, ("u", 0, LATEST))
    assert len(stage.backend.asked_ends) == 1, "another topic"
    stage.edge.clock = 11.0
    _ask(stage, ("t", 0, LATEST))
    assert len(stage.backend.asked_ends) == 2 and len(stage.edge.sent) == 2


def test_a_source_that_does_not_tell_its_end_keeps_nobody() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _ask(stage, ("t", 0, LATEST))
    stage.edge.clock = stage.shared.settings.group_hold_s
    stage.backend.asked_ends.pop()[2]({})
    assert len(stage.edge.sent) == 1 and not stage.backend.awaited
    _ask(stage, ("t", 1, LATEST))
    assert len(stage.edge.sent) == 2, "it is not waited for again at once"


def test_a_partition_that_does_not_exist_changes_nothing_for_those_that_do() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _ask(stage, ("t", 99, LATEST))
    stage.backend.asked_ends.pop()[2]({})
    assert len(stage.edge.sent) == 1
    _ask(stage, ("t", -5, LATEST))
    assert len(stage.edge.sent) == 2 and not stage.backend.asked_ends, "no source has one with such a number"
    _ask(stage, ("t", 0, LATEST))
    assert len(stage.backend.asked_ends) == 1 and len(stage.edge.sent) == 2, "it waits for its copy as ever"


def test_who_has_waited_in_vain_changes_nothing_for_another_client() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _ask(stage, ("t", 0, LATEST))
    stage.backend.asked_ends.pop()[2]({("t", 0): 20})
    stage.backend.awaited.pop()[1](False)
    assert len(stage.edge.sent) == 1
    stage.session = Session(stage.shared, stage.edge)
    _ask(stage, ("t", 0, LATEST))
    assert len(stage.backend.asked_ends) == 1 and len(stage.edge.sent) == 1


def test_what_was_waited_for_is_remembered_for_no_longer_than_it_matters() -> None:
    stage = Stage(*(route(f"t{n}", Serve.FORWARD) for n in range(9)))
    for n in range(9):
        stage.edge.clock = 20.0 * n
        _ask(stage, (f"t{n}", 0, LATEST))
        stage.backend.asked_ends.pop()[2]({(f"t{n}", 0): 9})
        stage.backend.awaited.pop()[1](False)
    assert list(stage.session._end_offsets.behind) == ["t8"]
