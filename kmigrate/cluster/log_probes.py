"""Reads of small parts of a log: the newest batch of each producer, a certain batch, the next batch, wide gaps.

A broker forgets a producer by the age of its records, not by the clock (V6), but its log does not forget: the last
batches of a partition tell what its producers wrote last. Lettered rules:
A  A read covers at least the last MiB of a partition, or the whole, and every record appended since the first look.
B  A process that looks once before and again later reads only the new records, which are few while writers wait.
C  Records read under another leader epoch may have been cut off since, and are read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmigrate.cluster.client import EARLIEST, ClusterClient, LogOffset
from kmigrate.cluster.fetch import fetch_full, fetch_one
from kmigrate.errors import Failed, Unreachable
from kmigrate.model.barrier import newest
from kmigrate.model.lag import Pace
from kmigrate.model.records import ProducerMark
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from kmigrate.records.batch import LOG_APPEND_TIME, Batch, walk
from kmigrate.records.old_messages import OldMessages, walk_all

__all__ = ["RecentBatches", "find_batch", "has_wide_gap", "look_ahead"]

_PURPOSE = "recent"
_ENOUGH = 1 << 20
"""Bytes of a partition that are enough: they hold the batches that producers have sent and may send once more."""
_FIRST_WINDOW, _WIDER = 100, 8
_PIECE = 1 << 20
_MOST = 16 << 20
_MAX_WAIT_MS = 20

Key = tuple[str, int]


@dataclass(slots=True)
class _Seen:
    """The batches read of a partition, and the position to read on."""

    leader_epoch: int
    position: int
    size: int = 0
    marks: dict[int, ProducerMark] = field(default_factory=dict)

    def read(self, part: FetchedPartition) -> None:
        for found in walk_all(part.records):
            if found.next_offset <= self.position:
                continue
            self.position = found.next_offset
            if isinstance(found, Batch):
                self.size += len(found.view)
                if found.last_sequence >= 0 and not found.is_control:
                    mark = ProducerMark(found.producer_id, found.producer_epoch, found.last_sequence)
                    self.marks[mark.producer_id] = newest(self.marks.get(mark.producer_id), mark)


def _wider(window: int, size: int) -> int:
    """Return the next window if `window` offsets held too few bytes: little more than enough."""
    return min(_WIDER * window, window * _ENOUGH * 5 // (4 * max(1, size)))


class RecentBatches:
    """Reads the ends of some partitions' logs; producer ids are as the log has them."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._seen: dict[Key, _Seen] = {}

    async def read_to(self, ends: Mapping[Key, LogOffset], deadline: float) -> dict[Key, tuple[ProducerMark, ...]]:
        """Return each partition's newest marks below its given end; raise Unreachable if the read takes too long."""
        known = {
            key: seen
            for key, seen in self._seen.items()
            if key in ends and seen.leader_epoch == ends[key].leader_epoch and seen.position <= ends[key].offset
        }
        await self._read(known, ends, deadline)
        known |= await self._from_behind({key: end for key, end in ends.items() if key not in known}, deadline)
        self._seen = known
        return {key: tuple(seen.marks.values()) for key, seen in known.items()}

    async def _from_behind(self, ends: Mapping[Key, LogOffset], deadline: float) -> dict[Key, _Seen]:
        """Read from further and further before the end, until the read is enough (A)."""
        starts = await self._starts(ends)
        out: dict[Key, _Seen] = {}
        windows = dict.fromkeys(ends, _FIRST_WINDOW)
        while len(out) < len(ends):
            begun = {
                key: _Seen(end.leader_epoch, max(starts[key], end.offset - windows[key]))
                for key, end in ends.items()
                if key not in out
            }
            first = {key: seen.position for key, seen in begun.items()}
            await self._read(begun, ends, deadline)
            out |= {key: seen for key, seen in begun.items() if seen.size >= _ENOUGH or first[key] <= starts[key]}
            for key, seen in begun.items():
                windows[key] = _wider(windows[key], seen.size)
        return out

    async def _read(self, seen: Mapping[Key, _Seen], ends: Mapping[Key, LogOffset], deadline: float) -> None:
        while True:
            by_leader: dict[int, list[Key]] = {}
            for key, each in seen.items():
                if each.position < ends[key].offset:
                    by_leader.setdefault(self._client.leader(*key), []).append(key)
            if not by_leader:
                return
            if monotonic() > deadline:
                topic, partition = next(iter(by_leader.values()))[0]
                raise Unreachable("recent-unread", f"the end of the log of {topic}-{partition} cannot be read")
            await together(*(self._fetch(node, keys, seen, ends) for node, keys in by_leader.items()))

    async def _fetch(
        self, node: int, keys: list[Key], seen: Mapping[Key, _Seen], ends: Mapping[Key, LogOffset]
    ) -> None:
        wanted = [FetchPartition(*key, seen[key].position, _PIECE) for key in keys]
        try:
            answer = await fetch_full(
                self._client, node, wanted, purpose=_PURPOSE, max_wait_ms=_MAX_WAIT_MS, max_bytes=_MOST
            )
        except Unreachable:
            await self._look_again(keys, seen)
            return
        for part in answer.partitions:
            seen[part.topic, part.partition].read(part)
        if answer.error or any(part.error for part in answer.partitions):
            await self._look_again(keys, seen)
        elif not any(part.records for part in answer.partitions):
            # If a log cleaner has left no batch up to the end, nothing more will come.
            for part in answer.partitions:
                key = (part.topic, part.partition)
                if part.high_watermark >= ends[key].offset:
                    seen[key].position = ends[key].offset

    async def _look_again(self, keys: list[Key], seen: Mapping[Key, _Seen]) -> None:
        """Refresh leaders and log starts: the leader may have moved, and retention may have deleted unread records."""
        await sleep(0.01)
        await self._client.refresh({topic for topic, _ in keys})
        for key, start in (await self._starts(keys)).items():
            seen[key].position = max(seen[key].position, start)

    async def _starts(self, keys: Iterable[Key]) -> dict[Key, int]:
        answers = await self._client.list_offsets(dict.fromkeys(keys, EARLIEST))
        return {key: max(0, start.offset) for key, start in answers.items()}


_WINDOWS = (2_000, 50_000)
"""Offsets before the end that are searched, nearest first: a retry is seconds old at most."""


async def find_batch(
    client: ClusterClient, topic: str, partition: int, producer_id: int, epoch: int, sequence: int
) -> int:
    """Return the base offset of a retried batch (by id, epoch, first sequence); −1 if not near the end."""
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


_AT_ONCE = 8


async def look_ahead(client: ClusterClient, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], Pace]:
    """Return the pace of a copy at these offsets, from the age of the next batch, and its size per offset.

    Unreadable partitions are left out. kmigrate looks ahead only if no mirror has announced itself lately. A broker
    returns a first batch whole, however few bytes are allowed, so each partition has its own request, a few at a time.
    """
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


async def has_wide_gap(client: ClusterClient, topic: str, partition: int, start: int, end: int, limit: int) -> bool:
    """Return whether a log cleaner may have left more than `limit` consecutive offsets without a batch.

    Probes stand half a limit apart, so every wider gap holds a probe with half a limit ahead. Some gaps above half the
    limit count, too. A gap in the last half would have begun before the probe in front of that half.
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
    """Return the bounds of the batch at or after `at` (none: `end` twice); deleted offsets are no gap: not copied."""
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
