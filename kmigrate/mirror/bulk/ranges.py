"""The plan of a bulk copy: offset ranges of partitions, their distribution to tasks, and obstacles. Pure.

A partition's records go to the target in order, so one task has the whole range of each of its partitions. A job has as
many tasks as run at once, so that all tasks share a limit fairly and no task waits for the end of another task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush

from kmigrate.model.records import CopyEngine

__all__ = ["Caution", "Choice", "CopyRange", "Key", "cautions", "choose", "split"]

Key = tuple[str, int]
"""Topic and partition."""

_ONE_PROCESS = 100 << 20
"""Bytes per second that a mirror process copies at least, on a machine of its own (measured: 100 to 190 MB)."""
_WORTH_S = 600
"""Seconds of copying below which a Spark job gains no more than another mirror process would."""


class Caution(StrEnum):
    """The reason why a range has a single owner, and is written batch by batch."""

    OLD_RECORDS = "old-records"
    LOG_CLEANER = "log-cleaner"
    SHORT_MEMORY = "short-memory"
    """The target's `producer.id.expiration.ms` could not be raised."""

    @property
    def text(self) -> str:
        return _TEXTS[self]


_TEXTS = {
    Caution.OLD_RECORDS: "hold records of more than 20 days, which the target's brokers may forget the producer of",
    Caution.LOG_CLEANER: "are compacted on the source",
    Caution.SHORT_MEMORY: "go to brokers that forget producers (producer.id.expiration.ms could not be raised)",
}


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Source offsets start (included) to end (excluded) of a partition."""

    topic: str
    partition: int
    start: int
    end: int
    size: int
    """Estimated number of bytes, by a look at the first offsets."""
    caution: Caution | None = None

    @property
    def offsets(self) -> int:
        return self.end - self.start


def split(ranges: Iterable[CopyRange], tasks: int) -> list[list[CopyRange]]:
    """Return the ranges by task: at most `tasks` tasks, each with about as many bytes."""
    todo = sorted(ranges, key=lambda each: (-each.size, -each.offsets, each.topic, each.partition))
    made: list[list[CopyRange]] = [[] for _ in range(max(1, min(tasks, len(todo))))]
    heap = [(0, 0, number) for number in range(len(made))]
    heapify(heap)
    for each in todo:
        size, count, number = heappop(heap)
        made[number].append(each)
        heappush(heap, (size + each.size, count + 1, number))
    return [task for task in made if task]


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine that copies, and the reason."""

    engine: CopyEngine
    why: str


def choose(ranges: Sequence[CopyRange], *, mapped: bool, missing: str, remote: bool) -> Choice:
    """Return the engine of `--engine auto`; `missing`: why Spark is unavailable; `remote`: Spark has other machines."""
    size, partitions = sum(each.size for each in ranges), len(ranges)
    seconds = size / _ONE_PROCESS
    amount = f"some {size / 1e9:.1f} GB in {partitions} partition{'' if partitions == 1 else 's'}"
    if mapped:
        return Choice(CopyEngine.DAEMON, "mapped offsets have one writer: the mirror process that leads the link")
    if missing:
        return Choice(CopyEngine.DAEMON, f"Spark cannot be started here: {missing}")
    if partitions < 2:
        return Choice(CopyEngine.DAEMON, f"{amount}: one partition is copied by one process in any case")
    if seconds < _WORTH_S:
        return Choice(CopyEngine.DAEMON, f"{amount}: one mirror process needs about {max(1, round(seconds))} s")
    if not remote:
        return Choice(
            CopyEngine.DAEMON,
            f"{amount}, and Spark has this machine only: kmigrate mirror run --workers N does the same without it",
        )
    return Choice(CopyEngine.SPARK, f"{amount}: one mirror process would need about {round(seconds / 60)} min")


def cautions(ranges: Collection[CopyRange]) -> list[tuple[Caution, int]]:
    """Return the number of ranges that each caution concerns."""
    return [(each, count) for each in Caution if (count := sum(r.caution is each for r in ranges))]
