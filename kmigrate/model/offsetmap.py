"""The exact offset map of one mirrored partition: runs of records that kept their order and their distance.

    source   0 1 2 3 4 · · · 8 9 10        (5 to 7 hold no record: markers, aborted data, compacted away)
    target   7 8 9 10 11     12 13 14      two runs: (0 → 7, 5 records), (8 → 12, 3 records)

Every copied record is in exactly one run, so nothing is ever looked up "near" a record (MM-43, MM-129, G-02). Offsets
are translated as *positions*: a position means the next record at or after it, and so does its translation. A position
that holds a record becomes that record's offset, one in a gap becomes the next record's.

Invariants:
A  Runs are sorted by source offset and do not overlap there.
B  Nor do they on the target, where they stand in the same order: what comes later comes later.
C  Two neighbours never continue each other on both sides: they would be one run.
D  `covered` ≥ the end of the last run: below it, every record of the source is in a run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["OffsetMap", "Place", "Run"]


class Run(NamedTuple):
    """`length` records that stand at source, source + 1, … there, and at target, target + 1, … here."""

    source: int
    target: int
    length: int


class Place(NamedTuple):
    """Where a position lies on the other side; `is_record` tells a record's own offset from a gap before one."""

    offset: int
    is_record: bool


class OffsetMap:
    """The runs of one partition, in order; three columns, so that a million runs are 24 MB."""

    __slots__ = ("_count", "_origin", "_source", "_target", "covered")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._source, self._target, self._count = array("q"), array("q"), array("q")
        self._origin = (-1, -1)
        self.covered = -1
        """Source position below which nothing is missing from the map."""
        for run in runs:
            self.append(*run)

    @classmethod
    def identity(cls, start: int, end: int) -> OffsetMap:
        """One run: the same offsets on both sides."""
        made = cls([Run(start, start, end - start)] if end > start else [])
        made.begin(start, start)
        return made

    def __len__(self) -> int:
        return len(self._source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetMap) and list(self.runs()) == list(other.runs())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OffsetMap({[tuple(run) for run in self.runs()]!r}, covered={self.covered})"

    def __getitem__(self, index: int) -> Run:
        return Run(self._source[index], self._target[index], self._count[index])

    def runs(self, first: int = 0, stop: int | None = None) -> Iterator[Run]:
        """The runs from index `first` up to `stop`."""
        for index in range(first, len(self) if stop is None else min(stop, len(self))):
            yield self[index]

    @property
    def source_end(self) -> int:
        """Source offset after the last record of the map; where it holds none, where it begins."""
        return self._source[-1] + self._count[-1] if self._source else self._origin[0]

    @property
    def target_end(self) -> int:
        return self._target[-1] + self._count[-1] if self._target else self._origin[1]

    # growing and shrinking

    def begin(self, source: int, target: int) -> None:
        """Say where the first record will stand, so that a map without any translates the positions before it."""
        self._origin = (source, target)
        self.cover(source)

    def append(self, source: int, target: int, count: int) -> bool:
        """Add records behind all others; True where that began a new run. ValueError where an invariant would break."""
        if count < 1 or source < 0 or target < 0:
            raise ValueError(f"no run: {count} records from {source} to {target}")
        if not self._source:
            self._push(source, target, count)
            return True
        if source < self.source_end or target < self.target_end:
            raise ValueError(f"({source} → {target}) lies before the end ({self.source_end} → {self.target_end})")
        if source == self.source_end and target == self.target_end:
            self._count[-1] += count
            self.cover(self.source_end)
            return False
        self._push(source, target, count)
        return True

    def _push(self, source: int, target: int, count: int) -> None:
        self._source.append(source)
        self._target.append(target)
        self._count.append(count)
        self.cover(source + count)

    def cover(self, position: int) -> None:
        """Nothing is missing below this source position: what follows the last run is a gap up to there."""
        self.covered = max(self.covered, position)

    def cut(self, target_end: int) -> None:
        """Forget every record at or beyond a target offset: they are not there (any more)."""
        if target_end >= self.target_end:
            return
        while self._target and self._target[-1] >= target_end:
            for column in (self._source, self._target, self._count):
                column.pop()
        if self._target and self.target_end > target_end:
            self._count[-1] = target_end - self._target[-1]
        self.covered = self.source_end

    def leave_out(self, target_start: int) -> None:
        """Forget every run that stands before a target offset: it is of an earlier copy."""
        earlier = bisect_left(self._target, target_start)
        for column in (self._source, self._target, self._count):
            del column[:earlier]
        if not self._source:
            self.covered = self._origin[0]

    def close(self, target_end: int) -> None:
        """Fit the map to a target log that ends here.

        A stored map may name runs that were never written, and its last run may have grown since it was stored:
        its records go on without a gap until the log ends.
        """
        self.cut(target_end)
        if self._target and target_end > self.target_end:
            self.append(self.source_end, self.target_end, target_end - self.target_end)

    # translating

    def to_target(self, position: int) -> Place | None:
        """The target's position for one of the source; None beyond what was copied."""
        place = _translate(self._source, self._target, self._count, position)
        if place is None and self.target_end >= 0 and position <= self.covered:
            return Place(self.target_end, False)
        return place

    def to_source(self, position: int) -> Place | None:
        """The source's position for one of the target; None beyond what was copied."""
        place = _translate(self._target, self._source, self._count, position)
        if place is None and position <= self.target_end:
            return Place(self.source_end, False)
        return place

    def index_of(self, source: int) -> int:
        """Index of the run that holds a source offset, or of the one before it; −1 before all."""
        return bisect_right(self._source, source) - 1

    def index_of_target(self, target: int) -> int:
        """The same for an offset of the target."""
        return bisect_right(self._target, target) - 1

    # bytes

    def encode(self, first: int = 0, stop: int | None = None) -> bytes:
        """Some runs as unsigned varints: distance from the run before on both sides, and the count."""
        out = bytearray()
        source = target = 0
        for run in self.runs(first, stop):
            for number in (run.source - source, run.target - target, run.length):
                _put(out, number)
            source, target = run.source + run.length, run.target + run.length
        return bytes(out)

    def extend(self, encoded: bytes) -> None:
        """Append encoded runs; what stands at or beyond the first of them on the target gives way."""
        numbers = list(_numbers(encoded))
        if len(numbers) % 3:
            raise ValueError("an encoded offset map ends inside a run")
        source = target = 0
        for at in range(0, len(numbers), 3):
            source, target, count = source + numbers[at], target + numbers[at + 1], numbers[at + 2]
            self.cut(target)
            self.append(source, target, count)
            source, target = source + count, target + count


def _translate(of: array[int], to: array[int], counts: array[int], position: int) -> Place | None:
    index = bisect_right(of, position) - 1
    if index >= 0 and position < of[index] + counts[index]:
        return Place(to[index] + position - of[index], True)
    return Place(to[index + 1], False) if index + 1 < len(of) else None


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("an encoded offset map ends inside a number")
