"""The newest batch of each producer, found at the end of a log.

A broker forgets a producer by the age of the producer's records and not by the clock (V6), but its log does not forget.
So the last batches of a partition tell what its producers wrote last, whatever the broker still knows. Lettered rules:

A  The read covers at least the last MiB of each partition, or all of the partition, and every record appended since the
   first look.
B  A process that looks once before and again later reads only the new records, which are few while writers wait.
C  Records read under another leader epoch may have been cut off since, and are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmigrate.cluster.client import EARLIEST, ClusterClient, LogOffset
from kmigrate.cluster.fetcher import fetch_full
from kmigrate.errors import Unreachable
from kmigrate.model.barrier import newest
from kmigrate.model.records import ProducerMark
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.hot import FetchedPartition, FetchPartition
from kmigrate.records.batch import Batch
from kmigrate.records.old_messages import walk_all

__all__ = ["RecentBatches"]

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
        told = await self._client.list_offsets(dict.fromkeys(keys, EARLIEST))
        return {key: max(0, start.offset) for key, start in told.items()}
