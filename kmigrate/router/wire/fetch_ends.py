"""Reads the fetch session of a Fetch answer, and how far the answer brings its reader; versions from 12 on.

A reader's next request names the offset behind the last whole batch of each partition. So batches are stepped over by
the lengths in their headers, and their records stay unread. `make bench-router` is the reason for reading without
`protocol.reader`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import response_body_offset, skip_tags
from kmigrate.protocol.primitives import read_uvarint
from kmigrate.records.batch import extent
from kmigrate.router.wire.fetch_requests import Partition, read_topic

__all__ = ["AnswerHead", "End", "read_ends", "read_head", "show_session"]

_HEAD = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_I32 = struct.Struct(">i")
_NOBODY = b"\xff\xff\xff\xff"
_LEAST_BATCH = 4096
"""Average bytes per batch below which stepping over batches would cost more than reading ahead saves."""
_SOME_BATCHES = 64

Buffer = bytearray | memoryview


class AnswerHead(NamedTuple):
    """The fields before the topics of an answer; `throttle` in ms."""

    throttle: int
    error: int
    session_id: int


class End(NamedTuple):
    """The offset to which an answer brings the reader of a partition, and how many offsets the log has beyond."""

    offset: int
    leader_epoch: int
    read: int
    """Offsets that the answer holds."""
    left: int


def read_head(frame: Buffer) -> AnswerHead:
    """Return the head of an answer; raises ProtocolViolation where the frame has none."""
    try:
        return AnswerHead(*_HEAD.unpack_from(frame, response_body_offset(frame, flexible=True)))
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None


def show_session(frame: Buffer, session_id: int) -> None:
    """Put another session id into an answer, in place."""
    _I32.pack_into(frame, response_body_offset(frame, flexible=True) + 6, session_id)


def read_ends(frame: bytearray, version: int, *, committed: bool) -> dict[Partition, End] | None:
    """Return the ends of the partitions that have records in the answer.

    None where an answer says more than records: an error, another leader, or a replica to read from. None also where
    batches are small or of an old format, or where the answer cannot be read. The reader's next request is then
    unknown.
    """
    try:
        return _ends(frame, version, committed)
    except (struct.error, IndexError, ProtocolViolation):
        return None


def _ends(frame: bytearray, version: int, committed: bool) -> dict[Partition, End] | None:
    ends: dict[Partition, End] = {}
    at = response_body_offset(frame, flexible=True) + _HEAD.size
    topics, at = read_uvarint(frame, at)
    for _ in range(topics - 1):
        topic, at = read_topic(frame, version, at)
        parts, at = read_uvarint(frame, at)
        for _ in range(parts - 1):
            index, error, high, stable, _ = _PARTITION.unpack_from(frame, at)
            aborted, at = read_uvarint(frame, at + _PARTITION.size)
            for _ in range(aborted - 1):
                at = skip_tags(frame, at + 16)
            if error or not frame.startswith(_NOBODY, at):
                return None
            size, at = read_uvarint(frame, at + 4)
            stop = at + max(0, size - 1)
            found = extent(frame, at, stop, _SOME_BATCHES + (stop - at) // _LEAST_BATCH)
            if found is None or frame[stop]:
                return None
            first, end, epoch = found
            if end >= 0:
                ends[(topic, index)] = End(end, epoch, end - first, (stable if committed else high) - end)
            at = stop + 1
        at = skip_tags(frame, at)
    return ends if not frame[at] else None
