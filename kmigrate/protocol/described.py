"""DescribeTransactions responses, read by hand: kio refuses a start time of −1, which every ended transaction has.

    throttle i32 | [ error i16, transactional id, state, timeout i32, start i64, producer id i64, epoch i16,
                 |   [ topic, [ partition i32 ] ] ]                          (version 0: compact, with tags)

The attributes have kio's names, so that callers need not know the difference.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.frames import skip_tags
from kmigrate.protocol.primitives import read_compact_string, read_uvarint

__all__ = ["OPEN_STATES", "DescribedTopic", "DescribedTransaction", "DescribedTransactions", "read_described"]

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of an open transaction. A transaction that is ending stays open until all its partitions have the marker."""

_THROTTLE = struct.Struct(">i")
_ERROR = struct.Struct(">h")
_NUMBERS = struct.Struct(">iqqh")


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic that a transaction writes."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """A coordinator's description of a transactional id."""

    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout: int
    """transaction.timeout.ms of the producer."""
    transaction_start_time: int
    """Milliseconds since the epoch; −1 for no start time."""
    producer_id: int
    producer_epoch: int
    topics: tuple[DescribedTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransactions:
    """A whole DescribeTransactions response."""

    transaction_states: tuple[DescribedTransaction, ...]


def read_described(data: bytes, at: int) -> tuple[DescribedTransactions, int]:
    """Read a response's body from `at` on; return the response and the position of its end."""
    try:
        count, at = read_uvarint(data, at + _THROTTLE.size)
        states = []
        for _ in range(count - 1):
            state, at = _read_state(data, at)
            states.append(state)
        return DescribedTransactions(tuple(states)), skip_tags(memoryview(data), at)
    except struct.error as short:
        raise ProtocolViolation("short-described-answer", str(short)) from None


def _read_state(data: bytes, at: int) -> tuple[DescribedTransaction, int]:
    (error,) = _ERROR.unpack_from(data, at)
    name, at = read_compact_string(data, at + _ERROR.size)
    state, at = read_compact_string(data, at)
    timeout, start, producer, epoch = _NUMBERS.unpack_from(data, at)
    count, at = read_uvarint(data, at + _NUMBERS.size)
    topics = []
    for _ in range(count - 1):
        topic, at = read_compact_string(data, at)
        number, at = read_uvarint(data, at)
        partitions = struct.unpack_from(f">{max(0, number - 1)}i", data, at)
        topics.append(DescribedTopic(topic or "", partitions))
        at = skip_tags(memoryview(data), at + 4 * len(partitions))
    described = DescribedTransaction(error, name or "", state or "", timeout, start, producer, epoch, tuple(topics))
    return described, skip_tags(memoryview(data), at)
