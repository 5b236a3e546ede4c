"""The parts of differing partitions that are still to be read again, a step at a time, and the effect of shifts.

A lost or extra record moves all records after it, so every later bucket differs although nothing else is wrong there.
Reading all of them again is costly, and a second fault far behind would be beyond any budget. Hence:

1. A partition is read again in steps. The first step is small, and each step is twice as long as the step before.
2. A step that ends at another distance than the step began with is cut at its last aligned pair. From there on the
   partition is digested again, at the new distance. The buckets that then differ are left to be read.
3. A step's end is open if the next bucket differs, too. Where few records follow the last pair, the step is cut at that
   pair as well. So two records that changed places across the edge are judged together.

The pair at which a step is cut is read by the next step, too: no other step judges the records right behind that pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kmigrate.parity.plan import BucketDigest, BucketKey, PartitionKey, TopicRange, differing_buckets
from kmigrate.parity.verdict import Drilled

__all__ = ["DRILL_BUDGET", "WHOLE_BUDGET", "Trail"]

DRILL_BUDGET = 200_000  # records read again per partition and side, held by the driver as hashes
WHOLE_BUDGET = 1_000_000  # records of all partitions together; each takes some 2 kB of the driver's memory
FIRST_STEP = 10_000
LONGEST_TAIL = 1_000  # records behind the last pair that are worth reading twice

Digests = Mapping[BucketKey, BucketDigest]


class Trail:
    """The differing buckets of all partitions, until each is read, explained by a shift, or beyond the budget."""

    def __init__(self, ranges: Sequence[TopicRange], size: int, source: Digests, target: Digests) -> None:
        self.ranges = {each.key: each for each in ranges}
        self.left: dict[PartitionKey, list[BucketKey]] = {}
        self._size = size
        self._records: dict[BucketKey, int] = {}
        self._spent: Counter[PartitionKey] = Counter()
        self._step: dict[PartitionKey, int] = {}
        self._edges: dict[PartitionKey, BucketKey] = {}  # the last bucket of the step that is being read
        self.digested([], source, target)

    @property
    def unexamined(self) -> list[BucketKey]:
        """The differing buckets that are not read again."""
        return [key for buckets in self.left.values() for key in buckets]

    def digested(self, moved: Iterable[TopicRange], source: Digests, target: Digests) -> None:
        """Take new digests, and leave their differing buckets to be read. `moved` are ranges that begin at a cut."""
        for each in moved:
            self.ranges[each.key] = each
            self.left[each.key] = []
        for key in differing_buckets(source, target):
            self.left.setdefault(key.of, []).append(key)
            self._records[key] = max(held[key].records if key in held else 0 for held in (source, target))

    def step(self) -> list[BucketKey]:
        """Return the buckets to be read now: the first buckets of each partition that has budget left."""
        chosen: list[BucketKey] = []
        self._edges.clear()
        waiting = [each for each, left in self.left.items() if left and self._spent[each] < DRILL_BUDGET]
        whole = WHOLE_BUDGET - self._spent.total()
        share = whole // max(1, len(waiting))
        for partition in waiting:
            if whole <= 0:
                break
            left = self.left[partition]
            room = min(self._step.get(partition, FIRST_STEP), DRILL_BUDGET - self._spent[partition], max(1, share))
            taken = 0
            while left and taken < room:
                key = left[0]
                records = max(self._records[key], 1)
                # At least one bucket, whatever its size: a differing partition gets a named anomaly.
                if taken and taken + records > room:
                    break
                taken += records
                chosen.append(left.pop(0))
                self._edges[partition] = key
            self._spent[partition] += taken
            whole -= taken
            self._step[partition] = 2 * self._step.get(partition, FIRST_STEP)
        return chosen

    def follow(self, read: Drilled) -> tuple[Drilled, TopicRange | None]:
        """Return the part of a step that can be judged, and the partition's rest if it goes on at another distance."""
        partition = read.hull.key
        left = self.left[partition]
        if not left or not read.pairs:
            return read, None
        i, j = read.pairs[-1]
        place, distance = read.source[i].offset, read.distance(i, j)
        if distance:
            self._step[partition] = FIRST_STEP
            return read.up_to_last_pair(), self.ranges[partition].resumed(place, distance)
        edge = self._edges[partition].bucket
        tail = max(len(read.source) - i, len(read.target) - j) - 1
        if left[0].bucket != edge + 1 or not 0 < tail <= LONGEST_TAIL:
            return read, None
        self.ranges[partition] = self.ranges[partition].resumed(place, 0)
        again = [BucketKey(*partition, bucket) for bucket in range(place // self._size, edge + 1)]
        self._records = dict.fromkeys(again, 1) | self._records
        left[:0] = again
        return read.up_to_last_pair(), None
