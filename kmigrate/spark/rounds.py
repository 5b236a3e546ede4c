"""A bulk copy of a link, from the first round to the hand-over.

    look what is left ──▶ a job over it ──▶ look again ──▶ … ──little left, or over half of before──▶ hand over

The only state of a run is in the topics' records (that Spark copies the topics) and in the target's own logs (how far
the copy is). So another run can follow a killed run. With `continuous` a job has no end: its tasks copy until their
topics are promoted or handed over.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.bulk.ranges import CopyRange, Key, split
from kmigrate.mirror.bulk.remaining import left_to_copy
from kmigrate.mirror.bulk.task import ENDLESS, BulkJob, Copied
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import CopyEngine, TopicRecord
from kmigrate.model.sharing import by_spark
from kmigrate.net.clock import monotonic
from kmigrate.net.tasks import accompanied
from kmigrate.spark.bulk import run_tasks
from kmigrate.state.log import StateLog

__all__ = ["BulkProgress", "BulkRun", "Round"]

SMALL_BYTES = 256 << 20
"""Maximum size of a rest that is left to the daemon, which copies the rest sooner than another job starts its tasks."""
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Round:
    """A job, as planned and as ended."""

    tasks: int
    partitions: int
    offsets: int
    size: int
    seconds: float = 0.0
    copied: Sequence[Copied] = field(default=(), repr=False)

    @property
    def problems(self) -> list[Copied]:
        return [each for each in self.copied if each.problem]


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The progress of a job, as the job's tasks report."""

    offsets: int
    of_offsets: int
    size: int
    of_size: int
    seconds: float
    tasks: int
    """The number of attempts that report."""
    trouble: str = ""


class BulkRun:
    """The rounds of a call. `spark` may be any session."""

    def __init__(
        self,
        spark: SparkSession,
        log: StateLog,
        source: ClusterClient,
        target: ClusterClient,
        job: BulkJob,
        topics: Sequence[str],
        *,
        throttle: int = 0,
        on_progress: Callable[[BulkProgress], None] = lambda progress: None,
    ) -> None:
        self._context = spark.sparkContext
        self._log = log
        self._source = source
        self._target = target
        self._job = job
        self._topics = list(topics)
        self._throttle = throttle
        self._on_progress = on_progress
        self._name = secrets.token_hex(3)

    async def run(self, *, continuous: bool = False) -> list[Round]:
        """Run round after round, until little is left, a round had problems, or no topic is Spark's any more."""
        rounds: list[Round] = []
        before = 0
        while records := self._records():
            ranges = await self.left(records)
            size = sum(each.size for each in ranges)
            if continuous:
                rounds.append(await self._round(_with_idle(ranges, records), records, endless=True))
            elif not ranges or (rounds and (size <= SMALL_BYTES or size > before / 2)):
                break
            else:
                rounds.append(await self._round(ranges, records, endless=False))
            if rounds[-1].problems:
                break
            before = size
        return rounds

    def _records(self) -> list[TopicRecord]:
        found = (self._log.state.topic(self._job.link, topic) for topic in self._topics)
        return [record for record in found if record is not None and by_spark(record)]

    async def left(self, records: Sequence[TopicRecord]) -> list[CopyRange]:
        """Return the ranges that are left to copy now, without partitions that have stopped."""
        starts = {
            (record.topic, partition): start
            for record in records
            for partition, start in record.starts.items()
            if partition not in record.stops
        }
        compacted = {record.topic for record in records if record.compacted}
        return await left_to_copy(
            self._source, starts, self._target, compacted=compacted, pipelining=self._job.pipelining
        )

    async def _round(self, ranges: Sequence[CopyRange], records: Sequence[TopicRecord], *, endless: bool) -> Round:
        tasks = split(ranges, self._context.defaultParallelism)
        ends = [{(r.topic, r.partition): ENDLESS if endless else r.end for r in task} for task in tasks]
        job = replace(
            self._job,
            throttle=self._throttle and max(1, self._throttle // len(tasks)),
            partitions={record.topic: len(record.starts) for record in records if endless},
        )
        planned = Round(len(tasks), len(ranges), sum(r.offsets for r in ranges), sum(r.size for r in ranges))
        began = monotonic()
        try:
            copied = await accompanied(
                asyncio.to_thread(run_tasks, self._context, job, ends, self._name), self._watch(ranges, began)
            )
        finally:
            self._context.cancelJobGroup(self._name)  # no effect if the job has ended
        return replace(planned, seconds=monotonic() - began, copied=tuple(copied))

    async def _watch(self, ranges: Sequence[CopyRange], began: float) -> None:
        """Report the tasks' progress, for ever."""
        while True:
            await self._log.changed(_LOOK_S)
            self._on_progress(self._progress(ranges, monotonic() - began))

    def _progress(self, ranges: Sequence[CopyRange], seconds: float) -> BulkProgress:
        reports = [
            report
            for report in self._log.alive(MirrorPresence)
            if report.engine is CopyEngine.SPARK and report.instance.startswith(f"spark-{self._name}-")
        ]
        at: dict[Key, int] = {}
        troubles: dict[str, None] = {}
        for report in reports:
            for topic, parts in report.topics.items():
                for partition, progress in parts.items():
                    key = (topic, partition)
                    at[key] = max(at.get(key, -1), progress.position)
                    troubles |= dict.fromkeys(each for each in (progress.problem, progress.trouble) if each)
            troubles |= dict.fromkeys(report.notes)
        done = [max(0, min(at.get((r.topic, r.partition), r.start), r.end) - r.start) for r in ranges]
        return BulkProgress(
            sum(done),
            sum(r.offsets for r in ranges),
            sum(r.size * part // max(1, r.offsets) for r, part in zip(ranges, done, strict=True)),
            sum(r.size for r in ranges),
            seconds,
            len(reports),
            "; ".join(troubles),
        )


def _with_idle(ranges: Sequence[CopyRange], records: Sequence[TopicRecord]) -> list[CopyRange]:
    """Return a range for every partition, also where nothing is left now, because more will come."""
    busy: Mapping[Key, CopyRange] = {(each.topic, each.partition): each for each in ranges}
    return [
        busy.get((record.topic, partition), CopyRange(record.topic, partition, start, start, 0))
        for record in records
        for partition, start in record.starts.items()
        if partition not in record.stops
    ]
