"""Searches for wide gaps between a partition's offsets by probes, without reading the log."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Unreachable
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.old_messages import walk_all

__all__ = ["has_wide_gap"]


async def has_wide_gap(client: ClusterClient, topic: str, partition: int, start: int, end: int, limit: int) -> bool:
    """Return whether a log cleaner may have left more than `limit` consecutive offsets without a batch.

    No such gap is missed. Probes stand half a limit apart. So a gap wider than the limit contains a probe with at least
    half a limit of the gap still ahead. The answer is also true for some gaps between half the limit and the limit. No
    gap fits into the last half: such a gap would have begun before the probe in front of that half.
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
    """Return start and end of the batch that holds an offset, or of the next batch; `end` twice if there is none.

    Offsets that retention has deleted meanwhile are no gap, because nobody copies them.
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
