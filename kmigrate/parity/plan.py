"""Which offsets are compared, cut into buckets that are cheap to digest and cheap to read again.

Ranges are written in source offsets. Where a mirror does not keep them, the partition's exact map says where
each record stands on the target: every target offset is compared under the source offset of its record, and one
that the map gives to no record under that of the record before it, so that nothing of the target goes unread. A
bucket is a fixed stretch of source offsets: equal digests close it, different ones have it read once more, record
by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from kmigrate.errors import UsageError
from kmigrate.model.offsetmap import OffsetMap, Run

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

MOST_BUCKETS = 20_000  # each is one row at the driver
CLEANED = 1 << 62  # beyond every offset: a log cleaner works on all of it
SMALLEST_BUCKET = 1_000  # smaller ones would cost more rows than they save re-reading


class PartitionKey(NamedTuple):
    """A topic partition, the same name on both sides."""

    topic: str
    partition: int


class BucketKey(NamedTuple):
    """One stretch of source offsets of one partition."""

    topic: str
    partition: int
    bucket: int

    @property
    def of(self) -> PartitionKey:
        return PartitionKey(self.topic, self.partition)


class Stretch(NamedTuple):
    """Offsets start (included) to end (excluded) of one log, as that log counts them."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Offsets start (included) to end (excluded) of one source partition, and where they went."""

    topic: str
    partition: int
    start: int
    end: int
    map: OffsetMap | None = field(default=None, hash=False)  # None: the target's offsets are the source's
    verified_from: int | None = None  # from here to start all was compared before: originals may stand there
    kept: bool = False  # the target deletes nothing of it by itself: what it has not any more is lost
    cleaned_to: int = 0  # of what is below a log cleaner may have taken records that others below have superseded

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
        """Where these offsets are on the target; two neighbours on the source are neighbours there, too."""
        return Stretch(self.topic, self.partition, self.to_target(self.start), self.to_target(self.end))

    def to_target(self, offset: int) -> int:
        """The target's position for one of the source, up to the range's end."""
        place = self.map.to_target(offset) if self.map is not None else None
        return offset if place is None else place.offset

    @property
    def cleaned(self) -> TopicRange | None:
        """What of it a cleaner works on, or has worked on."""
        end = min(self.end, self.cleaned_to)
        return replace(self, end=end) if self.start < end else None

    def resumed(self, start: int, distance: int) -> TopicRange:
        """The range from this source offset on, where the target has everything `distance` behind its place."""
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
    """What one side holds in a bucket: a count, the outer offsets, two independent 64-bit digests; size and time."""

    records: int
    first: int
    last: int
    digest: int
    second_digest: int
    size: int  # bytes of keys and values
    since: int = -1  # the earliest timestamp, ms; −1 where no record has one
    until: int = -1  # the latest


def check_ranges(ranges: Sequence[TopicRange]) -> tuple[TopicRange, ...]:
    """The ranges in order; two for one partition would be compared as one, so that is refused."""
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
    """Offsets per bucket, so that small jobs drill finely and huge ones still fit the driver."""
    total = sum(each.offsets for each in ranges)
    return max(SMALLEST_BUCKET, -(-total // MOST_BUCKETS))


def differing_buckets(
    source: Mapping[BucketKey, BucketDigest], target: Mapping[BucketKey, BucketDigest]
) -> list[BucketKey]:
    """The buckets whose digests differ, in order; one that a side lacks is empty there."""
    return sorted(key for key in source.keys() | target.keys() if source.get(key) != target.get(key))


def hulls_of(
    buckets: Iterable[BucketKey], ranges: Iterable[TopicRange], size: int
) -> dict[PartitionKey, TopicRange]:
    """One range per partition that covers its buckets, from the first to the last, within the given range."""
    whole = {each.key: each for each in ranges}
    hulls: dict[PartitionKey, TopicRange] = {}
    for key in sorted(buckets):
        full = whole[key.of]
        end = min(full.end, (key.bucket + 1) * size)
        known = hulls.get(key.of)
        start = known.start if known else max(full.start, key.bucket * size)
        hulls[key.of] = replace(full, start=start, end=end)
    return hulls
