"""A client that keeps the address of a coordinator at a router that is gone, and how the client is freed from it."""

from __future__ import annotations

import pytest

from kmigrate.protocol.api import ApiKey, blank, decode_body, encode_body, entity, frame_answer, is_flexible
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import encode_request_head, response_body_offset
from kmigrate.router.session.coordinator_searches import CoordinatorSearches
from tests.unit.router.router_fakes import Stage

FOUND, FORGET = 0, int(Code.COORDINATOR_NOT_AVAILABLE)


def search(stage: Stage, group: str = "g", version: int = 2) -> int:
    """Look for a group's coordinator, which the target always finds; return the error code of the router's answer."""
    stage.edge.replies.clear()
    named = {"key": group} if version < 4 else {"coordinator_keys": (group,)}
    request = blank(entity(ApiKey.FIND_COORDINATOR, version, "request"), **named)
    flexible = is_flexible(ApiKey.FIND_COORDINATOR, version)
    raw = encode_request_head(ApiKey.FIND_COORDINATOR, version, 77, b"c", flexible) + encode_body(request)
    asked = len(stage.edge.sent)
    stage.session.frame(bytearray(len(raw).to_bytes(4, "big") + raw))
    kind = entity(ApiKey.FIND_COORDINATOR, version, "response")
    if len(stage.edge.sent) > asked:
        stage.edge.sent[-1].answered_with(
            bytearray(frame_answer(blank(kind, **({"node_id": 1} if version < 4 else {})), 77))
        )
    (frame,) = stage.edge.replies
    answer = decode_body(kind, frame, response_body_offset(frame, bool(kind.__flexible__)))
    return int(getattr(answer, "error_code", 0))


def test_at_the_third_search_a_client_is_told_to_forget_the_coordinator() -> None:
    stage = Stage()
    told = []
    for _ in range(4):
        told.append(search(stage))
        stage.edge.clock += 1.0
    assert told == [FOUND, FOUND, FORGET, FOUND]


def test_searches_for_other_groups_and_searches_now_and_then_are_answered() -> None:
    stage = Stage()
    assert [search(stage, group) for group in "ghghgh"] == [FOUND] * 6
    for _ in range(6):
        stage.edge.clock += 11.0
        assert search(stage) == FOUND


def test_searches_for_several_coordinators_at_once_are_answered() -> None:
    """Java asks in these versions, and takes every answer's address."""
    stage = Stage()
    assert [search(stage, version=4) for _ in range(6)] == [FOUND] * 6


@pytest.mark.parametrize(("searches", "times"), [(3, 1), (8, 1), (9, 2), (20, 2), (21, 3), (33, 4), (45, 5)])
def test_a_client_that_is_slow_to_connect_gets_more_time_with_each_answer(searches: int, times: int) -> None:
    made = CoordinatorSearches()
    assert sum(made.in_vain(0, "g", float(second)) for second in range(searches)) == times
