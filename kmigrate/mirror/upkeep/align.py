"""Alignment of the target's log start with the offset where the first mirrored record will stand (M4, A12).

Fillers (batches of up to a million empty records) are appended by the append rule, so no aligner appends a filler
twice. DeleteRecords then moves the log start behind the fillers, before any client may use the topic. Each step is
derived from the target's own log, and can be repeated after any crash.

A filler's timestamp is old, so that retention and look-ups by time see a segment with fillers as old as its records
(T3), but not older than the target's memory of producers (V6).

While a topic is mirrored, the target deletes nothing of its own accord. Records that the source has deleted, by
retention or DeleteRecords, are deleted from the copy, up to the copy's last record, after two looks with the same
source log start. So no reader of both clusters ever finds the copy's log start beyond the source's. If offsets are
mapped, the map gives the target offset. A target log that still holds records from before the mirror is left unchanged.

A log start inside a source batch (after DeleteRecords, or from a timestamp) is met exactly: the copier sends the
records from there on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kmigrate.cluster.append import LogTail, append_alone, read_tail
from kmigrate.cluster.client import EARLIEST, LATEST
from kmigrate.errors import BrokerRefused, Diverged, Failed, Refused, Unreachable
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.partition.lane import Key
from kmigrate.model.records import TopicRecord
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import Code, row
from kmigrate.records.batch import next_sequence
from kmigrate.records.build import filler_batch

__all__ = ["Aligner"]

_log = logging.getLogger("kmigrate.mirror")
_FILLER = 1_000_000
_AT_ONCE = 4
"""Number of partitions aligned at the same time; the alignment of a single partition already keeps a broker busy."""
_PATIENCE_S = 60.0


class Aligner:
    """Moves log starts for a link, with the link's data producer id."""

    def __init__(
        self,
        context: CopyContext,
        *,
        filler_age_ms: int = 0,
        target_offset: Callable[[Key, int], int] = lambda key, offset: -1,
    ) -> None:
        """Create an aligner; `target_offset` maps a source offset of a mapped partition, −1 if unknown."""
        self._source = context.source
        self._target = context.target
        self._identity = context.identity
        self._settings = context.link_settings
        self._target_offset = target_offset
        self._filler_age_ms = filler_age_ms
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def align(self, record: TopicRecord) -> None:
        """Bring each log end to its start or beyond, and each log start exactly there; raise Failed or Refused."""
        starts = {partition: start for partition, start in record.starts.items() if start > 0}
        await together(*(self._fill(record, partition, start) for partition, start in starts.items()))
        await self._cut(record.topic, starts)

    async def recheck(self, record: TopicRecord, before: Mapping[int, int]) -> Mapping[int, int]:
        """Correct log starts: a broker forgot (W6), or the source moved since `before`; return the source's starts."""
        source_starts = await self._at_source(record)
        if not record.mapped:
            # After a rollback the target's log may begin anywhere: its own retention has worked before.
            highest = {p: max(source_starts.get(p, 0), record.resumed.get(p, 0)) for p in record.starts}
            await self._cut(record.topic, record.starts, highest)
        if self._settings().follow_log_start:
            await self._follow(record, {p: min(start, before.get(p, -1)) for p, start in source_starts.items()})
        return source_starts

    async def _at_source(self, record: TopicRecord) -> dict[int, int]:
        """Return the log starts that the source reports for the mirrored topic."""
        info = await self._source.topic(record.topic)
        if info is None or info.is_other_than(record.source_topic_id):
            return {}
        answers = await self._source.list_offsets({(record.topic, partition): EARLIEST for partition in record.starts})
        return {partition: answer.offset for (_, partition), answer in answers.items() if not answer.error}

    async def _follow(self, record: TopicRecord, source_starts: Mapping[int, int]) -> None:
        """Delete the records below these source log starts from the copy."""
        moved = {(record.topic, p): start for p, start in source_starts.items() if start > record.starts[p]}
        if record.mapped:
            target_offsets = {key: self._target_offset(key, start) for key, start in moved.items()}
            moved = {key: target_offset for key, target_offset in target_offsets.items() if target_offset >= 0}
        if not moved:
            return
        begins = await self._target.list_offsets(dict.fromkeys(moved, EARLIEST))
        ends = await self._target.list_offsets(dict.fromkeys(moved, LATEST))
        low = {
            key[1]: start
            for key, start in moved.items()
            if not (begins[key].error or ends[key].error)
            and max(0, record.target_starts.get(key[1], 0)) <= begins[key].offset < start < ends[key].offset
        }
        refused = await self._target.delete_records(record.topic, low) if low else {}
        for partition, (code, _) in refused.items():
            if code and not row(code).retriable:  # the copy only takes more room: nothing waits for the deletion
                what = "%s-%d: the target does not delete what the source has deleted: %s"
                _log.warning(what, record.topic, partition, row(code).name)

    async def _cut(self, topic: str, starts: Mapping[int, int], highest: Mapping[int, int] | None = None) -> None:
        """Move each log start that lies below its intended offset; `highest` as in `_too_low`."""
        deadline = monotonic() + _PATIENCE_S
        while True:
            low = await self._too_low(topic, starts, highest or {})
            if not low:
                return
            answers = await self._target.delete_records(topic, low)
            for code, _ in answers.values():
                if code and not row(code).retriable:
                    raise BrokerRefused(
                        "log-start-refused",
                        f"the target refused DeleteRecords on {topic}: {row(code).name} ({code})",
                        code=code,
                        still_true="no client sees the topic yet",
                        next_step=f"allow {self._target.settings.security.principal} DELETE on topic {topic} at "
                        f"cluster {self._target.settings.name}",
                    )
            if monotonic() > deadline:
                raise Failed("log-start-late", f"the log start of {topic} on the target does not move")
            await sleep(0.05)

    async def _too_low(self, topic: str, starts: Mapping[int, int], highest: Mapping[int, int]) -> dict[int, int]:
        """Return the starts of the partitions whose target log begins too low; `highest`: log starts that are right."""
        answers = await self._target.list_offsets({(topic, partition): EARLIEST for partition in starts})
        for partition, start in starts.items():
            answer = answers[(topic, partition)]
            if answer.error:
                await self._target.refresh([topic])
                raise Unreachable(
                    "no-log-start",
                    f"where {topic}-{partition} begins on the target cannot be read: {row(answer.error).name}",
                )
            if answer.offset > max(start, highest.get(partition, 0)):
                raise Diverged(
                    "log-start-too-high",
                    f"{topic}-{partition} on the target begins at {answer.offset}, its mirror at {start}",
                    next_step="somebody deletes records on the target; stop that, then mirror the topic anew",
                )
        return {partition: start for partition, start in starts.items() if answers[(topic, partition)].offset < start}

    async def _fill(self, record: TopicRecord, partition: int, start: int) -> None:
        topic = record.topic
        async with self._turn:
            tail = await self._tail(topic, partition)
            if tail.end >= start:
                return
            if start - tail.end > (limit := self._settings().align_limit):
                raise Refused(
                    "padding-too-long",
                    f"{topic}-{partition} would need {start - tail.end} filler offsets to begin at {start}; "
                    f"align_limit of the link is {limit}",
                    still_true="nothing was written to this partition",
                    next_step=f"raise the limit: kmigrate link alter {record.link} --set align_limit=N; or mirror the "
                    "topic with --offsets mapped",
                )
            while tail.end < start:
                count = min(_FILLER, start - tail.end)
                batch = await asyncio.to_thread(self._filler, count, tail)
                tail = await self._append(topic, partition, batch, tail, count)

    def _filler(self, count: int, tail: LogTail) -> bytearray:
        return filler_batch(
            count,
            timestamp=now_ms() - self._filler_age_ms,
            producer_id=self._identity.data_id,
            epoch=max(self._identity.data_epoch, tail.epoch),
            sequence=tail.sequence,
        )

    async def _tail(self, topic: str, partition: int, settle_s: float = 0.0) -> LogTail:
        return await read_tail(self._target, topic, partition, self._identity.data_id, settle_s=settle_s)

    async def _append(
        self, topic: str, partition: int, batch: bytearray | memoryview, tail: LogTail, count: int
    ) -> LogTail:
        """Append a filler by the append rule; return the tail after the append, whichever process wrote it."""
        unknown = False
        try:
            answer = await append_alone(self._target, topic, partition, batch, purpose="align")
        except Unreachable:
            unknown = True
            await sleep(0.2)
        else:
            if answer.error == 0:
                if answer.base_offset != tail.end:
                    raise Diverged(
                        "diverged",
                        f"a filler for offset {tail.end} of {topic}-{partition} was found at {answer.base_offset}",
                    )
                # No other aligner has gone on meanwhile, or the answer would be 45: so the new tail is calculated here.
                # After a 45 the tail is read below.
                sequence = next_sequence(tail.sequence, count)
                return LogTail(tail.end + count, sequence, tail.end + count, tail.epoch)
            if answer.error != Code.OUT_OF_ORDER_SEQUENCE_NUMBER and not row(answer.error).retriable:
                raise BrokerRefused(
                    "filler-refused",
                    f"the target refused a filler for {topic}-{partition}: {row(answer.error).name} ({answer.error})",
                    code=answer.error,
                    still_true="no client sees the topic yet",
                )
            unknown = answer.error != Code.OUT_OF_ORDER_SEQUENCE_NUMBER
            await self._target.refresh([topic])
        return await self._tail(topic, partition, 0.1 if unknown else 0.0)
