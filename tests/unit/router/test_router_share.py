"""Share groups through the router: leaders as it shows them, and no member on a topic that is still mirrored."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import decode_body, encode_body, entity
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.apis.blank import blank, element, frame_answer
from kmigrate.router.apis.offered import OFFERED
from kmigrate.router.core import Outcome
from tests.unit.router.router_fakes import Stage, route

READS = [(key, version) for key in (78, 79) for version in range(OFFERED[key][0], OFFERED[key][1] + 1)]


def _ask(stage: Stage, request: Any) -> None:
    key, version = int(type(request).__api_key__), int(type(request).__version__)
    raw = encode_request_head(key, version, 7, b"c", flexible=True) + encode_body(request)
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))


def _told(stage: Stage, kind: Any) -> Any:
    [reply] = stage.edge.replies
    return decode_body(kind, reply, response_body_offset(reply, flexible=True))


@pytest.mark.parametrize(("key", "version"), READS)
def test_answers_to_reads_name_leaders_and_their_listeners_as_the_router_shows_them(key: int, version: int) -> None:
    stage = Stage()
    _ask(stage, blank(entity(key, version, "request"), group_id="g", member_id="m"))
    kind = entity(key, version, "response")
    topic_type, endpoint_type = element(kind, "responses"), element(kind, "node_endpoints")
    part_type = element(topic_type, "partitions")
    leader = get_type_hints(part_type)["current_leader"]
    records = {"records": b"\0" * 70} if key == 78 else {}
    parts = tuple(
        blank(part_type, partition_index=node, current_leader=leader(leader_id=node, leader_epoch=3), **records)
        for node in (1, -1)
    )
    endpoints = tuple(blank(endpoint_type, node_id=node, host="real", port=9, rack="r") for node in (1, 2))
    answer = blank(kind, responses=(blank(topic_type, partitions=parts),), node_endpoints=endpoints)
    done = stage.edge.sent[-1].done
    assert done is not None
    done(Outcome(bytearray(frame_answer(answer, 7))))
    told = _told(stage, kind)
    seen = told.responses[0].partitions
    assert [int(part.current_leader.leader_id) for part in seen] == [1_000_001, -1]
    assert [(int(n.node_id), str(n.host), int(n.port), n.rack) for n in told.node_endpoints] == [
        (1_000_001, "router", 9001, "r")
    ]
    assert key != 78 or [part.records for part in seen] == [b"\0" * 70] * 2


def _subscribe(stage: Stage, *topics: str) -> None:
    kind = entity(76, 1, "request")
    _ask(stage, blank(kind, group_id="g", member_id="m", subscribed_topic_names=topics or None))


@pytest.mark.parametrize("serve", [Serve.HIDDEN, Serve.FORWARD, Serve.HOLD])
def test_a_member_on_a_mirrored_topic_is_refused_with_the_reason(serve: Serve) -> None:
    stage = Stage(route("t", serve))
    _subscribe(stage, "t", "other")
    told = _told(stage, entity(76, 1, "response"))
    assert int(told.error_code) == 30
    assert "mirrored topic t" in told.error_message
    assert stage.edge.sent == []


@pytest.mark.parametrize("topics", [("other",), ("promoted",), ()])
def test_other_members_pass(topics: tuple[str, ...]) -> None:
    stage = Stage(route("t", Serve.FORWARD), route("promoted", Serve.LOCAL))
    _subscribe(stage, *topics)
    assert [sent.where for sent in stage.edge.sent] == ["target"]
    assert stage.edge.replies == []
