"""Share groups through the router:

leaders under the router's node ids, and no member on a topic that is still mirrored.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import blank, decode_body, element_type, encode_body, entity, frame_answer
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.shared import share_members
from kmigrate.router.shared.share_members import ShareMembers
from kmigrate.router.shared.state import Outcome
from kmigrate.router.wire.apis import OFFERED
from tests.unit.router.router_fakes import Stage, route

READS = [
    (key, version) for key in (78, 79) for version in range(OFFERED[key].versions[0], OFFERED[key].versions[1] + 1)
]


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
    topic_type, endpoint_type = element_type(kind, "responses"), element_type(kind, "node_endpoints")
    part_type = element_type(topic_type, "partitions")
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


def _subscribe(stage: Stage, *topics: str, member: str = "m", epoch: int = 3) -> None:
    """Send a member's heartbeat, which leaves out an unchanged list of topics."""
    kind = entity(76, 1, "request")
    told = blank(kind, group_id="g", member_id=member, member_epoch=epoch, subscribed_topic_names=topics or None)
    _ask(stage, told)


@pytest.mark.parametrize("serve", [Serve.HIDDEN, Serve.FORWARD, Serve.HOLD])
def test_a_member_on_a_mirrored_topic_is_refused_with_the_reason(serve: Serve) -> None:
    stage = Stage(route("t", serve))
    _subscribe(stage, "t", "other")
    told = _told(stage, entity(76, 1, "response"))
    assert int(told.error_code) == 30
    assert "mirrored topic t" in told.error_message
    assert stage.edge.sent == []


@pytest.mark.parametrize("topics", [("other",), ("promoted",)])
def test_other_members_pass(topics: tuple[str, ...]) -> None:
    stage = Stage(route("t", Serve.FORWARD), route("promoted", Serve.LOCAL))
    _subscribe(stage, *topics)
    assert _asked(stage) == [76]
    assert stage.edge.replies == []


def _asked(stage: Stage) -> list[int]:
    """Return the APIs of the requests to the target since the last look."""
    keys = [int.from_bytes(sent.frame[4:6]) for sent in stage.edge.sent]
    assert {sent.where for sent in stage.edge.sent} <= {"target"}
    stage.edge.sent.clear()
    return keys


def _heard(stage: Stage, error: int = 0) -> list[int]:
    """Do as `_asked`, and answer the last request, a member's heartbeat, as the target."""
    done = stage.edge.sent[-1].done
    keys = _asked(stage)
    assert keys[-1] == 76 and done is not None
    done(Outcome(bytearray(frame_answer(blank(entity(76, 1, "response"), error_code=error), 7))))
    return keys


def _describe(stage: Stage, *topics: str, member: str = "m", error: int = 0) -> None:
    """Answer the open DescribeShareGroups request as the coordinator."""
    done = stage.edge.sent[-1].done
    assert (_asked(stage), done is not None) == ([77], True)
    kind = entity(77, 1, "response")
    group_type = element_type(kind, "groups")
    member_type = element_type(group_type, "members")
    assignment = get_type_hints(member_type)["assignment"](topic_partitions=())
    one = blank(member_type, member_id=member, subscribed_topic_names=topics, assignment=assignment)
    answer = blank(kind, groups=(blank(group_type, group_id="g", error_code=error, members=(one,)),))
    assert done is not None
    done(Outcome(bytearray(frame_answer(answer, 7))))


def test_one_that_had_subscribed_before_its_topic_was_mirrored_is_refused_at_its_next_heartbeat() -> None:
    """The next heartbeat of a member that subscribed before its topic was mirrored is refused.

    The heartbeat names no topics any more. Without the refusal the member would read on at the target, from any
    starting point.
    """
    stage = Stage()
    for topics in (["t"], []):
        _subscribe(stage, *topics)
        done = stage.edge.sent[-1].done
        assert (_asked(stage), done is not None) == ([76], True)
        assert done is not None
        done(Outcome(bytearray(frame_answer(blank(entity(76, 1, "response")), 7))))
    stage.edge.replies.clear()
    stage.swap(route("t", Serve.HIDDEN))
    _subscribe(stage)
    _describe(stage, "t", "other")
    assert int(_told(stage, entity(76, 1, "response")).error_code) == 30
    assert stage.edge.sent == []


def test_a_member_is_asked_about_once_for_each_time_that_more_is_mirrored() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for expected in ([77, 76], [76], [76]):
        _subscribe(stage)
        if 77 in expected:
            _describe(stage, "other")
        assert _heard(stage) == expected[-1:]
    stage.swap(route("t", Serve.LOCAL))
    _subscribe(stage)
    assert _heard(stage) == [76]
    stage.swap(route("t", Serve.LOCAL), route("u", Serve.HIDDEN))
    _subscribe(stage)
    _describe(stage, "other")
    assert _heard(stage) == [76]
    _subscribe(stage, "other", "more")
    assert _heard(stage) == [76]
    _subscribe(stage)
    assert _heard(stage) == [76], "what it says itself need not be asked for"


def test_who_names_another_clients_member_and_is_refused_clears_nobody() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _subscribe(stage, "other")
    assert _heard(stage, error=30) == [76], "not authorized"
    stage.edge.replies.clear()
    _subscribe(stage)
    _describe(stage, "t")
    assert "mirrored topic t" in _told(stage, entity(76, 1, "response")).error_message


@pytest.mark.parametrize(("member", "error"), [("another", 0), ("m", 16)])
def test_of_whom_the_coordinator_does_not_tell_nothing_is_held_and_it_is_asked_again(member: str, error: int) -> None:
    stage = Stage(route("t", Serve.FORWARD))
    for _ in range(2):
        _subscribe(stage)
        _describe(stage, "t", member=member, error=error)
        assert _asked(stage) == [76]
    assert stage.edge.replies == []


def test_what_is_mirrored_while_the_coordinator_is_asked_counts() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _subscribe(stage)
    stage.swap(route("t", Serve.FORWARD), route("u", Serve.HIDDEN))
    _describe(stage, "u")
    assert "mirrored topic u" in _told(stage, entity(76, 1, "response")).error_message


def test_who_leaves_may_do_so_and_is_forgotten() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    _subscribe(stage, "other")
    _subscribe(stage, epoch=-1)
    assert _asked(stage) == [76, 76]
    _subscribe(stage)
    assert _asked(stage) == [77]


def test_so_many_members_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_members, "_MOST_MEMBERS", 2)
    known, mirrored = ShareMembers(), {"t": ""}
    for member in "abac":
        known.clear("g", member, known.version(mirrored))
    assert [known.is_cleared("g", member, mirrored) for member in "abc"] == [True, False, True]
    assert not known.is_cleared("h", "a", mirrored)
