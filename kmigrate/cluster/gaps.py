"""Looks for wide gaps between a partition's offsets by probing, without reading the log."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import Batch
from kmigrate.records.old_messages import OldMessages, walk_all

__all__ = ["has_wide_gap"]


async def has_wide_gap(client: ClusterClient, topic: str, partition: int, start: int, end: int, limit: int) -> bool:
    """Whether a log cleaner may have left more than `limit` offsets in a row without a batch; never missed.

    Probes stand half a limit apart, so that a gap beyond the limit holds one from which at least half of it is still
    ahead. The answer is therefore also true for some gaps between half the limit and the limit.
    """
    half = max(1, limit // 2)
    at = start
    while at < end:
        found = await _first_batch(client, topic, partition, at)
        if found is None or found.base_offset - at >= half:
            return found is not None or end - at >= half
        at = max(found.next_offset, at + half)
    return False


async def _first_batch(client: ClusterClient, topic: str, partition: int, at: int) -> Batch | OldMessages | None:
    """The batch, or the old messages, that hold an offset, or the next ones."""
    node = client.leader(topic, partition)
    answer = await fetch_one(client, node, FetchPartition(topic, partition, at, 1), purpose="probe")
    if answer.error and answer.error != Code.OFFSET_OUT_OF_RANGE:
        await client.refresh([topic])
        raise Unreachable("probe-refused", f"{topic}-{partition} at {at}: {row(answer.error).name}")
    return next((batch for batch in walk_all(answer.records) if batch.next_offset > at), None)
