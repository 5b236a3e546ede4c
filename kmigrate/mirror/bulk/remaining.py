"""The remaining copy: the target's position, the end of the source's stable log, and the bytes between."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.errors import KmigrateError
from kmigrate.mirror.bulk.ranges import Caution, CopyRange, Key
from kmigrate.mirror.settings import OLD_MS
from kmigrate.net.clock import now_ms
from kmigrate.net.tasks import together
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import Batch
from kmigrate.records.old_messages import OldMessages, walk_all

__all__ = ["left_to_copy"]

_LOOKED_BYTES = 64 << 10
_AT_ONCE = 16


async def left_to_copy(
    source: ClusterClient,
    starts: Mapping[Key, int],
    target: ClusterClient | None = None,
    *,
    compacted: Container[str] = (),
    pipelining: bool = True,
) -> list[CopyRange]:
    """Return what is left of each partition, up to the last stable offset; `target` is None if the topics are new."""
    await source.refresh({topic for topic, _ in starts})
    ends = await source.list_offsets(dict.fromkeys(starts, LATEST), read_committed=True)
    at = dict(starts)
    if target is not None:
        await target.refresh({topic for topic, _ in starts})
        at |= {key: max(at[key], end.offset) for key, end in (await target.log_ends(starts)).items()}
    slots, found = asyncio.Semaphore(_AT_ONCE), dict[Key, CopyRange]()

    async def look(key: Key, start: int, end: int) -> None:
        async with slots:
            size, oldest = await _look_at(source, key, start)
        caution = None
        if key[0] in compacted:
            caution = Caution.LOG_CLEANER
        elif not pipelining:
            caution = Caution.SHORT_MEMORY
        elif oldest < now_ms() - OLD_MS:
            caution = Caution.OLD_RECORDS
        found[key] = CopyRange(*key, start, end, int(size * (end - start)), caution)

    await together(
        *(look(key, at[key], end.offset) for key, end in ends.items() if not end.error and end.offset > at[key])
    )
    return [found[key] for key in sorted(found)]


async def _look_at(source: ClusterClient, key: Key, start: int) -> tuple[float, int]:
    """Return the bytes per offset and the newest time of the first batch at one place; the records behind are newer."""
    try:
        answer = await fetch_one(
            source, source.leader(*key), FetchPartition(*key, start, _LOOKED_BYTES), purpose="remaining"
        )
        batches = [batch for batch in walk_all(answer.records) if batch.next_offset > start]
    except KmigrateError:
        return 0.0, now_ms()  # the figure serves people and the division of work: errors are reported by the copy
    if not batches:
        return 0.0, now_ms()
    span = batches[-1].next_offset - max(start, batches[0].base_offset)
    size = sum(len(batch.view) for batch in batches if isinstance(batch, Batch)) or len(answer.records)
    return size / max(1, span), _time_of(batches[0])


def _time_of(batch: Batch | OldMessages) -> int:
    return batch.max_timestamp if isinstance(batch, Batch) else -1
