"""A look at the next batch to read: its age, and its size per offset.

kmigrate looks ahead only if no mirror has announced itself lately. A broker returns the first batch of a partition
whole, however few bytes the request allows. So each partition has a request of its own, and only a few requests run at
a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetcher import fetch_one
from kmigrate.errors import Failed
from kmigrate.model.lag import Pace
from kmigrate.net.tasks import together
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import LOG_APPEND_TIME, walk

__all__ = ["look_ahead"]

_AT_ONCE = 8


async def look_ahead(client: ClusterClient, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Pace]:
    """Return the pace of a copy at these offsets; partitions that cannot be read now are left out."""
    found: dict[tuple[str, int], Pace] = {}
    few = asyncio.Semaphore(_AT_ONCE)

    async def look(key: tuple[str, int], offset: int) -> None:
        async with few:
            try:
                part = FetchPartition(*key, offset, max_bytes=1)
                answer = await fetch_one(client, client.leader(*key), part, purpose="look-ahead")
                batch = next(walk(answer.records), None)
            except Failed:
                return
        if batch is not None:
            # With broker times, readers see only the newest time of a batch.
            first_ms = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp
            found[key] = Pace(max(0, first_ms), len(batch.view) / (batch.last_offset_delta + 1))

    await together(*(look(key, offset) for key, offset in positions.items()))
    return found
