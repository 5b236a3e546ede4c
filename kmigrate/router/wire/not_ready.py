"""Cuts partitions that the mirror still aligns out of answers: no record, offset or epoch of them reaches a client.

The client gets NOT_LEADER_OR_FOLLOWER (6). Every client then asks for metadata, where the topic has no leader yet, and
asks again from the same position.

A whole Fetch answer is cut here, in every version from 4 on. kio reads and writes the other answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.api import Message, blank, change_each, frame_answer, read_answer
from kmigrate.protocol.codes import Code
from kmigrate.protocol.frames import SIZE, RequestHead, response_body_offset, skip_tags
from kmigrate.protocol.primitives import read_uvarint

__all__ = ["IsUnready", "cut_fetch", "cut_offsets"]


IsUnready = Callable[[bytes, int], bool]
"""Tells whether a partition of a topic (named by the topic's name or target id) is not ready."""
_WITH_SESSION, _WITH_LOG_START, _WITH_REPLICA, _FLEXIBLE, _TOPIC_IDS = 7, 5, 11, 12, 13
_I32, _I16 = struct.Struct(">i"), struct.Struct(">h")
_PARTITION = struct.Struct(">ihqq")


def cut_fetch(frame: bytearray, version: int, is_unready: IsUnready) -> bytearray:
    """Return a whole Fetch answer without the records of unready partitions; the same frame where none is unready."""
    try:
        cuts = _Walk(frame, version).cuts(is_unready)
    except (struct.error, IndexError) as short:
        raise ProtocolViolation("broken-fetch-answer", f"a Fetch answer cannot be read: {short}") from None
    if not cuts:
        return frame
    out, at = bytearray(), 0
    for begin, end, index in cuts:
        out += frame[at:begin] + _not_ready(index, version)
        at = end
    out += frame[at:]
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return out


def _not_ready(index: int, version: int) -> bytes:
    """Return a partition of a Fetch answer that has an error and nothing else."""
    out = _PARTITION.pack(index, Code.NOT_LEADER_OR_FOLLOWER, -1, -1)
    out += b"\xff" * 8 if version >= _WITH_LOG_START else b""
    out += b"\0" if version >= _FLEXIBLE else _I32.pack(-1)  # aborted transactions: null
    out += _I32.pack(-1) if version >= _WITH_REPLICA else b""
    return out + (b"\1\0" if version >= _FLEXIBLE else _I32.pack(0))  # no records, no tags


class _Walk:
    """The way through a whole Fetch answer, partition by partition."""

    def __init__(self, frame: bytearray, version: int) -> None:
        self._frame = frame
        self._version = version
        self._flexible = version >= _FLEXIBLE
        self._fixed = _PARTITION.size + (8 if version >= _WITH_LOG_START else 0)

    def cuts(self, is_unready: IsUnready) -> list[tuple[int, int, int]]:
        """Return where each unready partition begins and ends, and the partition's index."""
        found: list[tuple[int, int, int]] = []
        at = response_body_offset(self._frame, self._flexible) + 4  # throttle
        topics, at = self._count(at + (6 if self._version >= _WITH_SESSION else 0))
        for _ in range(topics):
            topic, at = self._topic(at)
            parts, at = self._count(at)
            for _ in range(parts):
                begin = at
                (index,) = _I32.unpack_from(self._frame, at)
                at = self._partition(at)
                if is_unready(topic, index):
                    found.append((begin, at, index))
            at = self._tags(at)
        if at > len(self._frame):
            raise IndexError("the frame ends early")
        return found

    def _topic(self, at: int) -> tuple[bytes, int]:
        if self._version >= _TOPIC_IDS:
            size = 16
        elif self._flexible:
            size, at = read_uvarint(self._frame, at)
            size -= 1
        else:
            (size,) = _I16.unpack_from(self._frame, at)
            at += 2
        return bytes(self._frame[at : at + size]), at + size

    def _partition(self, at: int) -> int:
        aborted, at = self._count(at + self._fixed)
        for _ in range(aborted):
            at = self._tags(at + 16)
        records, at = self._count(at + (4 if self._version >= _WITH_REPLICA else 0))
        return self._tags(at + records)

    def _count(self, at: int) -> tuple[int, int]:
        """Return a length and the offset behind it; null is 0."""
        if self._flexible:
            value, at = read_uvarint(self._frame, at)
            return max(0, value - 1), at
        (value,) = _I32.unpack_from(self._frame, at)
        return max(0, value), at + 4

    def _tags(self, at: int) -> int:
        return skip_tags(self._frame, at) if self._flexible else at


def cut_offsets(answer: bytearray, head: RequestHead, is_unready: IsUnready) -> bytes:
    """Return an answer of ListOffsets or OffsetForLeaderEpoch that tells nothing of unready partitions."""

    def ready(topic: Message) -> Message:
        name = str(getattr(topic, "name", None) or getattr(topic, "topic", "")).encode()
        return change_each(topic, ("partitions",), lambda part: _without_offsets(part, name, is_unready))

    return frame_answer(change_each(read_answer(head, answer), ("topics",), ready), head.correlation_id)


def _without_offsets(part: Message, topic: bytes, is_unready: IsUnready) -> Message:
    index = "partition_index" if hasattr(part, "partition_index") else "partition"
    if not is_unready(topic, int(getattr(part, index))):
        return part
    return blank(type(part), **{index: getattr(part, index)}, error_code=Code.NOT_LEADER_OR_FOLLOWER)
