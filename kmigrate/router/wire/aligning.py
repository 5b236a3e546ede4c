"""Cuts partitions that the mirror still aligns out of answers: no record, offset or epoch of them reaches a client.

The client gets NOT_LEADER_OR_FOLLOWER (6). Every client then asks for metadata, where the topic has no leader yet, and
asks again from the same position. A whole Fetch answer is cut by hand, from version 4 on; kio does the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import Message, blank, change_each, frame_answer, read_answer
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import SIZE, RequestHead
from kmigrate.protocol.primitives import I32
from kmigrate.protocol.reader import Reader

__all__ = ["IsAligning", "cut_fetch", "cut_offsets"]


IsAligning = Callable[[bytes, int], bool]
"""Tells whether a partition of a topic (named by the topic's name or target id) aligns still."""
_WITH_SESSION, _WITH_LOG_START, _WITH_REPLICA, _FLEXIBLE, _TOPIC_IDS = 7, 5, 11, 12, 13
_CORRELATED, _THROTTLE, _SESSION = 8, 4, 6
"""Bytes of size and correlation id, of the throttle time, and of error and session id."""
_PARTITION = struct.Struct(">ihqq")


def cut_fetch(frame: bytearray, version: int, is_aligning: IsAligning) -> bytearray:
    """Return a whole Fetch answer without the records of aligning partitions; the same frame where none aligns."""
    try:
        cuts = _cuts(frame, version, is_aligning)
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None
    if not cuts:
        return frame
    out, at = bytearray(), 0
    for begin, end, index in cuts:
        out += frame[at:begin] + _aligning(index, version)
        at = end
    out += frame[at:]
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return out


def _aligning(index: int, version: int) -> bytes:
    """Return a partition of a Fetch answer that has an error and nothing else."""
    out = _PARTITION.pack(index, Code.NOT_LEADER_OR_FOLLOWER, -1, -1)
    out += b"\xff" * 8 if version >= _WITH_LOG_START else b""
    out += b"\0" if version >= _FLEXIBLE else I32.pack(-1)  # aborted transactions: null
    out += I32.pack(-1) if version >= _WITH_REPLICA else b""
    return out + (b"\1\0" if version >= _FLEXIBLE else I32.pack(0))  # no records, no tags


def _cuts(frame: bytearray, version: int, is_aligning: IsAligning) -> list[tuple[int, int, int]]:
    """Return where each aligning partition of a Fetch answer begins and ends, and the partition's index."""
    found: list[tuple[int, int, int]] = []
    read = Reader(frame, _CORRELATED, version >= _FLEXIBLE)
    read.tags()
    read.at += _THROTTLE + (_SESSION if version >= _WITH_SESSION else 0)
    for _ in range(read.length()):
        topic = read.topic(by_id=version >= _TOPIC_IDS)
        for _ in range(read.length()):
            begin = read.at
            (index, *_) = read.unpack(_PARTITION)
            read.at += 8 if version >= _WITH_LOG_START else 0
            for _ in range(read.length()):  # aborted transactions
                read.at += 16
                read.tags()
            read.at += 4 if version >= _WITH_REPLICA else 0
            records = read.length()
            read.at += records
            read.tags()
            if is_aligning(topic, index):
                found.append((begin, read.at, index))
        read.tags()
    if read.at > len(frame):
        raise IndexError("the frame ends early")
    return found


def cut_offsets(answer: bytearray, head: RequestHead, is_aligning: IsAligning) -> bytes:
    """Return an answer of ListOffsets or OffsetForLeaderEpoch that tells nothing of aligning partitions."""

    def ready(topic: Message) -> Message:
        name = str(getattr(topic, "name", None) or getattr(topic, "topic", "")).encode()
        return change_each(topic, ("partitions",), lambda part: _without_offsets(part, name, is_aligning))

    return frame_answer(change_each(read_answer(head, answer), ("topics",), ready), head.correlation_id)


def _without_offsets(part: Message, topic: bytes, is_aligning: IsAligning) -> Message:
    index = "partition_index" if hasattr(part, "partition_index") else "partition"
    if not is_aligning(topic, int(getattr(part, index))):
        return part
    return blank(type(part), **{index: getattr(part, index)}, error_code=Code.NOT_LEADER_OR_FOLLOWER)
