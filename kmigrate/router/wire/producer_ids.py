"""Gives producer ids to clients that may write only at the source, and that the target therefore refuses an id.

A producer id gives no right to anything, and brokers do not check to which client an id was given (M5). But a broker
gives ids only to clients that may write at least a single topic. While topics are mirrored, their writers have no right
to write at the target yet (`model.acls`).
"""

from __future__ import annotations

from kmigrate.protocol.api import ApiKey, blank, decode_answer, decode_request, entity, frame_answer, is_flexible
from kmigrate.protocol.codes import Code, code_of
from kmigrate.protocol.frames import RequestHead, peek_request

__all__ = ["given_id", "is_refused_id"]


def is_refused_id(head: RequestHead, request: bytearray, answer: bytearray) -> bool:
    """Return whether the target has refused an id to an idempotent producer.

    Transactional producers need another right.
    """
    kind = entity(ApiKey.INIT_PRODUCER_ID, head.version, "response")
    told = decode_answer(kind, answer)
    if code_of(told.error_code) != Code.CLUSTER_AUTHORIZATION_FAILED:
        return False
    asked = decode_request(request, peek_request(request, is_flexible(ApiKey.INIT_PRODUCER_ID, head.version)))
    return asked.transactional_id is None


def given_id(head: RequestHead, producer_id: int) -> bytes:
    """Return the answer that gives a producer id."""
    answer = blank(entity(ApiKey.INIT_PRODUCER_ID, head.version, "response"), producer_id=producer_id, producer_epoch=0)
    return frame_answer(answer, head.correlation_id)
