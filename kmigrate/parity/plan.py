"""The offsets to compare, cut into buckets that are cheap to digest and cheap to read again.

Ranges are written in source offsets. Where a mirror does not keep offsets, the partition's exact map gives each
record's place on the target. Every target offset is compared under the source offset of its record. If the map gives no
record, the offset of the record before is taken, so that nothing of the target goes unread. A bucket is a fixed stretch
of source offsets. Equal digests close a bucket; a bucket with different digests is read once more, record by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from kmigrate.errors import UsageError
from kmigrate.model.offset_map import OffsetMap, Run

__all__ = [
    "CLEANED",
    "BucketDigest",
    "BucketKey",
    "PartitionKey",
    "Stretch",
    "TopicRange",
    "bucket_size",
    "check_ranges",
    "differing_buckets",
    "hulls_of",
]

MOST_BUCKETS = 20_000  # each bucket is a row at the driver
CLEANED = 1 << 62  # beyond every offset: a log cleaner works on the whole range
SMALLEST_BUCKET = 1_000  # smaller buckets would cost more rows than they save re-reading


class PartitionKey(NamedTuple):
    """A topic partition, the same name on both sides."""

    topic: str
    partition: int


class BucketKey(NamedTuple):
    """A bucket of a partition: a fixed stretch of source offsets."""

    topic: str
    partition: int
    bucket: int

    @property
    def of(self) -> PartitionKey:
        return PartitionKey(self.topic, self.partition)


class Stretch(NamedTuple):
    """Offsets start (included) to end (excluded) of a log, as that log counts them."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets start (included) to end (excluded) of a source partition, and their place on the target."""

    topic: str
    partition: int
    start: int
    end: int
    map: OffsetMap | None = field(default=None, hash=False)  # None: the target's offsets are the source's
    verified_from: int | None = None  # from here to start all was compared before: originals may stand there
    kept: bool = False  # the target deletes nothing of the range by itself: a missing record is lost
    cleaned_to: int = 0  # a cleaner may have removed records below, if others below superseded them

    def __post_init__(self) -> None:
        origin = self.start if self.verified_from is None else self.verified_from
        backwards = self.partition < 0 or not 0 <= origin <= self.start <= self.end
        if backwards or (self.map is not None and self.map.to_target(self.end) is None):
            raise UsageError(
                "parity-range-invalid",
                f"{self.topic}-{self.partition} can not be compared from offset {self.start} to {self.end}"
                + ("" if backwards else f": the offset map ends at {self.map.covered if self.map else 0}"),
                still_true="nothing was read",
                next_step="give a range with 0 <= start <= end, within the offset map",
            )

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic, self.partition)

    @property
    def offsets(self) -> int:
        return self.end - self.start

    @property
    def at_source(self) -> Stretch:
        return Stretch(self.topic, self.partition, self.start, self.end)

    @property
    def at_target(self) -> Stretch:
        """The place of these offsets on the target. Neighbours on the source are neighbours on the target, too."""
        return Stretch(self.topic, self.partition, self.to_target(self.start), self.to_target(self.end))

    def to_target(self, offset: int) -> int:
        """Return the target's position for a source offset, up to the range's end."""
        place = self.map.to_target(offset) if self.map is not None else None
        return offset if place is None else place.offset

    @property
    def cleaned(self) -> TopicRange | None:
        """The part of the range that a log cleaner works on, or has worked on."""
        end = min(self.end, self.cleaned_to)
        return replace(self, end=end) if self.start < end else None

    def resumed(self, start: int, distance: int) -> TopicRange:
        """Return the range from a source offset on, if on the target everything stands `distance` behind its place."""
        if not distance:
            return replace(self, start=start, verified_from=None)
        moved = OffsetMap(self._runs_from(start, distance))
        moved.begin(start, self.to_target(start) + distance)
        moved.cover(self.end)
        return TopicRange(self.topic, self.partition, start, self.end, moved)

    def _runs_from(self, start: int, distance: int) -> Iterator[Run]:
        known = OffsetMap.identity(start, self.end) if self.map is None else self.map
        for run in known.runs(max(0, known.index_of(start))):
            skip = max(0, start - run.source)
            if skip < run.length:
                yield Run(run.source + skip, run.target + skip + distance, run.length - skip)


class BucketDigest(NamedTuple):
    """The content of a bucket on a side: count, outer offsets, two independent 64-bit digests, size and times."""

    records: int
    first: int
    last: int
    digest: int
    second_digest: int
    size: int  # bytes of keys and values
    since: int = -1  # the earliest timestamp, ms; −1 if no record has a timestamp
    until: int = -1  # the latest


def check_ranges(ranges: Sequence[TopicRange]) -> tuple[TopicRange, ...]:
    """Return the ranges in order. Two ranges of the same partition are refused: they would be compared as one."""
    ordered = tuple(sorted(ranges, key=lambda each: each.key))
    for left, right in pairwise(ordered):
        if left.key == right.key:
            raise UsageError(
                "parity-range-twice",
                f"{left.topic}-{left.partition} has two ranges",
                still_true="nothing was read",
                next_step="give one range per partition",
            )
    return ordered


def bucket_size(ranges: Iterable[TopicRange]) -> int:
    """Return the offsets per bucket, so that small jobs drill finely and huge jobs still fit the driver."""
    total = sum(each.offsets for each in ranges)
    return max(SMALLEST_BUCKET, -(-total // MOST_BUCKETS))


def differing_buckets(
    source: Mapping[BucketKey, BucketDigest], target: Mapping[BucketKey, BucketDigest]
) -> list[BucketKey]:
    """Return the buckets whose digests differ, in order. A bucket that a side lacks is empty on that side."""
    return sorted(key for key in source.keys() | target.keys() if source.get(key) != target.get(key))


def hulls_of(buckets: Iterable[BucketKey], ranges: Iterable[TopicRange], size: int) -> dict[PartitionKey, TopicRange]:
    """Return a range per partition that covers the partition's buckets, within the given range."""
    whole = {each.key: each for each in ranges}
    hulls: dict[PartitionKey, TopicRange] = {}
    for key in sorted(buckets):
        full = whole[key.of]
        end = min(full.end, (key.bucket + 1) * size)
        known = hulls.get(key.of)
        start = known.start if known else max(full.start, key.bucket * size)
        hulls[key.of] = replace(full, start=start, end=end)
    return hulls
