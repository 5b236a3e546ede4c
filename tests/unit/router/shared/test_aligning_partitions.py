"""Partitions that the mirror is filling: no answer about them reaches a client, whenever the client asked."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import ClusterRef, LinkRecord, TopicRecord
from kmigrate.model.routes import Serve, TopicRoute, next_table, routing_table
from kmigrate.model.state import State
from kmigrate.protocol.api import (
    ApiKey,
    blank,
    decode_body,
    element_type,
    encode_body,
    entity,
    field_type,
    frame_answer,
    is_flexible,
)
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.shared.aligning_partitions import AligningPartitions
from kmigrate.router.wire.aligning import cut_fetch
from kmigrate.router.wire.apis import OFFERED
from tests.unit.router.fetch.test_passing_fetch import answered, read
from tests.unit.router.router_fakes import Stage, route

LINK = LinkRecord("l", "uuid", ClusterRef("source", "a:1", "A"), ClusterRef("target", "b:1", "B"), 1)
IDS = {"t": uuid.UUID(int=1), "u": uuid.UUID(int=2)}
ID, OTHER = uuid.UUID(int=77), uuid.UUID(int=78)
LEADER_EPOCH, NOT_LEADER = 23, 6
VERSIONS = range(OFFERED[ApiKey.FETCH].versions[0], OFFERED[ApiKey.FETCH].versions[1] + 1)


def aligning(topic: str = "t") -> TopicRoute:
    return replace(route(topic, Serve.HIDDEN), target_id=str(ID))


def mirrored(topic: str = "t") -> TopicRoute:
    return replace(route(topic, Serve.FORWARD), target_id=str(ID))


def send(stage: Stage, key: int, version: int, **values: Any) -> None:
    raw = encode_request_head(key, version, 7, b"c", is_flexible(key, version))
    raw += encode_body(blank(entity(key, version, "request"), **values))
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))


def fetch(stage: Stage, version: int = 16, **values: Any) -> None:
    send(stage, ApiKey.FETCH, version, **{"session_epoch": -1, "max_bytes": 50 << 20, **values})


def records(version: int, topic: str = "t", topic_id: uuid.UUID = ID, session: int = 0) -> bytearray:
    """Return an answer with records of partitions 0 and 1 of a topic."""
    kind = entity(ApiKey.FETCH, version, "response")
    topic_type = element_type(kind, "responses")
    part_type = element_type(topic_type, "partitions")
    parts = tuple(blank(part_type, partition_index=n, high_watermark=9, records=bytes(70)) for n in (0, 1))
    named = {"topic_id": topic_id} if version >= 13 else {"topic": topic}
    told = blank(kind, session_id=session, responses=(blank(topic_type, **named, partitions=parts),))
    return bytearray(frame_answer(told, 7))


def told(stage: Stage, version: int = 16) -> list[tuple[int, int, int]]:
    """Return partition, error and size of the records in the newest answer."""
    answer = read(bytes(stage.edge.replies.pop()), version)
    parts = [each for topic in answer.responses for each in topic.partitions]
    return [(int(each.partition_index), int(each.error_code), len(each.records or b"")) for each in parts]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_of_a_topic_that_is_filled_up_reach_nobody_in_any_version(version: int) -> None:
    stage = Stage(aligning())
    fetch(stage, version)
    stage.edge.sent.pop().answered_with(records(version))
    assert told(stage, version) == [(0, NOT_LEADER, 0), (1, NOT_LEADER, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_cut_out_leaves_every_other_byte_as_it_was(version: int) -> None:
    frame = bytearray(answered(version, host="h"))
    name = uuid.UUID(int=3).bytes if version >= 13 else b"one"
    after = read(bytes(cut_fetch(frame, version, lambda topic, index: (topic, index) == (name, 1))), version)
    before = read(bytes(frame), version)
    assert after.responses[0].partitions[0] == before.responses[0].partitions[0]
    assert after.responses[1:] == before.responses[1:]
    assert getattr(after, "node_endpoints", ()) == getattr(before, "node_endpoints", ())
    cut = after.responses[0].partitions[1]
    assert (int(cut.error_code), int(cut.partition_index), cut.records or b"") == (NOT_LEADER, 1, b"")
    assert cut_fetch(frame, version, lambda *_: False) is frame


def test_the_open_session_of_a_reader_that_came_before_is_cut_too() -> None:
    stage = Stage(replace(route("u", Serve.FORWARD), target_id=str(OTHER)))
    fetch(stage, session_epoch=0)
    stage.edge.sent.pop().answered_with(records(16, topic_id=OTHER, session=5))
    assert told(stage) == [(0, 0, 70), (1, 0, 70)]
    fetch(stage, session_id=5, session_epoch=1)
    stage.swap(aligning())
    sent = stage.edge.sent.pop()
    assert sent.begins is not None and sent.begins() is None, "it is awaited whole"
    sent.answered_with(records(16, session=5))
    assert told(stage) == [(0, NOT_LEADER, 0), (1, NOT_LEADER, 0)]


def test_an_answer_that_was_asked_for_while_fillers_were_there_is_cut_after_the_release() -> None:
    stage = Stage()
    fetch(stage)
    stage.swap(aligning())
    stage.swap(mirrored())
    stage.edge.sent.pop().answered_with(records(16))
    assert told(stage) == [(0, NOT_LEADER, 0), (1, NOT_LEADER, 0)]
    fetch(stage)
    sent = stage.edge.sent.pop()
    assert sent.begins is not None and sent.begins() is not None, "large answers pass in pieces again"
    sent.answered_with(records(16))
    assert told(stage) == [(0, 0, 70), (1, 0, 70)]


def test_of_a_mirrored_topic_only_the_partitions_that_are_filled_up_are_cut() -> None:
    stage = Stage(replace(mirrored(), aligning=frozenset({1})))
    fetch(stage)
    stage.edge.sent.pop().answered_with(records(16))
    assert told(stage) == [(0, 0, 70), (1, NOT_LEADER, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_ask_for_less_while_answers_are_held_whole(version: int) -> None:
    stage = Stage(aligning())
    fetch(stage, version)
    stage.swap(mirrored())
    fetch(stage, version)
    kind = entity(ApiKey.FETCH, version, "request")
    limits = []
    for sent in stage.edge.sent:
        head = 4 + 8 + 2 + 1 + (1 if is_flexible(ApiKey.FETCH, version) else 0)
        limits.append(int(decode_body(kind, sent.frame, head).max_bytes))
    assert limits == [1 << 20, 50 << 20]


@pytest.mark.parametrize("key", [ApiKey.LIST_OFFSETS, LEADER_EPOCH])
def test_where_a_topic_that_is_filled_up_begins_and_ends_is_told_to_nobody(key: int) -> None:
    version = OFFERED[key].versions[1]
    stage = Stage(aligning())
    send(stage, key, version)
    kind = entity(key, version, "response")
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    end = {"offset": 500} if key == ApiKey.LIST_OFFSETS else {"end_offset": 500}
    named = "name" if key == ApiKey.LIST_OFFSETS else "topic"
    topics = tuple(blank(topic_type, **{named: t}, partitions=(blank(part_type, **end),)) for t in ("t", "other"))
    stage.edge.sent.pop().answered_with(bytearray(frame_answer(blank(kind, topics=topics), 7)))
    reply = stage.edge.replies.pop()
    answer: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    found = [(int(t.partitions[0].error_code), int(getattr(t.partitions[0], next(iter(end))))) for t in answer.topics]
    assert found == [(NOT_LEADER, -1), (0, 500)]


def test_a_share_groups_reader_is_given_no_filler() -> None:
    stage = Stage(aligning())
    send(stage, 78, 1)
    kind = entity(78, 1, "response")
    topic_type = element_type(kind, "responses")
    part_type = element_type(topic_type, "partitions")
    leader = blank(field_type(part_type, "current_leader"))
    parts = (blank(part_type, current_leader=leader, records=bytes(70)),)
    answer = blank(kind, responses=(blank(topic_type, topic_id=ID, partitions=parts),))
    stage.edge.sent.pop().answered_with(bytearray(frame_answer(answer, 7)))
    reply = stage.edge.replies.pop()
    shown: Any = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    [one] = shown.responses[0].partitions
    assert (int(one.error_code), one.records or b"") == (NOT_LEADER, b"")


def test_a_record_of_one_topic_releases_no_other_and_each_is_judged_by_its_own_tables() -> None:
    """Tables that follow one another name the topics whose routes have changed; the rest is as before."""
    state = State().with_record(LINK.key, LINK, 0)
    known, partitions = routing_table(state), AligningPartitions()

    def follow(topic: str, phase: TopicPhase, *added: int) -> None:
        nonlocal state, known
        record = TopicRecord("l", topic, phase, 1, partitions=2, target_topic_id=str(IDS[topic]), aligning=added)
        before, state = state, state.with_record(record.key, record, state.epoch + 1)
        known = next_table(state, before, known)
        partitions.follow(known, 0.0)

    def found(since: int) -> list[tuple[str, int]]:
        test = partitions.judge(since)
        both = [(topic, p) for topic in sorted(IDS) for p in (0, 1)]
        by_name = [each for each in both if test(each[0].encode(), each[1])]
        assert [each for each in both if test(IDS[each[0]].bytes, each[1])] == by_name
        return by_name

    follow("t", TopicPhase.ALIGNING)
    follow("u", TopicPhase.ALIGNING)
    assert found(2) == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    follow("t", TopicPhase.MIRRORING)
    assert found(2) == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    assert found(3) == [("u", 0), ("u", 1)]
    follow("u", TopicPhase.MIRRORING)
    assert found(4) == []
    assert partitions.concerns(3)
    assert not partitions.concerns(4)
    follow("t", TopicPhase.MIRRORING, 1)
    assert partitions.concerns(5)
    assert found(5) == [("t", 1)]
    assert found(3) == [("t", 1), ("u", 0), ("u", 1)]


def test_what_was_released_is_forgotten_in_the_end() -> None:
    stage = Stage(aligning())
    stage.swap(mirrored())
    assert stage.shared.aligning.concerns(1)
    stage.edge.clock = 4000.0
    stage.swap(mirrored())
    assert not stage.shared.aligning.concerns(1)
