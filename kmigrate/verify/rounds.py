"""`kmigrate verify --follow`: compares again and again, beside a live mirror, what both clusters have, until Ctrl-C.

Rounds check what is new, in one Spark session (docs/decisions/0008); `status` and the next round use their records.

A  A partition that differs is reported once and then left alone: everything behind a lost record would differ in every
   round. The partition's verified range stays as of the last equal round.
B  A round that fails is tried again; the call gives up when no round has ended well for --timeout seconds.
C  The first Ctrl-C (or SIGTERM) ends the running round, and nothing of that round is recorded.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kmigrate.errors import KmigrateError
from kmigrate.net.clock import monotonic
from kmigrate.parity.plan import PartitionKey, TopicRange
from kmigrate.parity.report import ParityReport
from kmigrate.verify.compare import SparkChoice, options_of, session, show_stages
from kmigrate.verify.job import Caller, Selection, find_job, remember

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Totals", "compare_in_rounds"]


@dataclass
class Totals:
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


def compare_in_rounds(
    caller: Caller, selection: Selection, choice: SparkChoice, interval: float, totals: Totals
) -> Generator[str | ParityReport | KmigrateError]:
    """Compare until the user ends the call; yield the link's name, then the report or the error of each round."""
    job = asyncio.run(find_job(caller, selection))  # an error in the call's own arguments is raised here, at once
    with session(choice, caller.say) as spark, _until_ended(spark) as ended:
        yield job.link.name
        good = monotonic()
        while not ended.is_set():
            try:
                report = _round(caller, spark, selection, totals, ended)
                good = monotonic()
                if report is not None:
                    yield report
            except KmigrateError as error:
                if ended.is_set():
                    break
                if monotonic() - good > selection.timeout:
                    raise
                yield error
            caller.say(f"{totals.records:,} records compared, waiting for more")
            ended.wait(interval)


def _round(
    caller: Caller, spark: SparkSession, selection: Selection, totals: Totals, ended: threading.Event
) -> ParityReport | None:
    """Return the report of a round, or None where nothing is new."""
    from kmigrate.spark.parity import compare_clusters

    job = asyncio.run(find_job(caller, selection))
    job = replace(job, ranges=totals.still_followed(job.ranges))
    if not job.ranges or ended.is_set():
        return None
    with options_of(caller, job) as (source, target):
        report = compare_clusters(spark, job.ranges, source, target, on_progress=show_stages(caller.say))
    totals.add(report)
    asyncio.run(remember(caller, job, report))
    return report


@contextmanager
def _until_ended(spark: SparkSession) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, ending Spark's jobs; a second signal acts as usual."""
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
