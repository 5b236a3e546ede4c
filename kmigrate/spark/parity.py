"""The parity check: digests of both clusters in a Spark job, and a closer look where the digests differ.

1. bounds: Both logs still hold the ranges. A target that ends early is read to its end, and the missing rest is named.
2. digest: The ranges of both sides, all topics, form a union: count, outer offsets and two digests per bucket.
3. drill: Only differing buckets are read again, as hashes, and `kmigrate.parity.verdict` names the records. Where a
   fault moved all records after it, the rest is digested again at the new distance (`kmigrate.parity.trail`).
4. locate: All source ranges, and the offsets verified before, tell whether a stray record is a second copy or extra.
5. look up: Both clusters are asked for the offsets of some records' times (`kmigrate.parity.lookups`).

Equal clusters pay for steps 1, 2 and 5 alone. Ranges end at or below the source's last stable offset, and the caller
has waited for the target to pass the ranges. A record that the target then lacks is lost.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kmigrate.errors import Failed
from kmigrate.parity.lookups import PartitionLookups, judge_lookups, rounds_of
from kmigrate.parity.plan import (
    CLEANED,
    BucketDigest,
    BucketKey,
    PartitionKey,
    Stretch,
    TopicRange,
    bucket_size,
    check_ranges,
    differing_buckets,
    hulls_of,
)
from kmigrate.parity.report import ParityReport, report_of
from kmigrate.parity.trail import DRILL_BUDGET, Trail
from kmigrate.parity.verdict import Anomaly, Drilled, Fingerprint, Place, Stray, judge, settle
from kmigrate.spark.admin import JavaAdmin, ask_each
from kmigrate.spark.bounds import Bounds, refuse_what_is_gone, within
from kmigrate.spark.compacted import newest_records
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.session import Progress, watched
from kmigrate.spark.source import FINGERPRINT, bucket_digest, fingerprints, read_ranges, with_record_hash

__all__ = ["compare_clusters", "write_findings"]

FINDING = (
    "kind string, topic string, source_partition int, source_offset bigint, "
    "target_partition int, target_offset bigint, parts array<string>, records bigint"
)

T = TypeVar("T")

Digests = dict[BucketKey, BucketDigest]
Sides = tuple[dict[PartitionKey, T], dict[PartitionKey, T]]


def compare_clusters(
    spark: SparkSession,
    ranges: Sequence[TopicRange],
    source: KafkaOptions,
    target: KafkaOptions,
    *,
    on_progress: Progress | None = None,
    session_seconds: float = 0.0,
) -> ParityReport:
    """Compare the ranges of both clusters. The report's times include `session_seconds`, the start of the session."""
    try:
        return _Check(spark, check_ranges(ranges), source, target, on_progress).run(session_seconds)
    except (PySparkException, Py4JError) as error:
        raise _explained(error) from error


class _Check:
    """A run of the check: the steps of the module's docstring, timed."""

    def __init__(
        self,
        spark: SparkSession,
        ranges: tuple[TopicRange, ...],
        source: KafkaOptions,
        target: KafkaOptions,
        on_progress: Progress | None,
    ) -> None:
        self.spark, self.ranges, self.source, self.target = spark, ranges, source, target
        self.on_progress = on_progress
        self.clusters = source.java(), target.java()
        self.size = bucket_size(ranges)
        self.at_source: dict[PartitionKey, Bounds] = {}
        self.at_target: dict[PartitionKey, Bounds] = {}

    def run(self, session_seconds: float) -> ParityReport:
        clock = time.monotonic
        began = clock()
        self.bound()
        bounded = clock()
        sides = self.digest(self.ranges)
        digested = clock()
        cleaned = self.cleaned(*sides)
        anomalies, plain, unexamined = self.name(cleaned, *sides)
        wrong = {PartitionKey(each.topic, place.partition) for each in anomalies for place in each.places}
        apart = (key for key in differing_buckets(*sides) if key.of in cleaned and key.of in wrong)
        differing = sorted({*plain, *apart})
        drilled = clock()
        lookups = self.look_up(sides[0], cleaned)
        ended = clock()
        return report_of(
            self.ranges,
            *sides,
            anomalies,
            differing=differing,
            unexamined=unexamined,
            size=self.size,
            lookups=lookups,
            seconds={
                "session": session_seconds,
                "bounds": bounded - began,
                "digest": digested - bounded,
                "drill": drilled - digested,
                "look-ups": ended - drilled,
                "total": session_seconds + ended - began,
            },
        )

    def look_up(self, source: Digests, cleaned: Collection[PartitionKey]) -> tuple[PartitionLookups, ...]:
        """Compare look-ups by time, where no log cleaner works."""
        rounds = rounds_of({key: digest for key, digest in source.items() if key.of not in cleaned})
        if not rounds:
            return ()
        answers = ask_each(self.spark, self.clusters, lambda admin: [admin.look_up(times) for times in rounds])
        starts = {key: bounds.start for key, bounds in self.at_source.items()}
        return judge_lookups(self.ranges, starts, list(zip(rounds, *answers, strict=True)))

    def bound(self) -> None:
        keys = [each.key for each in self.ranges]
        self.at_source, self.at_target = ask_each(self.spark, self.clusters, lambda admin: admin.bounds(keys))
        refuse_what_is_gone(self.ranges, self.at_source, self.at_target)

    def digest(self, ranges: Sequence[TopicRange]) -> tuple[Digests, Digests]:
        sides: tuple[Digests, Digests] = ({}, {})
        # Each side by itself: a record is read and hashed in the same generated loop, and only sums are put together.
        tables = [
            with_record_hash(rows).groupBy(*BucketKey._fields).agg(*bucket_digest()).select(F.lit(side), "*")
            for side, rows in enumerate(self.each(ranges))
        ]
        if not tables:
            return sides
        with watched(self.spark, "digest", self.on_progress):
            for side, topic, partition, bucket, *digest in reduce(DataFrame.unionAll, tables).collect():
                sides[side][BucketKey(topic, partition, bucket)] = BucketDigest(*digest)
        return sides

    def compacted(self, topics: set[str]) -> set[str]:
        """Return topics of which the source, or a target that deletes by itself, may keep only the newest records."""
        kept = {each.topic for each in self.ranges if each.kept}
        found: set[str] = set()
        for settings, asked in zip(self.clusters, (topics, topics - kept), strict=True):
            if asked:
                with JavaAdmin(self.spark, settings) as admin:
                    found |= admin.compacted(asked)
        return found

    def cleaned(self, source: Digests, target: Digests) -> dict[PartitionKey, TopicRange]:
        """Return the parts that a log cleaner works on, or has worked on, of the partitions that differ there."""
        differing = differing_buckets(source, target)
        compacted = self.compacted({key.topic for key in differing})
        found: dict[PartitionKey, TopicRange] = {}
        whole = {each.key: each for each in self.ranges}
        for key in differing:
            each = whole[key.of]
            if key.topic in compacted:
                each = replace(each, cleaned_to=CLEANED)
            part = each.cleaned
            if part is not None and key.bucket * self.size < part.end:
                found[key.of] = part
        return found

    def name(
        self, cleaned: Mapping[PartitionKey, TopicRange], source: Digests, target: Digests
    ) -> tuple[list[Anomaly], list[BucketKey], list[BucketKey]]:
        """Return the anomalies, the differing buckets that no cleaner explains, and the buckets left unread."""
        beyond = [each.resumed(cleaned[each.key].end, 0) for each in self.ranges if each.key in cleaned]
        rests = {each.key: each for each in beyond if each.offsets}
        plain = [
            {key: each for key, each in side.items() if key.of not in cleaned} | again
            for side, again in zip((source, target), self.digest(list(rests.values())), strict=True)
        ]
        trail = Trail([rests.get(each.key, each) for each in self.ranges], self.size, *plain)
        differing = differing_buckets(*plain)
        read = self.newest(cleaned)
        while buckets := trail.step():
            moved: list[TopicRange] = []
            for each in self.drill(buckets, trail.ranges.values()):
                kept, rest = trail.follow(each)
                read.append(kept)
                moved += [rest] if rest is not None else []
            if moved:
                trail.digested(moved, *self.digest(moved))
        anomalies, strays = judge(read)
        return (anomalies + settle(strays, self.locate(strays)) if read else []), differing, trail.unexamined

    def newest(self, cleaned: Mapping[PartitionKey, TopicRange]) -> list[Drilled]:
        """Return the newest records of each key in the parts that cleaners work on, as far as they differ."""
        ranges = list(cleaned.values())
        sides = self.each(ranges)
        if not sides:
            return []

        def behind(keys: set[PartitionKey]) -> DataFrame | None:
            return self.behind([cleaned[key] for key in sorted(keys)])

        with watched(self.spark, "drill", self.on_progress):
            return newest_records(reduce(DataFrame.unionAll, sides), ranges, DRILL_BUDGET, behind)

    def behind(self, asked: Sequence[TopicRange]) -> DataFrame | None:
        """Return the records that both logs now hold behind these ranges, up to where cleaners may have seen them."""
        sides = self.source, self.target
        keys = [each.key for each in asked]
        now = ask_each(self.spark, self.clusters, lambda admin: admin.bounds(keys))
        now = [_up_to(heeded, bounds) for heeded, bounds in zip(_heeded(asked), now, strict=True)]
        places = [each.at_source for each in asked], [each.at_target for each in asked]
        rows: list[DataFrame] = []
        for side, bounds, ranges in zip(sides, now, places, strict=True):
            rest = [
                each._replace(start=max(each.end, bounds[each.key].start), end=bounds[each.key].end) for each in ranges
            ]
            if filled := [each for each in rest if each.start < each.end]:
                rows.append(read_ranges(self.spark, side, filled, size=self.size))
        return reduce(DataFrame.unionAll, rows) if rows else None

    def drill(self, buckets: Sequence[BucketKey], ranges: Iterable[TopicRange]) -> list[Drilled]:
        """Return both sides' records of the buckets, as hashes in offset order."""
        hulls = hulls_of(buckets, ranges, self.size)
        sides = self.each(list(hulls.values()))
        found: Sides[list[Fingerprint]] = (defaultdict(list), defaultdict(list))
        if sides:
            wanted = self.spark.createDataFrame(list(buckets), "topic string, partition int, bucket bigint")
            chosen = reduce(DataFrame.unionAll, sides).join(F.broadcast(wanted), list(BucketKey._fields), "left_semi")
            table = fingerprints(chosen).select("side", *PartitionKey._fields, *FINGERPRINT)
            with watched(self.spark, "drill", self.on_progress):
                for side, topic, partition, *record in table.collect():
                    found[side][PartitionKey(topic, partition)].append(Fingerprint(*record))
        return [Drilled.of(hull, sorted(found[0][key]), sorted(found[1][key])) for key, hull in hulls.items()]

    def locate(self, strays: Sequence[Stray]) -> dict[int, list[tuple[PartitionKey, int]]]:
        """Return where the source first holds each stray's content, by partition, in all ranges of the topic."""
        topics = {key.topic for key, _ in strays}
        stretches = [self.searched(each) for each in self.ranges if each.topic in topics]
        stretches = [each for each in stretches if each.start < each.end]
        held: dict[int, list[tuple[PartitionKey, int]]] = defaultdict(list)
        if not stretches:
            return held
        contents = sorted({(record.content,) for _, record in strays})
        wanted = self.spark.createDataFrame(contents, "content bigint")
        rows = fingerprints(read_ranges(self.spark, self.source, stretches, size=self.size))
        table = (
            rows.join(F.broadcast(wanted), "content", "left_semi")
            .groupBy("content", "topic", "partition")
            .agg(F.min("offset"))
        )
        with watched(self.spark, "locate", self.on_progress):
            for content, topic, partition, offset in table.collect():
                held[content].append((PartitionKey(topic, partition), offset))
        return held

    def searched(self, each: TopicRange) -> Stretch:
        """Return the source offsets of possible originals, also offsets verified before that the log still holds."""
        origin = each.start if each.verified_from is None else each.verified_from
        return each.at_source._replace(start=max(origin, min(each.start, self.at_source[each.key].start)))

    def each(self, ranges: Sequence[TopicRange]) -> list[DataFrame]:
        """Return each side's rows of the ranges, marked by `side`, the source's first. The target may have no rows."""
        filled = [each for each in ranges if each.offsets]
        if not filled:
            return []
        there = [each.at_source._replace(end=min(each.end, self.at_source[each.key].end)) for each in filled]
        source = read_ranges(self.spark, self.source, there, size=self.size)
        both = [source.withColumn("side", F.lit(0))]
        held = within(filled, self.at_target)
        if held:
            maps = {each.key: each.map for each in filled if each.map is not None}
            target = read_ranges(self.spark, self.target, held, size=self.size, target=True, maps=maps)
            both.append(target.withColumn("side", F.lit(1)))
        return both


def _heeded(ranges: Sequence[TopicRange]) -> Sides[int]:
    """Return, for either side, the offset up to which a cleaner has seen the records that supersede others."""
    source, target = {each.key: each.cleaned_to for each in ranges}, dict[PartitionKey, int]()
    for each in ranges:
        place = each.map.to_target(each.cleaned_to) if each.map is not None else None
        target[each.key] = each.cleaned_to if each.map is None else CLEANED if place is None else place.offset
    return source, target


def _up_to(ends: Mapping[PartitionKey, int], bounds: Mapping[PartitionKey, Bounds]) -> dict[PartitionKey, Bounds]:
    return {key: each._replace(end=min(each.end, ends[key])) for key, each in bounds.items()}


def write_findings(spark: SparkSession, findings: Iterable[Anomaly], folder: Path) -> None:
    """Write a new folder with a Parquet file: places as columns of numbers, and a row per finding, if any."""
    rows = [
        (each.kind.value, each.topic, *_columns(each.source), *_columns(each.target), list(each.parts), each.records)
        for each in findings
    ]
    table = spark.createDataFrame(rows, FINDING).coalesce(1)
    table.write.mode("errorifexists").parquet(folder.absolute().as_uri())


def _columns(place: Place | None) -> tuple[int, int] | tuple[None, None]:
    return (None, None) if place is None else (place.partition, place.offset)


def _explained(error: Exception) -> Failed:
    """Return a Spark failure in kmigrate's words. The reason is deep in the Java trace, on the last cause."""
    reasons = re.findall(r"^(?:Caused by: )?([\w.$]*(?:Exception|Error): .*)$", str(error), re.MULTILINE)
    reason = reasons[-1] if reasons else str(error).strip().split("\n")[0]
    if re.search(r"OffsetOutOfRange|data may have been lost|failOnDataLoss", str(error)):
        ref, what = "parity-range-gone", f"a part of the range is no longer in one of the clusters: {reason}"
        next_step = "compare again from the present log start; retention may have deleted records"
    elif "ArithmeticException: long overflow" in reason:
        ref = "parity-time-too-large"
        what = "a record of the range has a time that Spark cannot read: as microseconds it is beyond 64 bits"
        next_step = "name the other topics; a producer of this one may give nanoseconds as milliseconds"
    elif "OutOfMemoryError" in str(error):
        ref, what = "parity-out-of-memory", f"Spark's heap is too small for the records of this range: {reason}"
        next_step = (
            "verify again with more heap than docs/spark.md names, as in --conf spark.driver.memory=4g; "
            "on a cluster spark.executor.memory"
        )
    else:
        ref, what = "parity-read-failed", f"Spark could not read the range: {reason}"
        next_step = "check that both clusters answer and hold every topic, then verify again"
    return Failed(ref, what, still_true="both clusters were only read", next_step=next_step)
