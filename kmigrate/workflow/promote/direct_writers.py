"""Finds direct writers, the producers that write to the source without a router, by four kinds of evidence.

1. The state log (`DirectRecord`): every direct writer that the mirror has seen during the link, however long ago.
2. The mirrors' presences: the newest direct batch of each partition, with the time at which the mirror read the batch.
3. DescribeProducers at the source: open transactions, and batches that no mirror has read and written down.
4. The source's log end, which moves while all routers are drained (seen by the promote itself).

A producer id below 2^40 was handed out by the source; the state log names the routed ids among them, with epochs.
A direct producer that takes over a routed transactional id has a later epoch.
docs/promote.md tells the silence that a promote awaits, and why a time beyond now in a record says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from kmigrate.cluster.client import ClusterClient, ProducerState
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import DirectWriter, TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.net.clock import sleep
from kmigrate.state.log import StateLog

__all__ = ["Straggler", "direct_writers", "look_for_direct_writers", "seen_direct_writers"]

_LOOK_AGAIN_S = 1.0
"""Time between two looks at a sequence whose newest record bears a time beyond now."""
_PAUSES = 2
"""Number of pauses after which a silent writer is believed to be gone."""

_Key = tuple[int, int, int]
"""Partition, producer id, epoch."""
_Found = dict[_Key, DirectWriter]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A direct writer, and the silence after which a promote takes the writer for gone."""

    topic: str
    writer: DirectWriter
    silent_ms: int
    quiet_ms: int
    """Silence after which a promote takes the writer for gone."""
    in_transaction: bool = False

    @property
    def in_the_way(self) -> bool:
        return self.silent_ms < self.quiet_ms

    @property
    def left_s(self) -> float:
        """Seconds of further silence until a promote takes the writer for gone."""
        return max(0, self.quiet_ms - self.silent_ms) / 1000

    @property
    def text(self) -> str:
        writer = self.writer
        who = f"producer id {writer.producer_id}" if writer.producer_id >= 0 else "a producer without id"
        at = f" at offset {writer.offset}" if writer.offset >= 0 else ""
        silent = f"{self.silent_ms / 1000:.1f} s ago"
        open_ = " in an open transaction" if self.in_transaction else ""
        return f"{who} wrote to {self.topic}-{writer.partition}{at} on the source {silent}, past every router{open_}"

    @property
    def reason(self) -> str:
        """The text, and the awaited silence where it is longer than usual."""
        paused = self.writer.slowest_ms
        if self.in_transaction or paused < 0 or self.quiet_ms <= _PAUSES * 1000:
            return self.text
        return f"{self.text}; a promote waits for {self.quiet_ms / 1000:.1f} s of silence"


def seen_direct_writers(log: StateLog, record: TopicRecord) -> _Found:
    """Return the direct writers of a topic that the state log and the mirrors name, by partition, id and epoch."""
    known = log.state.direct(record.link, record.topic)
    found: _Found = {_key(writer): writer for writer in (known.writers if known is not None else ())}
    now = log.now_ms()
    for presence in log.alive(MirrorPresence):
        if presence.link != record.link:
            continue
        for partition, seen in presence.topics.get(record.topic, {}).items():
            if not seen.direct_ms:
                continue
            last_ms = now - max(0, presence.said_ms - seen.direct_ms)
            key = partition, seen.direct_id, seen.direct_epoch
            _note(found, key, last_ms, seen.direct_offset)
    return {
        key: writer
        for key, writer in found.items()
        if key[1] not in record.former_copies and not log.state.is_routed(record.link, key[1], key[2])
    }


async def look_for_direct_writers(
    log: StateLog, source: ClusterClient, record: TopicRecord, window_s: float
) -> list[Straggler]:
    """Return all direct writers of a topic that any of the four kinds of evidence names."""
    described = await _described(log, source, record)
    moved: set[_Key] = set()
    if window_s and any(producer.last_timestamp > log.now_ms() for producer in described.values()):
        await sleep(min(window_s, _LOOK_AGAIN_S))
        before, described = described, await _described(log, source, record)
        moved = {key for key, producer in described.items() if before.get(key) != producer}
    found = seen_direct_writers(log, record)
    now, window_ms = log.now_ms(), round(window_s * 1000)
    for key, producer in described.items():
        if key in moved and producer.last_timestamp > now:
            _note(found, key, now, -1)
        elif (0 if key in found else now - window_ms) <= producer.last_timestamp <= now:
            _note(found, key, producer.last_timestamp, -1)
        elif producer.txn_start_offset >= 0:
            _note(found, key, min(now, producer.last_timestamp), producer.txn_start_offset)
    quiet = _quiet_ms(found.values(), window_ms)
    newest = _newest(found.values())
    return [
        Straggler(
            record.topic,
            writer,
            max(0, now - (newest[key[1:]] if key[1] >= 0 else writer.last_ms)),
            quiet[key],
            in_transaction=key in described and described[key].txn_start_offset >= 0,
        )
        for key, writer in sorted(found.items())
    ]


async def direct_writers(log: StateLog, source: ClusterClient, record: TopicRecord, window_s: float) -> list[str]:
    """Return a sentence about each direct writer that is in the way of a promote."""
    found = await look_for_direct_writers(log, source, record, window_s)
    return [straggler.reason for straggler in found if straggler.in_the_way]


async def _described(log: StateLog, source: ClusterClient, record: TopicRecord) -> dict[_Key, ProducerState]:
    """Return the producers, as the source describes them, that wrote data and belong to no router."""
    return {
        (partition, producer.producer_id, producer.producer_epoch): producer
        for (_, partition), (error, producers) in (await source.describe_producers(record.topic_partitions)).items()
        for producer in producers
        if not error
        and producer.producer_id < DIRECT_LIMIT
        and producer.producer_id not in record.former_copies
        # otherwise the producer has written only a marker
        and (producer.last_sequence >= 0 or producer.txn_start_offset >= 0)
        and not log.state.is_routed(record.link, producer.producer_id, producer.producer_epoch)
    }


def _key(writer: DirectWriter) -> _Key:
    return writer.partition, writer.producer_id, writer.epoch


def _note(found: _Found, key: _Key, last_ms: int, offset: int) -> None:
    known = found.get(key)
    if known is None:
        partition, producer_id, epoch = key
        found[key] = DirectWriter(producer_id, epoch, partition, 1, offset, last_ms, last_ms)
    elif last_ms > known.last_ms:
        found[key] = replace(known, last_ms=last_ms, offset=max(offset, known.offset))


def _newest(writers: Iterable[DirectWriter]) -> Mapping[tuple[int, int], int]:
    """Return when each producer last wrote to any partition."""
    newest: dict[tuple[int, int], int] = {}
    for writer in writers:
        producer = writer.producer_id, writer.epoch
        newest[producer] = max(writer.last_ms, newest.get(producer, 0))
    return newest


def _quiet_ms(writers: Collection[DirectWriter], window_ms: int) -> dict[_Key, int]:
    of_topic, newest = _pause_between(writers), _newest(writers)
    first: dict[tuple[int, int], int] = {}
    for writer in writers:
        producer = writer.producer_id, writer.epoch
        first[producer] = min(writer.first_ms, first.get(producer, writer.first_ms))
    pauses: dict[tuple[int, int], int] = {}
    for writer in writers:
        # No pause between any two batches of the producer is longer than this, whichever partitions they went to.
        producer = writer.producer_id, writer.epoch
        bound = max(writer.slowest_ms, newest[producer] - writer.last_ms, writer.first_ms - first[producer])
        pauses[producer] = min(bound, pauses.get(producer, bound))
    return {
        _key(writer): max(window_ms, _PAUSES * max(of_topic, pauses[writer.producer_id, writer.epoch]))
        for writer in writers
    }


def _pause_between(writers: Iterable[DirectWriter]) -> int:
    """Return the longest time between writers: a job with a new producer at each run shows only by this pause."""
    in_order = sorted(writers, key=lambda each: each.first_ms)
    ends = accumulate((writer.last_ms for writer in in_order), max)
    return max((after.first_ms - end for after, end in zip(in_order[1:], ends, strict=False)), default=0)
