"""Computes rates, copied parts and times left from successive snapshots.

A rate is the mean over the last seconds (`WINDOW_S`), by a clock that never goes back; the wall clock decides nothing.
A figure is unknown (−1) until two snapshots show it, where a cluster did not answer, and after a counter went back: a
topic that was created anew has another log.

The time left is an estimate: the lag, divided by the records per second by which the copy gains on its producers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kmigrate.model.record_json import plain
from kmigrate.net.clock import boottime
from kmigrate.workflow.status.snapshot import GroupStatus, PartitionStatus, Snapshot, TopicStatus

__all__ = ["WINDOW_S", "GroupProgress", "Progress", "ProgressTracker", "TopicProgress"]

WINDOW_S = 10.0
"""Seconds over which a rate is the mean: short enough to follow a throttle, long enough for a calm figure."""
_SOON_S = 1.0
"""A lag that is copied in this time is the way of records that are written now, and no backlog."""

Name = tuple[str, str]
"""A link, and a topic or group of the link."""


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How fast a copy moves and how far the copy is: of a topic, of a link, or of all links; −1 is unknown."""

    copied: float = -1.0
    """Part of the source's offsets that the target holds, 0 to 1; 1 only where nothing is left to copy."""
    written_per_s: float = -1.0
    """Records per second that producers write: on the source, after the promote on the target."""
    copied_per_s: float = -1.0
    copied_bytes_per_s: float = -1.0
    left_s: float = -1.0
    """Estimated seconds until the copy has caught up; 0 where nothing is left to copy."""
    falls_behind: bool = False
    """True where producers write faster than the mirror copies, so that the copy never catches up."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How fast a group catches up; −1 is unknown."""

    gained_per_s: float | None = None
    """Records per second by which the group's lag shrinks, negative for a lag that grows; None is unknown."""
    left_s: float = -1.0
    """Estimated seconds until the group has no lag; 0 where the group has no lag."""
    falls_behind: bool = False
    """True where the lag grows, and is more than what the growth of `WINDOW_S` explains."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that one snapshot shows, compared with the snapshots before."""

    total: TopicProgress
    links: Mapping[str, TopicProgress]
    topics: Mapping[Name, TopicProgress]
    groups: Mapping[Name, GroupProgress]

    def topic(self, status: TopicStatus) -> TopicProgress:
        return self.topics.get((status.link, status.topic), _NOTHING_KNOWN)

    def group(self, status: GroupStatus) -> GroupProgress:
        return self.groups.get((status.link, status.group), _NO_GROUP)

    def as_json(self) -> dict[str, Any]:
        return {
            "window_s": WINDOW_S,
            **plain(self.total),
            "links": [{"name": name, **plain(each)} for name, each in self.links.items()],
            "topics": [{"link": link, "topic": name, **plain(each)} for (link, name), each in self.topics.items()],
            "groups": [{"link": link, "group": name, **plain(each)} for (link, name), each in self.groups.items()],
        }


_NOTHING_KNOWN = TopicProgress()
_NO_GROUP = GroupProgress()


class ProgressTracker:
    """Turns the successive snapshots of one migration into progress."""

    def __init__(self) -> None:
        self._history = _History()

    def add(self, shot: Snapshot, at_s: float | None = None) -> Progress:
        """Return the progress up to a snapshot, taken `at_s` by a clock that never goes back (else: now)."""
        self._history.begin(boottime() if at_s is None else at_s)
        sizes = _offset_bytes(shot)
        amounts = {(t.link, t.topic): self._amounts(t, sizes.get((t.link, t.topic), {})) for t in shot.topics}
        links: dict[str, list[_Amounts]] = {link.name: [] for link in shot.links}
        for (link, _), amount in amounts.items():
            links.setdefault(link, []).append(amount)
        groups = {(group.link, group.group): self._group(group) for group in shot.groups}
        self._history.end()
        return Progress(
            _together(amounts.values()).progress,
            {link: _together(each).progress for link, each in links.items()},
            {name: amount.progress for name, amount in amounts.items()},
            groups,
        )

    def _amounts(self, topic: TopicStatus, offset_bytes: Mapping[int, float]) -> _Amounts:
        parts, name = topic.partitions, (topic.link, topic.topic)
        if topic.at_target:
            written = self._history.growth(("target", *name), [p.target_end for p in parts])
            return _Amounts(0, _held(parts), _sum(written), 0.0, 0.0)
        written = self._history.growth(("source", *name), [p.source_end for p in parts])
        copied = self._history.growth(("copy", *name), [_copied_to(p) for p in parts])
        bytes_per_s = -1.0
        if copied is not None and all(p.partition in offset_bytes for p in parts):
            bytes_per_s = sum(rate * offset_bytes[p.partition] for rate, p in zip(copied, parts, strict=True))
        return _Amounts(topic.lag, _held(parts), _sum(written), _sum(copied), bytes_per_s)

    def _group(self, group: GroupStatus) -> GroupProgress:
        grown = self._history.growth(("group", group.link, group.group), [group.lag], may_fall=True)
        gained = None if grown is None else -grown[0]
        if group.lag <= 0 or gained is None:
            return GroupProgress(gained, 0.0 if group.lag == 0 else -1.0)
        if gained > 0:
            return GroupProgress(gained, group.lag / gained)
        # Between two commits every group's lag grows: only a lag that is older than the window is a backlog.
        return GroupProgress(gained, falls_behind=gained < 0 and group.lag > -gained * WINDOW_S)


class _History:
    """The counters of the last snapshots, by key; counters that the newest snapshot does not have are forgotten."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._counters: dict[tuple[str, ...], _Counters] = {}
        self._seen: dict[tuple[str, ...], _Counters] = {}

    def begin(self, at_s: float) -> None:
        self._at_s, self._seen = at_s, {}

    def end(self) -> None:
        self._counters = self._seen

    def growth(
        self, key: tuple[str, ...], counts: Sequence[int], *, may_fall: bool = False
    ) -> tuple[float, ...] | None:
        """Add the counts of the newest snapshot; return the growth of each count per second, None where unknown."""
        kept = self._seen[key] = self._counters.get(key) or _Counters(may_fall)
        kept.add(self._at_s, tuple(counts))
        return kept.per_second


@dataclass(slots=True)
class _Counters:
    """The samples of some counters in the last seconds."""

    may_fall: bool
    _samples: deque[tuple[float, tuple[int, ...]]] = field(default_factory=deque)

    def add(self, at_s: float, counts: tuple[int, ...]) -> None:
        """Add a sample; begin anew where the sample does not continue the samples before."""
        if not self._continued_by(at_s, counts):
            self._samples.clear()
        if min(counts, default=0) < 0:
            return
        self._samples.append((at_s, counts))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - WINDOW_S:
            self._samples.popleft()

    def _continued_by(self, at_s: float, counts: tuple[int, ...]) -> bool:
        last_s, last = self._samples[-1] if self._samples else (at_s, ())
        if at_s <= last_s or len(last) != len(counts) or min(counts, default=0) < 0:
            return False
        return self.may_fall or all(now >= then for now, then in zip(counts, last, strict=True))

    @property
    def per_second(self) -> tuple[float, ...] | None:
        """Growth of each counter per second; None where unknown."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return tuple((now - then) / (ended - began) for now, then in zip(last, first, strict=True))


@dataclass(frozen=True, slots=True)
class _Amounts:
    """The figures of a copy that can be added to the figures of other copies; −1 is unknown."""

    lag: int
    held: int
    """Offsets that the source holds and the target has, or has to get."""
    written_per_s: float
    copied_per_s: float
    bytes_per_s: float

    @property
    def progress(self) -> TopicProgress:
        left_s, falls_behind = self._left()
        rates = (self.written_per_s, self.copied_per_s, self.bytes_per_s)
        return TopicProgress(self._copied(), *rates, left_s, falls_behind)

    def _copied(self) -> float:
        if self.lag <= 0:
            return 1.0 if self.lag == 0 else -1.0
        return max(0.0, 1 - self.lag / self.held) if self.held > 0 else -1.0

    def _left(self) -> tuple[float, bool]:
        """Return the estimated seconds until the copy has caught up, and whether the copy falls behind."""
        if self.lag == 0:
            return 0.0, False
        if min(self.lag, self.copied_per_s, self.written_per_s) < 0:
            return -1.0, False
        if self.copied_per_s * _SOON_S >= self.lag:
            return self.lag / self.copied_per_s, False
        gained = self.copied_per_s - self.written_per_s
        return (self.lag / gained if gained > 0 else -1.0), gained < 0


def _held(partitions: Sequence[PartitionStatus]) -> int:
    """Return the number of offsets between start and end of the source's logs; −1 where a log is unknown."""
    if any(p.source_end < 0 or p.source_start < 0 for p in partitions):
        return -1
    return sum(p.source_end - p.source_start for p in partitions)


def _copied_to(partition: PartitionStatus) -> int:
    """Return the source offset up to which a partition is copied; −1 where unknown."""
    known = partition.source_end >= 0 and partition.lag >= 0
    return partition.source_end - partition.lag if known else -1


def _together(amounts: Iterable[_Amounts]) -> _Amounts:
    """Return the amounts of several copies: without a copy and after an unknown lag, all is unknown.

    An unknown rate counts as none.
    """
    each = list(amounts)
    lags, held = [a.lag for a in each], [a.held for a in each]
    return _Amounts(
        sum(lags) if min(lags, default=-1) >= 0 else -1,
        sum(held) if min(held, default=-1) >= 0 else -1,
        _known([a.written_per_s for a in each]),
        _known([a.copied_per_s for a in each]),
        _known([a.bytes_per_s for a in each]),
    )


def _known(rates: Sequence[float]) -> float:
    """Return the sum of the known rates; −1 where no rate is known."""
    known = [rate for rate in rates if rate >= 0]
    return sum(known) if known or not rates else -1.0


def _sum(rates: tuple[float, ...] | None) -> float:
    return -1.0 if rates is None else sum(rates)


def _offset_bytes(shot: Snapshot) -> dict[Name, dict[int, float]]:
    """Return the bytes per offset that the mirrors have lately read, by topic and partition."""
    found: dict[Name, dict[int, float]] = {}
    for mirror in shot.mirrors:
        for topic, progress in mirror.topics.items():
            known = {partition: each.pace.offset_bytes for partition, each in progress.items()}
            found.setdefault((mirror.link, topic), {}).update({p: size for p, size in known.items() if size > 0})
    return found
