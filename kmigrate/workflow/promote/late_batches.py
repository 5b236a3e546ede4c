"""Reads what the source of a promoted topic holds beyond the barrier, as readers of committed data see the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.model.records import LateWrites
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.late import LateBatch, late_batches

__all__ = ["read_late", "reads_of_late"]

_READ_BYTES = 4 << 20
_MOST_NAMED = 20
"""Maximum number of producers that are named for a partition."""


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


async def reads_of_late(
    source: ClusterClient, topic: str, partition: int, known: LateWrites, most: int
) -> AsyncIterator[LateWrites]:
    """Yield a partition's late writes after each response, `most` at most.

    This ends where all is read, or where an open transaction holds the rest back.
    """
    for _ in range(most):
        if known.unread <= 0:
            return
        batches, read_to = await read_late(source, topic, partition, known.read_to)
        if read_to <= known.read_to:
            return
        known = replace(
            known,
            end=max(known.end, read_to),
            read_to=read_to,
            records=known.records + sum(batch.records for batch in batches),
            producers=tuple(dict.fromkeys([*known.producers, *(batch.producer for batch in batches)]))[:_MOST_NAMED],
        )
        yield known
