"""Names for the differences between two record lists: the judge of the drill-down.

docs/parity.md ("Names of differences") says what each name means. The rules apply in this order, because exact content
is better evidence than likeness:

1. Each stretch is aligned (see `alignment`). Records left over on both sides with the same content are reordered.
2. A record that a partition misses and another partition of the topic has left over is misplaced.
3. A record that the target has left over and the source holds in the same partition is duplicated.
4. Within a gap of the alignment, records that share enough are altered.
5. A shift at the end of the read range pushes records over the edge. These records are not judged: they stand beyond
   the range on the other side, and the shift has its name already.
6. The rest is lost, or a stray: a duplicate of a record outside the re-read offsets, or extra. Only another look at the
   source can tell, so `settle` names strays once it is known where the source holds them.

Offsets are compared as the target counts them: an exact map leaves the source's holes out, so that consecutive records
are one offset apart there. Anomalies name each side's own offsets. A shift that equals the records missing or added in
the gap before is explained. Left out on purpose: how a record was changed. Payloads stay in Kafka.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from kmigrate.parity.alignment import Pairs, align
from kmigrate.parity.plan import PartitionKey, TopicRange

__all__ = ["Anomaly", "AnomalyKind", "Drilled", "Fingerprint", "Place", "Stray", "judge", "settle"]

LARGEST_GAP = 40_000  # cells of the gap table; larger gaps are compared place by place


class AnomalyKind(StrEnum):
    """The names of the faults that a copy can have."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    ALTERED = "altered"
    MISPLACED = "misplaced"
    EXTRA = "extra"
    SHIFTED = "shifted"


class Fingerprint(NamedTuple):
    """A record as hashes: the whole content and each part (None where the part is null)."""

    offset: int
    content: int
    key: int | None
    value: int | None
    headers: int | None
    timestamp: int
    stamped: int = 0  # the timestamp's type; 0: the producer's time


class Place(NamedTuple):
    """A record's place on a side."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A named difference, with the place on each side that holds the record."""

    kind: AnomalyKind
    topic: str
    source: Place | None = None
    target: Place | None = None
    parts: tuple[str, ...] = ()  # altered: the changed parts
    records: int = 1  # shifted: the number of moved records

    @property
    def places(self) -> list[Place]:
        """The places of the difference, on either side."""
        return [place for place in (self.source, self.target) if place is not None]


@dataclass(frozen=True, slots=True)
class Drilled:
    """The re-read records of a partition in offset order, their pairs, and the end of the reading."""

    hull: TopicRange  # ends at the edge of the reading
    source: Sequence[Fingerprint]
    target: Sequence[Fingerprint]
    pairs: Pairs

    @classmethod
    def of(cls, hull: TopicRange, source: Sequence[Fingerprint], target: Sequence[Fingerprint]) -> Drilled:
        contents = [record.content for record in source], [record.content for record in target]
        source_at = [hull.to_target(record.offset) for record in source]
        return cls(hull, source, target, align(*contents, source_at, [record.offset for record in target]))

    def distance(self, i: int, j: int) -> int:
        """Return how far behind its place the target record stands, if both are the same record."""
        return self.target[j].offset - self.hull.to_target(self.source[i].offset)

    def up_to_last_pair(self) -> Drilled:
        """Return the same reading, as if it had ended with the last record that both sides have."""
        i, j = self.pairs[-1]
        hull = replace(self.hull, end=self.source[i].offset + 1)
        return Drilled(hull, self.source[: i + 1], self.target[: j + 1], self.pairs)


class Stray(NamedTuple):
    """A target record without a counterpart in the source records that were read again."""

    key: PartitionKey
    record: Fingerprint


def judge(drilled: Iterable[Drilled]) -> tuple[list[Anomaly], list[Stray]]:
    """Return all anomalies, and the strays that need another look; a partition may come in stretches, in order."""
    cases = [_Case(each.hull.key, each) for each in sorted(drilled, key=lambda each: each.hull.key)]
    for case in cases:
        case.found += _moved([case], AnomalyKind.REORDERED)
    anomalies = [*_moved(cases, AnomalyKind.REORDERED), *_moved(cases, AnomalyKind.MISPLACED)]
    strays: list[Stray] = []
    for case in cases:
        case.name_duplicated()
        case.name_altered()
        case.drop_pushed_over_the_edge()
        case.name_lost()
        case.name_shifted()
        anomalies.extend(case.found)
        strays.extend(Stray(case.key, case.target[j]) for j in sorted(case.surplus))
    return anomalies, strays


def settle(strays: Iterable[Stray], source_holds: Mapping[int, Collection[tuple[PartitionKey, int]]]) -> list[Anomaly]:
    """Name the strays by where the source holds their contents: a second copy, or extra."""
    named: list[Anomaly] = []
    for key, record in strays:
        here = Place(key.partition, record.offset)
        originals = sorted(source_holds.get(record.content, ()), key=lambda place: (place[0] != key, place))
        same_topic = [place for place in originals if place[0].topic == key.topic]
        if same_topic:
            (original, offset), *_ = same_topic
            named.append(Anomaly(AnomalyKind.DUPLICATED, key.topic, Place(original.partition, offset), here))
        else:
            named.append(Anomaly(AnomalyKind.EXTRA, key.topic, None, here))
    return named


@dataclass
class _Case:
    """A partition on its way to a verdict: the alignment, and the records left over on each side."""

    key: PartitionKey
    drilled: Drilled
    missing: set[int] = field(init=False)  # source indexes without a target record
    surplus: set[int] = field(init=False)  # target indexes without a source record
    found: list[Anomaly] = field(default_factory=list)

    def __post_init__(self) -> None:
        hull = self.drilled.hull
        self.end = hull.at_target.end
        self.source, self.target = self.drilled.source, self.drilled.target
        self.source_at = [hull.to_target(record.offset) for record in self.source]
        self.target_at = [record.offset for record in self.target]
        self.pairs = self.drilled.pairs
        self.missing = set(range(len(self.source))) - {i for i, _ in self.pairs}
        self.surplus = set(range(len(self.target))) - {j for _, j in self.pairs}

    def add(
        self,
        kind: AnomalyKind,
        i: int | None,
        j: int | None,
        *,
        parts: tuple[str, ...] = (),
        records: int = 1,
    ) -> None:
        source = None if i is None else Place(self.key.partition, self.source[i].offset)
        target = None if j is None else Place(self.key.partition, self.target[j].offset)
        self.found.append(Anomaly(kind, self.key.topic, source, target, parts, records))

    def delta(self, i: int, j: int) -> int:
        return self.target_at[j] - self.source_at[i]

    def name_duplicated(self) -> None:
        if not self.surplus:
            return
        originals = {record.content: i for i, record in reversed(list(enumerate(self.source)))}
        for j in sorted(self.surplus):
            i = originals.get(self.target[j].content)
            if i is not None:
                self.surplus.discard(j)
                self.add(AnomalyKind.DUPLICATED, i, j)

    def name_altered(self) -> None:
        for missing, surplus, before, after in self._gaps():
            for i, j in self._kin(missing, surplus, {before, after}):
                self.missing.discard(i)
                self.surplus.discard(j)
                self.add(AnomalyKind.ALTERED, i, j, parts=_parts(self.source[i], self.target[j]))

    def drop_pushed_over_the_edge(self) -> None:
        if not self.pairs:
            return
        last_i, last_j = self.pairs[-1]
        delta = self.delta(last_i, last_j)
        self.missing = {i for i in self.missing if i < last_i or self.source_at[i] + delta < self.end}
        self.surplus = {j for j in self.surplus if j < last_j or self.target_at[j] - delta < self.end}

    def name_lost(self) -> None:
        for i in sorted(self.missing):
            self.add(AnomalyKind.LOST, i, None)

    def name_shifted(self) -> None:
        """Name every run of equal deltas that the gap before the run does not explain and that is not back in line."""
        start = 0
        previous = (-1, -1, 0)
        for at in range(1, len(self.pairs) + 1):
            first = self.pairs[start]
            if at < len(self.pairs) and self.delta(*self.pairs[at]) == self.delta(*first):
                continue
            delta = self.delta(*first)
            added = (first[1] - previous[1]) - (first[0] - previous[0])
            if delta not in (0, previous[2], previous[2] + added):
                self.add(AnomalyKind.SHIFTED, *first, records=at - start)
            previous = (*self.pairs[at - 1], delta)
            start = at

    def _gaps(self) -> Iterable[tuple[list[int], list[int], int, int]]:
        """Yield the records left over between two aligned pairs, with the offset deltas on both sides of the gap."""
        missing, surplus = deque(sorted(self.missing)), deque(sorted(self.surplus))
        before = 0
        for i, j in [*self.pairs, (len(self.source), len(self.target))]:
            inside = _take_below(missing, i), _take_below(surplus, j)
            after = self.delta(i, j) if i < len(self.source) else before
            if inside[0] and inside[1]:
                yield *inside, before, after
            before = after

    def _kin(self, missing: list[int], surplus: list[int], deltas: set[int]) -> Pairs:
        def likeness(i: int, j: int) -> int:
            return _likeness(self.source[i], self.target[j], in_place=self.delta(i, j) in deltas)

        if len(missing) * len(surplus) <= LARGEST_GAP:
            return _heaviest([[likeness(i, j) for j in surplus] for i in missing], missing, surplus)
        where = {self.target_at[j]: j for j in surplus}
        placed = ((i, where.get(self.source_at[i] + min(deltas, key=abs))) for i in missing)
        return [(i, j) for i, j in placed if j is not None and likeness(i, j)]


def _moved(cases: Sequence[_Case], kind: AnomalyKind) -> list[Anomaly]:
    """Name missing records that are left over elsewhere: in the same partition reordered, in the topic misplaced."""

    def home(case: _Case) -> tuple[str, int | None]:
        return case.key.topic, case.key.partition if kind is AnomalyKind.REORDERED else None

    offered: dict[tuple[str, int | None, int], deque[tuple[_Case, int]]] = defaultdict(deque)
    for case in cases:
        for j in sorted(case.surplus):
            offered[*home(case), case.target[j].content].append((case, j))
    named: list[Anomaly] = []
    for case in cases:
        for i in sorted(case.missing):
            queue = offered.get((*home(case), case.source[i].content))
            if queue:
                other, j = queue.popleft()
                case.missing.discard(i)
                other.surplus.discard(j)
                source = Place(case.key.partition, case.source[i].offset)
                target = Place(other.key.partition, other.target[j].offset)
                named.append(Anomaly(kind, case.key.topic, source, target))
    return named


def _take_below(queue: deque[int], limit: int) -> list[int]:
    taken = []
    while queue and queue[0] < limit:
        taken.append(queue.popleft())
    return taken


def _parts(source: Fingerprint, target: Fingerprint) -> tuple[str, ...]:
    names = ("key", "value", "headers", "timestamp")
    found = tuple(name for name in names if getattr(source, name) != getattr(target, name))
    return found if source.stamped == target.stamped else (*found, "timestamp type")


def _likeness(source: Fingerprint, target: Fingerprint, *, in_place: bool) -> int:
    """Return how sure it is that the target record is the source record, altered; 0 if only chance speaks for that."""
    key = source.key is not None and source.key == target.key
    value = source.value == target.value and (source.value is not None or (key and in_place))
    stamp = source.timestamp == target.timestamp
    if not (value or (stamp and (key or in_place))):
        return 0
    return 8 * value + 4 * stamp + 2 * key + in_place


def _heaviest(weights: list[list[int]], missing: list[int], surplus: list[int]) -> Pairs:
    """Return the order-keeping pairs of a gap with the greatest sum of likeness."""
    rows, columns = len(missing), len(surplus)
    best = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            paired = best[i + 1][j + 1] + weights[i][j] if weights[i][j] else 0
            best[i][j] = max(best[i + 1][j], best[i][j + 1], paired)
    pairs: Pairs = []
    i = j = 0
    while i < rows and j < columns:
        if weights[i][j] and best[i][j] == best[i + 1][j + 1] + weights[i][j]:
            pairs.append((missing[i], surplus[j]))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs
