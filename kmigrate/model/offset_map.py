"""Maps the offsets of one mirrored partition exactly: runs of records that kept their order and their distance.

    source   0 1 2 3 4 · · · 8 9 10        (5 to 7 hold no record: markers, aborted data, compacted away)
    target   7 8 9 10 11     12 13 14      two runs: (0 → 7, 5 records), (8 → 12, 3 records)

Every copied record is in exactly one run, so no look-up uses a nearby record. A *position* means the next record at or
after it, and so does its translation: the record's own offset, or in a gap the next record's offset.

Invariants:
A  Runs are sorted by source offset and do not overlap on the source.
B  Runs do not overlap on the target either, and stand there in the same order.
C  Two neighbouring runs never continue each other on both sides: they would be a single run.
D  `covered` ≥ the end of the last run: below `covered`, every record of the source is in a run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["OffsetMap", "Place", "Run"]


class Run(NamedTuple):
    """`length` records at `source`, `source` + 1, … on the source and at `target`, `target` + 1, … on the target."""

    source: int
    target: int
    length: int


class Place(NamedTuple):
    """The translation of a position; `is_record` is True for a record's own offset, False for a gap before a record."""

    offset: int
    is_record: bool


class OffsetMap:
    """The runs of one partition, in order; three columns hold them, so that a million runs take 24 MB."""

    __slots__ = ("_count", "_origin", "_source", "_target", "covered")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._source, self._target, self._count = array("q"), array("q"), array("q")
        self._origin = (-1, -1)
        self.covered = -1
        """Source position below which no record is missing from the map."""
        for run in runs:
            self.append(*run)

    @classmethod
    def identity(cls, start: int, end: int) -> OffsetMap:
        """Return a map of a single run with the same offsets on both sides."""
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
        """Yield the runs from index `first` up to `stop`."""
        for index in range(first, len(self) if stop is None else min(stop, len(self))):
            yield self[index]

    @property
    def source_end(self) -> int:
        """Source offset after the last record of the map; in an empty map, the source offset where the map begins."""
        return self._source[-1] + self._count[-1] if self._source else self._origin[0]

    @property
    def target_end(self) -> int:
        """Target offset after the last record of the map; in an empty map, the target offset where the map begins."""
        return self._target[-1] + self._count[-1] if self._target else self._origin[1]

    # growing and shrinking

    def begin(self, source: int, target: int) -> None:
        """Set the position of the first record, so that an empty map translates the positions before that record."""
        self._origin = (source, target)
        self.cover(source)

    def append(self, source: int, target: int, count: int) -> bool:
        """Add records behind all others; return True for a new run; raise ValueError if an invariant would break."""
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
        """Note that no record is missing below this source position: a gap follows the last run up to this position."""
        self.covered = max(self.covered, position)

    def cut(self, target_end: int) -> None:
        """Forget every record at or beyond a target offset, because the target does not hold these records."""
        if target_end >= self.target_end:
            return
        while self._target and self._target[-1] >= target_end:
            for column in (self._source, self._target, self._count):
                column.pop()
        if self._target and self.target_end > target_end:
            self._count[-1] = target_end - self._target[-1]
        self.covered = self.source_end

    def leave_out(self, target_start: int) -> None:
        """Forget every run that begins before a target offset, because such a run belongs to an earlier copy."""
        earlier = bisect_left(self._target, target_start)
        for column in (self._source, self._target, self._count):
            del column[:earlier]
        if not self._source:
            self.covered = self._origin[0]

    def close(self, target_end: int) -> None:
        """Fit the map to a log's end: stored runs may be unwritten, and the last may have grown since without a gap."""
        self.cut(target_end)
        if self._target and target_end > self.target_end:
            self.append(self.source_end, self.target_end, target_end - self.target_end)

    # translating

    def to_target(self, position: int) -> Place | None:
        """Return the target position of a source position; None beyond the copied records."""
        place = _translate(self._source, self._target, self._count, position)
        if place is None and self.target_end >= 0 and position <= self.covered:
            return Place(self.target_end, False)
        return place

    def to_source(self, position: int) -> Place | None:
        """Return the source position of a target position; None beyond the copied records."""
        place = _translate(self._target, self._source, self._count, position)
        if place is None and position <= self.target_end:
            return Place(self.source_end, False)
        return place

    def index_of(self, source: int) -> int:
        """Return the index of the run that holds a source offset, or of the run before the offset; −1 if none."""
        return bisect_right(self._source, source) - 1

    def index_of_target(self, target: int) -> int:
        """Return the index of the run that holds a target offset, or of the run before the offset; −1 if none."""
        return bisect_right(self._target, target) - 1

    # bytes

    def encode(self, first: int = 0, stop: int | None = None) -> bytes:
        """Return some runs as unsigned varints: the distance from the run before on both sides, and the count."""
        out = bytearray()
        source = target = 0
        for run in self.runs(first, stop):
            for number in (run.source - source, run.target - target, run.length):
                _put(out, number)
            source, target = run.source + run.length, run.target + run.length
        return bytes(out)

    def extend(self, encoded: bytes) -> None:
        """Append encoded runs; existing records at or beyond the first of these runs on the target are dropped."""
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
