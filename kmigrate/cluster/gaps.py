"""Looks for wide gaps between a partition's offsets by probing, without reading the log."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.old_messages import walk_all

__all__ = ["has_wide_gap"]


async def has_wide_gap(client: ClusterClient, topic: str, partition: int, start: int, end: int, limit: int) -> bool:
    """Whether a log cleaner may have left more than `limit` offsets in a row without a batch; never missed.

    Probes stand half a limit apart, so that a gap beyond the limit holds one from which at least half of it is still
    ahead. The answer is therefore also true for some gaps between half the limit and the limit. No gap fits into the
    last half: it would have begun before the probe in front of it.
    """
    half = max(1, limit // 2)
    at = start
    while end - at > half:
        base, reached = await _first_batch(client, topic, partition, at, end)
        if base - at >= half:
            return True
        at = max(reached, at + half)
    return False


async def _first_batch(client: ClusterClient, topic: str, partition: int, at: int, end: int) -> tuple[int, int]:
    """Where the batch begins and ends that holds an offset, or the next one; at `end` where there is none.

    What retention has deleted meanwhile is no gap: nobody copies it.
    """
    node = client.leader(topic, partition)
    answer = await fetch_one(client, node, FetchPartition(topic, partition, at, 1), purpose="probe")
    if answer.error == Code.OFFSET_OUT_OF_RANGE:
        return at, at
    if answer.error:
        await client.refresh([topic])
        raise Unreachable("probe-refused", f"{topic}-{partition} at {at}: {row(answer.error).name}")
    found = next((batch for batch in walk_all(answer.records) if batch.next_offset > at), None)
    if found is not None:
        return found.base_offset, found.next_offset
    if answer.high_watermark < end:
        raise Unreachable("probe-too-early", f"{topic}-{partition} shows less than {end} offsets at the moment")
    return end, end
