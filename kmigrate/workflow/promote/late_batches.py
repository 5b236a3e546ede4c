"""Reads what the source of a promoted topic holds beyond the barrier, as readers of committed data see the log."""

from __future__ import annotations

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.late import LateBatch, late_batches

__all__ = ["read_late"]

_READ_BYTES = 4 << 20


async def read_late(source: ClusterClient, topic: str, partition: int, offset: int) -> tuple[list[LateBatch], int]:
    """Return the batches that readers see from an offset on, and the offset that the answer reached.

    Control markers and records of aborted transactions are passed over. An open transaction is not: the answer ends
    before that transaction.
    """
    part = FetchPartition(topic, partition, offset, _READ_BYTES)
    answer = await fetch_one(source, source.leader(topic, partition), part, purpose="late", read_committed=True)
    if answer.error:
        await source.refresh([topic])
        starts = await source.list_offsets({(topic, partition): EARLIEST})
        begins = starts[topic, partition]
        if not begins.error and begins.offset > offset:
            return [], begins.offset  # deleted by now: named, and nothing is left to be read
        raise Unreachable("late-unread", f"{topic}-{partition} at {offset}: {row(answer.error).name}")
    return late_batches(answer.records, answer.aborted, offset)
