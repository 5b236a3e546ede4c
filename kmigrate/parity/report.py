"""The outcome of a parity check as a value: tables, files, JSON and the exit code come from this value."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kmigrate.parity.lookups import PartitionLookups
from kmigrate.parity.plan import BucketDigest, BucketKey, PartitionKey, TopicRange
from kmigrate.parity.verdict import Anomaly, AnomalyKind

__all__ = ["ParityReport", "PartitionRow", "TimeStep", "TopicRow", "nothing_read", "report_of", "timeline"]

EXAMPLES_OF_A_KIND = 100
MOST_STEPS = 60
"""Maximum number of time steps."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition: the content of each side in the compared range, and the number of differences."""

    topic: str
    partition: int
    start: int
    end: int
    target_start: int
    target_end: int
    verified_from: int  # below start: found equal by an earlier check, and not read by this check
    source_records: int
    target_records: int
    source_bytes: int  # of keys and values
    target_bytes: int
    digest_equal: bool
    mismatches: int

    @property
    def equal(self) -> bool:
        return self.digest_equal and not self.mismatches


@dataclass(frozen=True, slots=True)
class TopicRow:
    """The sum of a topic's partitions. A record misplaced between two partitions is a single mismatch."""

    topic: str
    partitions: int
    source_records: int
    target_records: int
    digest_equal: bool
    mismatches: int


@dataclass(frozen=True, slots=True)
class TimeStep:
    """The sums of the buckets that begin from start_ms to end_ms (excluded)."""

    start_ms: int
    end_ms: int
    source_records: int
    target_records: int
    source_bytes: int
    target_bytes: int
    mismatches: int


@dataclass(frozen=True, slots=True)
class ParityReport:
    """The compared records, the differences by name, and the duration."""

    topics: tuple[TopicRow, ...]
    partitions: tuple[PartitionRow, ...]
    counts: Mapping[AnomalyKind, int]
    findings: tuple[Anomaly, ...]
    unexamined_buckets: int  # buckets that differ, but beyond the drill-down's budget
    unnamed_buckets: int  # buckets that differ, and the drill-down found nothing to name
    times: tuple[TimeStep, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage, and total
    lookups: tuple[PartitionLookups, ...] = ()  # look-ups by time

    @property
    def records(self) -> int:
        """The number of source records compared."""
        return sum(row.source_records for row in self.partitions)

    @property
    def examples(self) -> tuple[Anomaly, ...]:
        """The first findings of each kind, for a person or a document."""
        return tuple(_capped(self.findings))

    @property
    def verified_before(self) -> int:
        """The number of source offsets that earlier checks found equal and this check did not read again."""
        return sum(row.start - row.verified_from for row in self.partitions)

    @property
    def mismatches(self) -> int:
        """The number of anomalies, differing buckets without an anomaly, and look-ups that would skip records."""
        late = sum(each.late for each in self.lookups)
        return sum(self.counts.values()) + self.unexamined_buckets + self.unnamed_buckets + late

    @property
    def equal(self) -> bool:
        return self.mismatches == 0

    @property
    def early_lookups(self) -> tuple[PartitionLookups, ...]:
        """Partitions in which a reader that starts by time at the target reads records again."""
        return tuple(each for each in self.lookups if each.early)

    @property
    def late_lookups(self) -> tuple[PartitionLookups, ...]:
        """Partitions in which a reader that starts by time at the target skips records."""
        return tuple(each for each in self.lookups if each.late)

    def as_json(self) -> dict[str, object]:
        return {
            "equal": self.equal,
            "topics": len(self.topics),
            "records": self.records,
            "verified_before": self.verified_before,
            "mismatches": self.mismatches,
            "anomalies": {kind.value: self.counts.get(kind, 0) for kind in AnomalyKind},
            "unexamined_buckets": self.unexamined_buckets,
            "unnamed_buckets": self.unnamed_buckets,
            "by_topic": [dataclasses.asdict(row) for row in self.topics],
            "by_partition": [dataclasses.asdict(row) for row in self.partitions],
            "by_time": [dataclasses.asdict(step) for step in self.times],
            "time_lookups": {
                "compared": sum(each.compared for each in self.lookups),
                "early": sum(each.early for each in self.lookups),
                "late": sum(each.late for each in self.lookups),
                "by_partition": [each._asdict() for each in self.lookups if each.early or each.late],
            },
            "examples": [_example(each) for each in self.examples],
            "seconds": {stage: round(took, 3) for stage, took in self.seconds.items()},
        }


def nothing_read(ranges: Sequence[TopicRange]) -> ParityReport:
    """Return the report of a check with nothing to read: every range is empty, or verified before."""
    return report_of(ranges, {}, {}, [], differing=[], unexamined=[], size=1, seconds={"total": 0.0})


def report_of(
    ranges: Sequence[TopicRange],
    source: Mapping[BucketKey, BucketDigest],
    target: Mapping[BucketKey, BucketDigest],
    anomalies: Sequence[Anomaly],
    *,
    differing: Sequence[BucketKey],
    unexamined: Sequence[BucketKey],
    size: int,
    seconds: Mapping[str, float],
    lookups: Sequence[PartitionLookups] = (),
) -> ParityReport:
    """Return the report of a check by buckets of `size`. A differing bucket without a name is a single mismatch."""
    named = Counter(key for each in anomalies for key in _touched(each))
    beyond = set(unexamined)
    unnamed = [key for key in differing if key not in beyond and not named[key.of]]
    nameless = Counter(key.of for key in [*unexamined, *unnamed])
    differs = {key.of for key in differing}
    whole = {each.key: each for each in ranges}
    wrong = Counter(_bucket_of(each, whole, size) for each in anomalies)
    wrong.update([*unexamined, *unnamed])
    held, sizes = zip(_sums_of(source), _sums_of(target), strict=True)
    # Where records differ, look-ups differ, too, and are not counted once more.
    lookups = [each for each in lookups if each[:2] not in differs and not named[PartitionKey(*each[:2])]]
    late = Counter({PartitionKey(each.topic, each.partition): each.late for each in lookups})
    rows = tuple(
        PartitionRow(
            each.topic,
            each.partition,
            each.start,
            each.end,
            each.at_target.start,
            each.at_target.end,
            each.start if each.verified_from is None else each.verified_from,
            held[0][each.key],
            held[1][each.key],
            sizes[0][each.key],
            sizes[1][each.key],
            digest_equal=each.key not in differs,
            mismatches=named[each.key] + nameless[each.key] + late[each.key],
        )
        for each in ranges
    )
    by_topic = Counter(each.topic for each in anomalies)
    by_topic.update(key.topic for key in [*nameless.elements(), *late.elements()])
    of_topic: dict[str, list[PartitionRow]] = defaultdict(list)
    for row in rows:
        of_topic[row.topic].append(row)
    return ParityReport(
        tuple(_topic_row(name, found, by_topic[name]) for name, found in of_topic.items()),
        rows,
        Counter(each.kind for each in anomalies),
        tuple(anomalies),
        len(unexamined),
        len(unnamed),
        timeline(source, target, wrong),
        seconds,
        tuple(lookups),
    )


def timeline(
    source: Mapping[BucketKey, BucketDigest],
    target: Mapping[BucketKey, BucketDigest],
    mismatches: Mapping[BucketKey, int],
) -> tuple[TimeStep, ...]:
    """Return steps of equal length from the first time to the last, or none if no record has a time.

    A bucket counts at its first record's time: a report has no finer sums. Steps never outnumber a partition's buckets:
    finer steps would be empty in turn.
    """
    nothing = BucketDigest(0, 0, 0, 0, 0, 0)
    times = {key: source[key].since if key in source else target[key].since for key in source.keys() | target.keys()}
    times = {key: time for key, time in times.items() if time >= 0}
    if not times:
        return ()
    first, last = min(times.values()), max(times.values())
    count = min(MOST_STEPS, max(Counter(key.of for key in times).values()))
    length = -(-(last - first + 1) // count)
    sums = [[0] * 5 for _ in range((last - first) // length + 1)]
    for key, time in times.items():
        here, there = source.get(key, nothing), target.get(key, nothing)
        figures = (here.records, there.records, here.size, there.size, mismatches.get(key, 0))
        into = sums[(time - first) // length]
        into[:] = [total + figure for total, figure in zip(into, figures, strict=True)]
    return tuple(
        TimeStep(first + number * length, first + (number + 1) * length, *figures)
        for number, figures in enumerate(sums)
    )


def _sums_of(digests: Mapping[BucketKey, BucketDigest]) -> tuple[Counter[PartitionKey], Counter[PartitionKey]]:
    """Return the records and bytes that a side holds of each partition."""
    records, sizes = Counter[PartitionKey](), Counter[PartitionKey]()
    for key, digest in digests.items():
        records[key.of] += digest.records
        sizes[key.of] += digest.size
    return records, sizes


def _capped(anomalies: Iterable[Anomaly]) -> Iterable[Anomaly]:
    shown: Counter[AnomalyKind] = Counter()
    for each in anomalies:
        shown[each.kind] += 1
        if shown[each.kind] <= EXAMPLES_OF_A_KIND:
            yield each


def _touched(each: Anomaly) -> set[PartitionKey]:
    """Return the partitions whose digests an anomaly explains. A second copy leaves the original's partition alone."""
    places = [each.target] if each.kind is AnomalyKind.DUPLICATED else [each.source, each.target]
    return {PartitionKey(each.topic, place.partition) for place in places if place is not None}


def _bucket_of(each: Anomaly, ranges: Mapping[PartitionKey, TopicRange], size: int) -> BucketKey:
    """Return a finding's bucket: at the target for second copies and records the source lacks, else at the source."""
    if each.source is not None and each.kind is not AnomalyKind.DUPLICATED:
        return BucketKey(each.topic, each.source.partition, each.source.offset // size)
    seen = each.places[-1]
    key = PartitionKey(each.topic, seen.partition)
    made = ranges[key].map if key in ranges else None
    place = made.to_source(seen.offset) if made is not None else None
    return BucketKey(*key, (seen.offset if place is None else place.offset) // size)


def _topic_row(topic: str, rows: Sequence[PartitionRow], mismatches: int) -> TopicRow:
    return TopicRow(
        topic,
        len(rows),
        sum(row.source_records for row in rows),
        sum(row.target_records for row in rows),
        all(row.digest_equal for row in rows),
        mismatches,
    )


def _example(each: Anomaly) -> dict[str, object]:
    source, target = (place._asdict() if place else None for place in (each.source, each.target))
    parts = {"parts": list(each.parts)} if each.parts else {}
    records = {"records": each.records} if each.records != 1 else {}
    return {"kind": each.kind.value, "topic": each.topic, "source": source, "target": target, **parts, **records}
