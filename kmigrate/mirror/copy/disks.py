"""The target's disks: the free room, the decision whether the copy waits for room, and the size of the copy.

A broker whose log directory is full takes the directory offline, with the partitions of all clients. So a partition is
not read while a broker with a replica has less room than `disk_min_free_percent` and `disk_min_free_bytes` of
`[mirror]` ask for. Batches that were read before are still written. Nothing is lost: writers at the routers continue at
the source. A partition behind a fence is copied on, because writers wait and little is left.

The copy continues once the free room exceeds the limit by a fifth (`RoomRule`), so that the copy does not stop and
start all the time. Every process asks for the free room; only the lease's holder asks for the size of the topics.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from kmigrate.cluster.brokers import LogDir, read_log_dirs, topic_bytes
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed
from kmigrate.mirror.partition.lane import Key
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.presences import DiskUse
from kmigrate.model.stops import DISK_LOW
from kmigrate.net.clock import monotonic, sleep

__all__ = ["DiskGauge", "DiskGuard", "Growth", "RoomRule"]

_log = logging.getLogger("kmigrate.mirror")
_UNWATCHED = "target-disk-unwatched"
_WINDOW_S = 3600.0
_LEAST_SPAN_S = 3.0
"""Shortest time from which an hourly rate is calculated."""
_MOST_NAMED = 5
"""Maximum number of log directories in a text."""
_SOON_S = 5.0
"""Delay of the second reading of sizes: a rate needs two readings."""

LogDirKey = tuple[int, str]
"""Broker and path of a log directory."""


class RoomRule:
    """Decides which log directories have too little room. Pure."""

    def __init__(self, percent: float, size: int) -> None:
        self._percent = percent
        self._size = size
        self.low: dict[LogDirKey, LogDir] = {}
        self.known: dict[LogDirKey, LogDir] = {}
        """Newest figures of every log directory that reports its room."""

    def least(self, total: int) -> int:
        """Return the number of bytes that must be free in a volume of that size."""
        return max(self._size, round(total * self._percent / 100))

    def update(self, broker: int, dirs: Iterable[LogDir]) -> None:
        """Add a broker's figures; a broker that does not answer keeps its former figures."""
        answers = {
            (broker, each.path): each for each in dirs if each.total >= 0 and each.usable >= 0 and not each.error
        }
        self.known = {key: known for key, known in self.known.items() if key[0] != broker} | answers
        low = {key: each for key, each in answers.items() if each.usable < self._wanted(key, each.total)}
        self.low = {key: each for key, each in self.low.items() if key[0] != broker} | low

    def keep(self, brokers: Iterable[int]) -> None:
        """Forget all brokers but these."""
        kept = set(brokers)
        self.known = {key: each for key, each in self.known.items() if key[0] in kept}
        self.low = {key: each for key, each in self.low.items() if key[0] in kept}

    def _wanted(self, key: LogDirKey, total: int) -> int:
        """Return the limit; a fifth more, as far as the volume allows, for a directory that was below the limit."""
        least = self.least(total)
        more = max(0, min(least, total - least)) // 5 if key in self.low else 0
        return least + more

    def text(self, each: LogDir) -> str:
        """Name a log directory, its room and its limit."""
        return (
            f"broker {each.broker}, log directory {each.path}: {_size(each.usable)} of {_size(each.total)} are free, "
            f"the limit is {_size(self.least(each.total))}"
        )


class DiskGuard:
    """Watches the room on the target's brokers, and tells which partitions have to wait for room."""

    def __init__(self, target: ClusterClient, settings: MirrorSettings, on_change: Callable[[], None]) -> None:
        self._target = target
        self._settings = settings
        self._on_change = on_change
        self.rule = RoomRule(settings.disk_min_free_percent, settings.disk_min_free_bytes)
        self.unwatched = ""
        """The reason why the limit cannot be watched, or ''."""

    @property
    def low(self) -> str:
        """Names of the log directories with too little room, and the remedy; '' if there is none."""
        low = [self.rule.text(each) for _, each in sorted(self.rule.low.items())]
        more = [f"and {len(low) - _MOST_NAMED} more"] if len(low) > _MOST_NAMED else []
        if not low:
            return ""
        return (
            f"{DISK_LOW}: cluster {self._target.settings.name}: {'; '.join([*low[:_MOST_NAMED], *more])}. The copy of "
            "partitions with a replica there waits, and nothing is lost. The copy goes on by itself once a fifth more "
            "than the limit is free: make room, or lower disk_min_free_percent and disk_min_free_bytes of [mirror] and "
            "start the mirror anew"
        )

    def lack_of_room(self, key: Key) -> str:
        """Say in few words why a partition's copy has to wait; '' if the copy may continue."""
        if not self.rule.low:
            return ""
        info = self._target.metadata.partition(*key)
        brokers = {broker for broker, _ in self.rule.low}
        short = sorted(brokers.intersection(info.replicas)) if info is not None else []
        return f"{DISK_LOW}: waits for room on broker {', '.join(map(str, short))}" if short else ""

    async def run(self) -> None:
        """Look at the disks again and again, for ever; return at once if there is no limit."""
        settings = self._settings
        while settings.disk_min_free_percent or settings.disk_min_free_bytes:
            await self.look()
            await sleep(settings.disk_look_s)

    async def look(self) -> None:
        """Ask every broker once; never raise."""
        before, unwatched = set(self.rule.low), self.unwatched
        answers = await read_log_dirs(self._target)
        self.rule.keep(answers)
        for broker, dirs in answers.items():
            if not isinstance(dirs, Failed):
                self.rule.update(broker, dirs)
        self.unwatched = _why_unwatched(self._target.settings.name, answers)
        if self.unwatched != unwatched and self.unwatched:
            _log.warning("mirror: %s", self.unwatched)
        if set(self.rule.low) != before:
            if self.rule.low:
                _log.warning("mirror: %s", self.low)
            else:
                _log.warning("mirror: the target has room again, and the copy goes on")
            self._on_change()


class Growth:
    """Readings of a size over the last hour, and the rate that follows from them. Pure."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()
        self._topics: frozenset[str] = frozenset()

    def take(self, now: float, sizes: Mapping[str, int]) -> None:
        """Add the sizes of all topics; begin the hour anew if a topic is gone, since its bytes are not shrinkage."""
        topics = frozenset(sizes)
        if not topics >= self._topics:
            self._readings.clear()
        self._topics = topics
        self._readings.append((now, sum(sizes.values())))
        while self._readings[0][0] < now - _WINDOW_S:
            self._readings.popleft()

    @property
    def per_hour(self) -> int | None:
        """Bytes per hour; None while unknown."""
        if not self._readings:
            return None
        (began, first), (ended, last) = self._readings[0], self._readings[-1]
        span = ended - began
        return round((last - first) * 3600 / span) if span >= _LEAST_SPAN_S else None


class DiskGauge:
    """Reads the size of a link's topics on the target, for as long as this process holds the lease."""

    def __init__(
        self, target: ClusterClient, settings: MirrorSettings, topics: Callable[[], Mapping[str, int]]
    ) -> None:
        """Create a gauge; `topics` returns the number of partitions by topic."""
        self._target = target
        self._settings = settings
        self._topics = topics
        self._growth = Growth()
        self.sizes: Mapping[str, int] | None = None
        """Bytes of all replicas, by topic; None while unknown."""

    @property
    def use(self) -> DiskUse:
        """The present figures."""
        if self.sizes is None:
            return DiskUse()
        return DiskUse(sum(self.sizes.values()), self._growth.per_hour)

    async def run(self) -> None:
        """Read the sizes again and again, for ever."""
        pause = min(_SOON_S, self._settings.disk_size_s)
        while True:
            topics = {topic: range(count) for topic, count in self._topics().items()}
            self.sizes = topic_bytes(await read_log_dirs(self._target, topics), topics) if topics else {}
            if self.sizes is not None:
                self._growth.take(monotonic(), self.sizes)
            await sleep(pause)
            pause = self._settings.disk_size_s


def _why_unwatched(cluster: str, answers: Mapping[int, list[LogDir] | Failed]) -> str:
    """Say why the limit cannot be watched at some brokers; a broker that is only away is no reason."""
    refused = {n: dirs for n, dirs in answers.items() if isinstance(dirs, Failed) and dirs.ref.startswith("log-dirs-")}
    silent = [n for n, dirs in answers.items() if not isinstance(dirs, Failed) and all(each.total < 0 for each in dirs)]
    why = [next(iter(refused.values())).what] if refused else []
    if silent:
        brokers = ", ".join(map(str, silent[:_MOST_NAMED])) + (", …" if len(silent) > _MOST_NAMED else "")
        why.append(f"broker {brokers} does not tell how much room is left (Kafka 3.3 and later do)")
    if not why:
        return ""
    return f"{_UNWATCHED}: cluster {cluster}: the copy does not stop before a disk is full: {'; '.join(why)}"


def _size(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
