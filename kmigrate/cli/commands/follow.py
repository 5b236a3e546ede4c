"""`kmigrate verify --follow`: compares again and again, beside a live mirror, what both clusters have, until Ctrl-C.

The rounds run the same check in one Spark session (docs/decisions/0008). Each round compares what is new on both sides
and records how far the copy is verified, so that `status` shows the progress and the next round goes on there.

A  A partition that differs is reported once and then left alone: everything behind a lost record would differ in every
   round. The partition's verified range stays as of the last equal round.
B  A round that fails is tried again; the call gives up when no round has ended well for --timeout seconds.
C  The first Ctrl-C (or SIGTERM) ends the running round, and nothing of that round is recorded.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kmigrate.cli.base.call import Call
from kmigrate.cli.base.exits import Exit
from kmigrate.cli.base.output import Answer, Waiting
from kmigrate.cli.base.words import Text
from kmigrate.cli.commands.checks import Asked, Job, SparkChoice, job_of, remember, session, sides
from kmigrate.errors import KmigrateError
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.parity.plan import PartitionKey, TopicRange
from kmigrate.parity.report import ParityReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Followed", "follow"]


@dataclass
class Followed:
    """The totals of all rounds so far."""

    rounds: int = 0
    records: int = 0
    mismatches: int = 0
    differing: set[PartitionKey] = field(default_factory=set)

    def still_followed(self, ranges: Sequence[TopicRange]) -> list[TopicRange]:
        """Return the ranges with new records, without partitions that differ (A)."""
        return [each for each in ranges if each.offsets and each.key not in self.differing]

    def add(self, report: ParityReport) -> None:
        self.rounds += 1
        self.records += report.records
        self.mismatches += report.mismatches
        self.differing |= {PartitionKey(row.topic, row.partition) for row in report.partitions if not row.equal}

    def answer(self, link: str) -> Answer:
        differing = [key._asdict() for key in sorted(self.differing)]
        json = {
            "event": "ended",
            "link": link,
            "equal": not self.mismatches,
            "rounds": self.rounds,
            "records": self.records,
            "mismatches": self.mismatches,
            "differing": differing,
        }
        if not self.mismatches:
            return Answer(json, Text(f"✓ equal: {self.records:,} records in {self.rounds} rounds", style="green"))
        names = ", ".join(f"{key.topic}-{key.partition}" for key in sorted(self.differing))
        text = Text(f"✗ {self.mismatches} mismatches in {self.records:,} records: {names}", style="bold red")
        return Answer(json, text, Exit.PARITY_MISMATCH)


def follow(call: Call, asked: Asked, choice: SparkChoice, interval: float) -> Answer:
    """Compare until the user ends the call."""
    call.out.as_lines()
    found = Followed()
    with call.out.waiting("starting Spark") as waiting:
        job = asyncio.run(job_of(call, asked, waiting))  # an error in the call's own arguments is raised here, at once
        with session(choice, waiting) as spark, _until_ended(spark) as ended:
            call.out.line({"event": "following", "link": job.link.name}, f"following link {job.link.name}")
            good = monotonic()
            while not (ended.is_set() or call.out.unheard):
                try:
                    _round(call, spark, asked, found, waiting, ended)
                    good = monotonic()
                except KmigrateError as error:
                    if ended.is_set():
                        break
                    if monotonic() - good > asked.timeout:
                        raise
                    call.out.line(
                        {"event": "not-compared", **error.as_json()}, f"not compared, tried again: {error.what}"
                    )
                waiting.say(f"{found.records:,} records compared, waiting for more")
                ended.wait(interval)
    return found.answer(job.link.name)


def _round(
    call: Call, spark: SparkSession, asked: Asked, found: Followed, waiting: Waiting, ended: threading.Event
) -> None:
    from kmigrate.spark.parity import verify_with

    job = asyncio.run(job_of(call, asked, waiting))
    job = replace(job, ranges=found.still_followed(job.ranges))
    if not job.ranges or ended.is_set():
        return
    with sides(call, job) as (source, target):
        report = verify_with(spark, job.ranges, source, target, on_progress=_progress(waiting))
    found.add(report)
    remember(call, job, report)
    call.out.line(_as_json(job, report), _as_text(report))


def _progress(waiting: Waiting) -> Callable[[str, int, int], None]:
    return lambda stage, done, total: waiting.say(f"{stage}: {done} of {total} tasks" if total else stage)


def _as_json(job: Job, report: ParityReport) -> dict[str, Any]:
    told = report.as_json()
    kept = ("equal", "records", "mismatches", "anomalies", "unexamined_buckets", "unnamed_buckets", "examples")
    return {
        "event": "compared",
        "at_ms": now_ms(),
        "link": job.link.name,
        **{name: told[name] for name in kept},
        "partitions": [
            {"topic": row.topic, "partition": row.partition, "start": row.start, "end": row.end, "equal": row.equal}
            for row in report.partitions
        ],
        "seconds": report.seconds["total"],
    }


def _as_text(report: ParityReport) -> str:
    at = dt.datetime.fromtimestamp(now_ms() / 1000).strftime("%H:%M:%S")  # noqa: DTZ006 the reader's own clock
    where = f"{at}  {report.records:,} records of {len(report.partitions)} partitions"
    if report.equal:
        return f"{where} equal"
    named = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items() if count) or "not named"
    places = ", ".join(f"{row.topic}-{row.partition}" for row in report.partitions if not row.equal)
    return f"{where}: {report.mismatches} mismatches ({named}) in {places}, which is not followed any more"


@contextmanager
def _until_ended(spark: SparkSession) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets.

    The same signal ends Spark's running jobs. A second signal has its usual effect.
    """
    ended = threading.Event()
    numbers = signal.SIGINT, signal.SIGTERM

    def end(number: int, frame: object) -> None:
        ended.set()
        restore()
        # A thread of its own, because the main thread may be in the middle of a call into the same JVM.
        threading.Thread(target=spark.sparkContext.cancelAllJobs, daemon=True).start()

    def restore() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield ended
    finally:
        restore()
