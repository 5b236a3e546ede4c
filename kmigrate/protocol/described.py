"""DescribeTransactions responses, read by hand: kio refuses a start time of −1, which every ended transaction has.

throttle i32 | [ error i16, transactional id, state, timeout i32, start i64, producer id i64, epoch i16,
             |   [ topic, [ partition i32 ] ] ]                          (version 0: compact, with tags)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from kmigrate.errors import ProtocolViolation
from kmigrate.protocol.reader import Reader

__all__ = ["OPEN_STATES", "DescribedTopic", "DescribedTransaction", "DescribedTransactions", "read_described"]

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of an open transaction. A transaction that is ending stays open until all its partitions have the marker."""

_THROTTLE_BYTES = 4
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
    """A whole DescribeTransactions response; all attributes here have kio's names, so callers see no difference."""

    transaction_states: tuple[DescribedTransaction, ...]


def read_described(data: bytes, at: int) -> tuple[DescribedTransactions, int]:
    """Read a response's body from `at` on; return the response and the position of its end."""
    read = Reader(data, at + _THROTTLE_BYTES, flexible=True)
    try:
        states = tuple([_read_state(read) for _ in range(read.length())])
        read.tags()
    except struct.error as short:
        raise ProtocolViolation("short-described-answer", str(short)) from None
    return DescribedTransactions(states), read.at


def _read_state(read: Reader) -> DescribedTransaction:
    (error,) = read.unpack(_ERROR)
    name, state = read.string(), read.string()
    timeout, start, producer, epoch = read.unpack(_NUMBERS)
    topics = []
    for _ in range(read.length()):
        topic = read.string() or ""
        partitions = read.unpack(struct.Struct(f">{read.length()}i"))
        topics.append(DescribedTopic(topic, partitions))
        read.tags()
    read.tags()
    return DescribedTransaction(error, name or "", state or "", timeout, start, producer, epoch, tuple(topics))
