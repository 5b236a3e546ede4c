"""Metadata requests of old clients: asked in version 4, answered in the client's version, by kio's own reading."""

from __future__ import annotations

from typing import Any

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import (
    ApiKey,
    blank,
    decode_answer,
    decode_request,
    element_type,
    entity,
    frame_answer,
)
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import peek_request
from kmigrate.router.wire.metadata import show_topics
from kmigrate.router.wire.node_ids import AddressBook
from kmigrate.router.wire.old_metadata import answer_in_version
from tests.unit.router.router_fakes import Stage, route

OLD = range(4)
ASKED = 4


def _asked(version: int, *names: str, everything: bool = False) -> Any:
    """Return the request of a client; all topics are an empty list in version 0, and null after that."""
    kind = entity(ApiKey.METADATA, version, "request")
    each = element_type(kind, "topics")
    topics = None if everything and version else tuple(blank(each, name=name) for name in names)
    return blank(kind, topics=topics)


def _answer(version: int, *topics: tuple[str, int, tuple[int, ...]], brokers: tuple[int, ...] = (1,)) -> bytearray:
    """Return an answer with these topics: name, error, and the replicas of the only partition."""
    kind = entity(ApiKey.METADATA, version, "response")
    broker, topic = element_type(kind, "brokers"), element_type(kind, "topics")
    part = element_type(topic, "partitions")

    def made(name: str, error: int, replicas: tuple[int, ...]) -> Any:
        of_topic = (blank(part, leader_id=replicas[0], replica_nodes=replicas, isr_nodes=replicas),) if replicas else ()
        return blank(topic, name=name, error_code=error, is_internal=name.startswith("__"), partitions=of_topic)

    told = blank(
        kind,
        brokers=tuple(blank(broker, node_id=node, host="b", port=9092, rack="r") for node in brokers),
        cluster_id="c",
        controller_id=1,
        topics=tuple(made(*each) for each in topics),
    )
    return bytearray(frame_answer(told, 7))


def _sent(stage: Stage) -> Any:
    frame = stage.edge.sent[-1].frame
    head = peek_request(frame)
    assert (head.api_key, head.version, head.client_id) == (ApiKey.METADATA, ASKED, "c")
    return decode_request(frame, head)


def _told(stage: Stage, version: int) -> Any:
    return decode_answer(entity(ApiKey.METADATA, version, "response"), stage.edge.replies[-1])


@pytest.mark.parametrize("version", OLD)
def test_an_old_client_gets_the_routers_addresses_in_its_own_version(version: int) -> None:
    stage = Stage()
    stage.request(_asked(version, everything=True))
    asked = _sent(stage)
    assert asked.topics is None
    stage.edge.sent[-1].answered_with(_answer(ASKED, ("t", 0, (1,)), ("__kmigrate_state", 0, (1,))))
    told = _told(stage, version)
    assert [(int(b.node_id), b.host, int(b.port)) for b in told.brokers] == [(1_000_001, "router", 9001)]
    assert [str(topic.name) for topic in told.topics] == ["t"]
    (part,) = told.topics[0].partitions
    assert (int(part.leader_id), [int(node) for node in part.replica_nodes]) == (1_000_001, [1_000_001])


@pytest.mark.parametrize("version", OLD)
def test_an_old_request_creates_a_topic_only_where_no_source_has_the_topic(version: int) -> None:
    stage = Stage(route("other", Serve.FORWARD))
    stage.backend.source_topics = frozenset({"theirs"})
    stage.request(_asked(version, "theirs", "new"))
    assert not _sent(stage).allow_auto_topic_creation
    missing = int(Code.UNKNOWN_TOPIC_OR_PARTITION)
    stage.edge.sent[-1].answered_with(_answer(ASKED, ("theirs", missing, ()), ("new", missing, ())))
    creating = _sent(stage)
    assert creating.allow_auto_topic_creation
    assert [str(topic.name) for topic in creating.topics] == ["new"]
    stage.edge.sent[-1].answered_with(_answer(ASKED, ("new", int(Code.LEADER_NOT_AVAILABLE), ())))
    told = {str(topic.name): code_of(topic.error_code) for topic in _told(stage, version).topics}
    assert told == {"theirs": missing, "new": Code.LEADER_NOT_AVAILABLE}


@pytest.mark.parametrize("version", OLD)
def test_an_old_request_for_an_own_topic_alone_asks_for_no_topic_and_is_refused(version: int) -> None:
    """In version 0, the list that is left would mean all topics."""
    stage = Stage()
    stage.request(_asked(version, "__kmigrate_state"))
    assert _sent(stage).topics == ()
    stage.edge.sent[-1].answered_with(_answer(ASKED))
    (topic,) = _told(stage, version).topics
    assert (str(topic.name), code_of(topic.error_code)) == ("__kmigrate_state", Code.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("topics", [0, 1, 3, 3_000])
def test_topics_changed_by_hand_are_the_topics_that_kio_reads_and_writes(version: int, topics: int) -> None:
    """Three thousand topics exceed the size from which results are kept."""
    named = [(f"t{number}", 0, (1, 2)) for number in range(topics)]
    older = answer_in_version(_answer(ASKED, *named, brokers=(1, 2)), version)
    assert older == _answer(version, *named, brokers=(1, 2))


def test_version_0_leaves_out_replicas_whose_broker_is_unknown_as_brokers_do() -> None:
    frame = _answer(ASKED, ("t", 0, (1, 2, 3)), ("u", 0, (1,)), brokers=(1, 3))
    answer: Any = decode_answer(entity(ApiKey.METADATA, 0, "response"), bytearray(answer_in_version(frame, 0)))
    parts = [topic.partitions[0] for topic in answer.topics]
    assert [[int(node) for node in part.replica_nodes] for part in parts] == [[1, 3], [1]]
    assert [[int(node) for node in part.isr_nodes] for part in parts] == [[1, 3], [1]]
    assert [code_of(part.error_code) for part in parts] == [Code.REPLICA_NOT_AVAILABLE, 0]


def test_the_walk_through_an_answer_is_for_newer_versions_only() -> None:
    for version in OLD:
        assert show_topics(_answer(version, ("t", 0, (1,))), version, AddressBook(0), ()) is None


def test_a_client_that_pipelines_old_and_new_requests_gets_each_answer_in_its_version() -> None:
    stage = Stage()
    stage.request(_asked(0, "t"))
    stage.request(_asked(9, "t"))
    first, second = stage.edge.sent
    second.answered_with(bytearray(frame_answer(blank(entity(3, 9, "response"), cluster_id="c"), 7)))
    first.answered_with(_answer(ASKED, ("t", 0, (1,))))
    assert len(stage.edge.replies) == 2
    assert decode_answer(entity(3, 0, "response"), stage.edge.replies[0]).topics[0].name == "t"
    assert decode_answer(entity(3, 9, "response"), stage.edge.replies[1]).cluster_id == "c"
