"""Brokers as configuration resources.

The client uses the router's node ids as names; the target gets its own node ids.
"""

from __future__ import annotations

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
from kmigrate.protocol.frames import encode_request_head, peek_request, response_body_offset
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.apis import OFFERED
from tests.unit.router.router_fakes import Stage, route

TOPIC, BROKER, LOGGER = 2, 4, 8
ANSWERS = {32: "results", 33: "responses", 44: "responses", 74: "config_resources"}
NAMED = [
    (key, version) for key in (32, 33, 44) for version in range(OFFERED[key].versions[0], OFFERED[key].versions[1] + 1)
]


def _ask(stage: Stage, key: int, version: int, *resources: tuple[int, str]) -> list[str]:
    """Send a request about these resources, and return the names that reach the target."""
    kind = entity(key, version, "request")
    values: dict[str, Any] = {}
    if resources:
        one = element_type(kind, "resources")
        values["resources"] = tuple(blank(one, resource_type=t, resource_name=n) for t, n in resources)
    stage.request(blank(kind, **values))
    sent = stage.edge.sent[-1].frame
    seen = decode_request(sent, peek_request(sent, is_flexible(key, version)))
    return [str(resource.resource_name) for resource in getattr(seen, "resources", ())]


def _answered(stage: Stage, key: int, version: int, *resources: tuple[int, str]) -> list[str]:
    """Let the target answer about these resources, and return the names that reach the client."""
    kind = entity(key, version, "response")
    one = element_type(kind, ANSWERS[key])
    listed = tuple(blank(one, resource_type=t, resource_name=n) for t, n in resources)
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(bytearray(frame_answer(blank(kind, **{ANSWERS[key]: listed}), 7))))
    [reply] = stage.edge.replies
    answer = decode_body(kind, reply, response_body_offset(reply, kind.__flexible__))
    return [str(resource.resource_name) for resource in getattr(answer, ANSWERS[key])]


@pytest.mark.parametrize(("key", "version"), NAMED)
@pytest.mark.parametrize("kind", [BROKER, LOGGER])
def test_a_broker_is_asked_by_its_own_id_and_shown_by_the_one_the_client_knows(
    key: int, version: int, kind: int
) -> None:
    stage = Stage()
    assert _ask(stage, key, version, (kind, "1000001"), (TOPIC, "1000001")) == ["1", "1000001"]
    assert _answered(stage, key, version, (kind, "1"), (TOPIC, "1000001")) == ["1000001", "1000001"]


@pytest.mark.parametrize(("key", "version"), NAMED)
@pytest.mark.parametrize("name", ["1", "", "no-number"])
def test_other_names_of_brokers_pass_as_they_are(key: int, version: int, name: str) -> None:
    stage = Stage()
    assert _ask(stage, key, version, (BROKER, name)) == [name]
    assert _answered(stage, key, version, (BROKER, name)) == [name]


def test_a_list_of_resources_names_brokers_as_the_router_shows_them() -> None:
    stage = Stage()
    _ask(stage, 74, 1)
    assert _answered(stage, 74, 1, (BROKER, "1"), (TOPIC, "1"), (LOGGER, "1")) == ["1000001", "1", "1000001"]


def _quorum_request(key: int, version: int) -> Any:
    kind = entity(key, version, "request")
    if key != 45:
        return blank(kind)
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    moved, taken_back = blank(part_type, replicas=(1_000_002, 1_000_001)), blank(part_type, replicas=None)
    return blank(kind, topics=(blank(topic_type, name="t", partitions=(moved, taken_back)),))


def test_a_reassignment_reaches_the_target_with_its_own_ids_and_one_that_is_taken_back_with_none() -> None:
    for version in (0, 1):
        stage = Stage()
        body = encode_body(_quorum_request(45, version))
        raw = encode_request_head(45, version, 7, b"c", is_flexible(45, version)) + body
        stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
        sent = stage.edge.sent[-1].frame
        seen = decode_request(sent, peek_request(sent, is_flexible(45, version)))
        assert [part.replicas for part in seen.topics[0].partitions] == [(2, 1), None]


def _quorum_answer(key: int, version: int) -> Any:
    """Return an answer in which every node field is 1 and every list of nodes is (1, −1)."""
    kind = entity(key, version, "response")
    topic_type = element_type(kind, "topics")
    part_type = element_type(topic_type, "partitions")
    lists = ("replicas", "adding_replicas", "removing_replicas", "replica_nodes", "isr_nodes", "offline_replicas")
    values: dict[str, Any] = dict.fromkeys((*lists, "eligible_leader_replicas", "last_known_elr"), (1, -1))
    for name in ("current_voters", "observers"):
        if name in part_type.__dataclass_fields__:
            values[name] = (blank(element_type(part_type, name), replica_id=1),)
    named = {"topic_name" if key == 55 else "name": "t"}
    topic = blank(topic_type, **named, partitions=(blank(part_type, leader_id=1, **values),))
    nodes = {"nodes": (blank(element_type(kind, "nodes"), node_id=1),)} if version >= 2 else {}
    return blank(kind, topics=(topic,), **nodes)


@pytest.mark.parametrize(("key", "version"), [(46, 0), (55, 0), (55, 1), (55, 2), (75, 0)])
def test_answers_for_operators_name_nodes_as_the_router_shows_them(key: int, version: int) -> None:
    stage = Stage()
    raw = encode_request_head(key, version, 7, b"c", is_flexible(key, version)) + encode_body(
        _quorum_request(key, version)
    )
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
    kind = entity(key, version, "response")
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(bytearray(frame_answer(_quorum_answer(key, version), 7))))
    [reply] = stage.edge.replies
    told = repr(decode_body(kind, reply, response_body_offset(reply, kind.__flexible__)))
    given = repr(_quorum_answer(key, version))
    for before, after in (("(1, -1)", "(1000001, -1)"), ("leader_id=1,", "leader_id=1000001,")):
        assert told.count(after) == given.count(before)
    for name in ("replica_id", "node_id"):
        assert told.count(f"{name}=1000001") == given.count(f"{name}=1")
    assert told.count("1000001") > 0


def test_a_topic_that_still_aligns_has_no_layout() -> None:
    stage = Stage(route("t", Serve.HIDDEN))
    raw = encode_request_head(75, 0, 7, b"c", is_flexible(75, 0)) + encode_body(_quorum_request(75, 0))
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(bytearray(frame_answer(_quorum_answer(75, 0), 7))))
    [reply] = stage.edge.replies
    answer = decode_body(entity(75, 0, "response"), reply, response_body_offset(reply, True))
    assert (int(answer.topics[0].error_code), answer.topics[0].partitions) == (5, ())
