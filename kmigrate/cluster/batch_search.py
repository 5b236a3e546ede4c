"""Finds a producer's batch near the end of a log: the place of a retried batch that was stored before."""

from __future__ import annotations

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.old_messages import OldMessages, walk_all

__all__ = ["find_batch"]

_WINDOWS = (2_000, 50_000)
"""Offsets before the end that are searched, nearest first: a retry is seconds old at most."""


async def find_batch(
    client: ClusterClient, topic: str, partition: int, producer_id: int, epoch: int, sequence: int
) -> int:
    """Return the base offset of the batch with this id, epoch and first sequence; −1 if there is none near the end."""
    key = (topic, partition)
    end = (await client.log_ends([key]))[key]
    first = (await client.list_offsets({key: EARLIEST}))[key]
    if end.error or first.error:
        raise Unreachable("no-log-end", f"{topic}-{partition}: {row(end.error or first.error).name}")
    upper = end.offset
    for window in _WINDOWS:
        at = max(first.offset, end.offset - window)
        while at < upper:
            part = FetchPartition(topic, partition, at, 1 << 20)
            answer = await fetch_one(client, client.leader(topic, partition), part, purpose="find")
            if answer.error:
                raise Unreachable("log-unreadable", f"{topic}-{partition} at {at}: {row(answer.error).name}")
            before = at
            for batch in walk_all(answer.records):
                at = max(at, batch.next_offset)
                if isinstance(batch, OldMessages):  # old messages have no producer, so they never match
                    continue
                named = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
                if named == (producer_id, epoch, sequence) and not batch.is_control:
                    return batch.base_offset
            if at == before:
                break
        upper = max(first.offset, end.offset - window)
    return -1
