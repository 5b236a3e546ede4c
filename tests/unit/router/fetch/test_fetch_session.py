"""A consumer's fetch session (KIP-227) belongs to the target's broker:

no change of a topic's route ends the session.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from kmigrate.model.routes import Serve
from kmigrate.protocol.api import ApiKey, decode_body, entity, frame_answer
from kmigrate.protocol.frames import SIZE, encode_request_head, response_body_offset
from kmigrate.protocol.hot import FETCH_VERSION, FetchPartition, encode_fetch
from tests.unit.router.fetch.test_passing_fetch import answered
from tests.unit.router.router_fakes import Stage, route

SESSION = 4711


def asked(correlation: int, *parts: FetchPartition, epoch: int) -> bytes:
    body = b"".join(encode_fetch(parts, max_wait_ms=100, session_id=SESSION if epoch else 0, session_epoch=epoch))
    whole = encode_request_head(ApiKey.FETCH, FETCH_VERSION, correlation, b"c", True) + body
    return SIZE.pack(len(whole)) + whole


def answer(correlation: int) -> bytearray:
    """Return an answer of the target within the session, with records of two topics."""
    message = replace(read(answered(FETCH_VERSION)), session_id=SESSION)
    return bytearray(frame_answer(message, correlation))


def read(frame: bytes | bytearray) -> Any:
    kind = entity(ApiKey.FETCH, FETCH_VERSION, "response")
    return decode_body(kind, bytearray(frame), response_body_offset(bytearray(frame), True))


def test_a_fetch_session_goes_on_when_its_topic_is_fenced_and_promoted() -> None:
    stage = Stage(route("one", Serve.FORWARD))
    routes = [None, route("one", Serve.HOLD, fence_epoch=2), route("one", Serve.LOCAL)]
    for epoch, changed in enumerate(routes):
        if changed is not None:
            stage.swap(changed)
        parts = [FetchPartition("one", 0, 0, 1 << 20)] if epoch == 0 else []
        request = asked(epoch + 1, *parts, epoch=epoch)
        stage.session.frame(bytearray(request))
        sent = stage.edge.sent[-1]
        assert (sent.where, bytes(sent.frame)) == ("target", request), "every word of a session is in its place"
        stage.edge.sent[-1].answered_with(answer(epoch + 1))
        told, original = read(stage.edge.replies[-1]), read(answer(epoch + 1))
        assert struct.unpack_from(">i", stage.edge.replies[-1], 4) == (epoch + 1,)
        assert (int(told.session_id), int(told.error_code)) == (SESSION, 0)
        assert [p.records for t in told.responses for p in t.partitions] == [
            p.records for t in original.responses for p in t.partitions
        ]
    assert len(stage.edge.sent) == len(stage.edge.replies) == 3
    assert stage.edge.closed == []
