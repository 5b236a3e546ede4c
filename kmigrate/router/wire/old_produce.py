"""Produce requests before version 3: handled as version 3, answered in the client's version.

Such a request carries message sets of magic 0 or 1, without producer ids. Each message set becomes a batch, as brokers
with the present message format do. So writes of old clients are counted, fenced and promoted like all other writes, and
reach targets that take no message sets. A broker's answer in version 3 has the fields of version 2. Version 1 lacks the
append time, and version 0 the throttle time, too.
"""

from __future__ import annotations

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import RequestHead, correlation_id, peek_request
from kmigrate.records.old_messages import as_batch, is_old
from kmigrate.router.wire.produce import (
    FIRST_WITH_BATCHES,
    Buffer,
    ProducePart,
    encode_answer,
    encode_request,
    parse_answer,
    read_produce,
)

__all__ = ["answer_in_version", "in_version_3", "is_old_produce"]


def is_old_produce(head: RequestHead) -> bool:
    """Return whether a Produce request carries message sets."""
    return head.version < FIRST_WITH_BATCHES


def in_version_3(head: RequestHead, frame: bytearray) -> tuple[RequestHead, bytearray]:
    """Return an old request in version 3."""
    request = read_produce(frame, head)
    pieces = encode_request(
        request,
        map(_with_batch, request.parts),
        version=FIRST_WITH_BATCHES,
        acks=request.acks,
        correlation=head.correlation_id,
        client_id=head.client_id,
    )
    newer = bytearray().join(pieces)
    return peek_request(newer), newer


def _with_batch(part: ProducePart) -> ProducePart:
    """Return a partition with a batch in place of its message set; a broken set stays, and is refused."""
    if not is_old(part.records):
        return part
    try:
        return part._replace(records=memoryview(as_batch(part.records)))
    except ProtocolViolation:
        return part


def answer_in_version(frame: bytearray, version: int) -> Buffer:
    """Return an answer of version 3 in an older version."""
    answers, throttle, _ = parse_answer(frame, FIRST_WITH_BATCHES)
    return encode_answer(answers, version=version, correlation=correlation_id(frame), throttle_ms=throttle)
