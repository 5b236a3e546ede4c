"""Producer ids for those who may write at the source only: a broker refuses them one until their topics are promoted.

An id gives no right to anything, and brokers do not check who was given it (M5). But a broker hands one only to those
who may write at least one of its topics, and while topics are mirrored their writers may not yet (`model.acls`).
"""

from __future__ import annotations

from kmigrate.protocol.api import decode_answer, entity, is_flexible
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, peek_request
from kmigrate.router.apis.addresses import decode_request
from kmigrate.router.apis.blank import blank, frame_answer

__all__ = ["INIT_PRODUCER_ID", "given_id", "is_refused_id"]

INIT_PRODUCER_ID = 22


def is_refused_id(head: RequestHead, request: bytearray, answer: bytearray) -> bool:
    """Whether the target has refused an id to an idempotent producer; a transactional one has a right of its own."""
    kind = entity(INIT_PRODUCER_ID, head.version, "response")
    told = decode_answer(kind, answer)
    if code_of(told.error_code) != Code.CLUSTER_AUTHORIZATION_FAILED:
        return False
    asked = decode_request(request, peek_request(request, is_flexible(INIT_PRODUCER_ID, head.version)))
    return asked.transactional_id is None


def given_id(head: RequestHead, producer_id: int) -> bytes:
    """The answer that hands out an id."""
    answer = blank(entity(INIT_PRODUCER_ID, head.version, "response"), producer_id=producer_id, producer_epoch=0)
    return frame_answer(answer, head.correlation_id)
