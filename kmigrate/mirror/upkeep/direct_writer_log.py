"""Writes the direct writers of mirrored topics into the state log, so that a restart forgets none.

A new writer, and a pause longer than the known pause, are written within a second or two. Everything else waits for
`_SELDOM_S`, or for `_SOON_S` during a promote. A process writes at most one record every `_LOOK_S`. Several processes
may copy partitions of the same topic; each process adds its batches to the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmigrate.errors import KmigrateError, StateLogBroken
from kmigrate.mirror.partition.direct_writers import DirectSeen
from kmigrate.mirror.partition.lane import Key
from kmigrate.mirror.partition.steps import Producer
from kmigrate.model.lifecycle import PROMOTING
from kmigrate.model.records import DirectRecord, DirectWriter
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep, steady_ms
from kmigrate.state.log import StateLog

__all__ = ["MOST_WRITERS", "DirectLog", "joined"]

_LOOK_S = 0.5
_SOON_S = 1.0
_SELDOM_S = 30.0
_RETRY_S = 1.0
_SHORT_PAUSE_MS, _MUCH_LONGER = 500, 1.25
MOST_WRITERS = 250
"""Maximum number of writers in a topic's record, about 40 KB of JSON."""

_Found = dict[tuple[int, Producer], DirectWriter]


@dataclass(slots=True)
class DirectLog:
    """Keeps the records of a link's direct writers."""

    log: StateLog
    link: str
    _written: dict[str, float] = field(default_factory=dict)
    """Time of the last write of each topic's record."""
    _known: dict[tuple[str, int, Producer], int] = field(default_factory=dict)
    """Writers that this process has written to the state log, with their longest pauses at that time."""

    async def run(self, seen: Mapping[Key, DirectSeen]) -> None:
        """Write each due record, for ever; a failed write to the state log is tried again."""
        while True:
            await sleep(_LOOK_S)
            topic = self._due(seen)
            if topic is None:
                continue
            try:
                await self.write(topic, seen)
            except StateLogBroken:
                raise
            except KmigrateError:
                await sleep(_RETRY_S)

    def _due(self, seen: Mapping[Key, DirectSeen]) -> str | None:
        """Return the topic with the oldest record among those with news; new writers go first."""
        now = monotonic()
        waiting: dict[str, bool] = {}
        for (topic, partition), direct in seen.items():
            fresh = [producer for producer, writer in direct.writers.items() if writer.unsaved]
            if fresh or direct.dropped:
                is_new = any(self._says_more(topic, partition, producer, direct) for producer in fresh)
                waiting[topic] = waiting.get(topic, False) or is_new
        due = [
            topic
            for topic, is_new in waiting.items()
            if now - self._written.get(topic, -_SELDOM_S) >= (_SOON_S if is_new or self._hurries(topic) else _SELDOM_S)
        ]
        return min(due, key=lambda topic: (not waiting[topic], self._written.get(topic, 0.0)), default=None)

    def _says_more(self, topic: str, partition: int, producer: Producer, direct: DirectSeen) -> bool:
        """Return whether a writer is new, or has paused for longer than the written pause."""
        known = self._known.get((topic, partition, producer))
        slowest = direct.writers[producer].slowest_ms
        return known is None or slowest > max(_SHORT_PAUSE_MS, _MUCH_LONGER * known)

    def _hurries(self, topic: str) -> bool:
        record = self.log.state.topic(self.link, topic)
        return record is not None and record.phase in PROMOTING

    async def write(self, topic: str, seen: Mapping[Key, DirectSeen]) -> None:
        """Add the unsaved batches of a topic's direct writers to the record."""
        self._written[topic] = monotonic()
        clock_offset_ms = self.log.now_ms() - steady_ms()
        of_topic = {partition: direct for (name, partition), direct in seen.items() if name == topic}
        found: _Found = {
            (partition, producer): DirectWriter(
                *producer,
                partition,
                writer.unsaved,
                writer.offset,
                writer.first_ms + clock_offset_ms,
                writer.last_ms + clock_offset_ms,
                writer.slowest_ms,
            )
            for partition, direct in of_topic.items()
            for producer, writer in direct.writers.items()
            if writer.unsaved
        }
        dropped_of = {partition: direct.dropped for partition, direct in of_topic.items()}
        more = sum(dropped_of.values())
        routed: set[tuple[int, Producer]] = set()

        def decide(state: State) -> DirectRecord | None:
            if state.topic(self.link, topic) is None:
                return None
            routed.clear()
            routed.update(key for key in found if state.is_routed(self.link, *key[1]))
            fresh = {key: writer for key, writer in found.items() if key not in routed}
            known = state.direct(self.link, topic) or DirectRecord(self.link, topic)
            return joined(known, fresh, more) if fresh or more else None

        await self.log.append(decide)
        for partition, dropped in dropped_of.items():
            of_topic[partition].dropped -= dropped
        for partition, producer in found:
            if (partition, producer) in routed:
                of_topic[partition].routed(producer)
                continue
            self._known[topic, partition, producer] = found[partition, producer].slowest_ms
            if (writer := of_topic[partition].writers.get(producer)) is not None:
                writer.unsaved -= found[partition, producer].records


def joined(known: DirectRecord, fresh: _Found, more: int) -> DirectRecord:
    """Return the record with newer batches: batches of known writers are added, and the oldest writers are dropped."""
    writers: _Found = {(each.partition, (each.producer_id, each.epoch)): each for each in known.writers}
    for key, writer in fresh.items():
        before = writers.get(key)
        if before is not None:
            writer = replace(
                writer,
                records=before.records + writer.records,
                first_ms=before.first_ms,
                slowest_ms=max(before.slowest_ms, writer.slowest_ms),
            )
        writers[key] = writer
    newest = sorted(writers.values(), key=lambda each: each.last_ms, reverse=True)
    kept = sorted(newest[:MOST_WRITERS], key=lambda each: (each.producer_id, each.epoch, each.partition))
    return replace(known, writers=tuple(kept), more=known.more + more + len(newest) - len(kept))
