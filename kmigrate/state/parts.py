"""Large presences in parts: the entries that have changed, and all entries bit by bit.

A mirror may copy 10,000 partitions, and a router may serve 2,000 groups. Their whole presences, twice a second, would
be megabytes that every process reads. So a large presence is written in parts:

A  The first part is whole. Each later part has the entries that have changed since the last stored part, the names of
   entries that are gone, and the entries of a slice of all names. The slices follow each other, so that a reader that
   begins later, and reads the last minute, has read every entry.
B  Each part has the number of parts stored before. A reader that has missed a part begins anew.
C  Until a reader has read every slice, the presence is partial: `applied` and `generation` are −1, and nobody counts on
   what the presence does not say.
D  Entries that only say that a copy goes on wait for their slice if very many of them change at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from kmigrate.model.presences import MirrorPresence, PartitionProgress, RouterPresence
from kmigrate.net.clock import monotonic

__all__ = ["Part", "PartReader", "PartWriter", "entries_of"]

Divided = MirrorPresence | RouterPresence
"""A presence that may be written in parts."""
Entries = Mapping[str, Mapping[str, Any]]
"""The entries of a presence by field and name."""

_FIELDS: dict[type[Divided], tuple[str, ...]] = {
    MirrorPresence: ("topics", "upkeep", "problems"),
    RouterPresence: ("groups", "holds_ms", "joins"),
}
"""The fields of a presence that grow with the number of topics or groups."""
_FEW = 250
"""Number of entries up to which a presence is written whole."""
_CYCLE_MS = 32_000
"""Time in which all slices are written; a new reader reads back the last minute."""
_SLICE_MS = 1_000
"""Shortest time between two slices: presences that follow each other at once have changes alone."""
_MOST_ROUTINE = 150
"""Most entries of routine progress in a part."""


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a part among the parts of a presence."""

    number: int
    """Number of parts that were stored before."""
    slices: int
    """Number of slices that have all entries together."""
    slice: int = -1
    """The slice whose entries stand here; −1 for changes alone."""
    whole: bool = False
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of entries that are gone, by field."""


def entries_of(record: Divided) -> Entries:
    """Return the entries of a presence that may be large."""
    return {name: getattr(record, name) for name in _FIELDS[type(record)]}


def _with(record: Divided, entries: Entries) -> Divided:
    """Return a presence with other entries."""
    fields: dict[str, Any] = dict(entries)
    return replace(record, **fields)


def _is_small(record: Divided) -> bool:
    entries = entries_of(record)
    return sum(map(len, entries.values())) <= _FEW and getattr(record, "partitions", 0) <= _FEW


@dataclass(slots=True)
class _Written:
    """The presence as of the last stored part."""

    slices: int
    entries: Entries
    number: int = 0
    next_slice: int = 0
    slice_at: float = 0.0


class PartWriter:
    """Divides the large presences of a process into parts."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}
        self._unconfirmed: dict[str, _Written] = {}

    def divide(self, record: Divided) -> tuple[Divided, Part | None]:
        """Return what to write of a presence: all of a small presence, else a part with its place."""
        self._unconfirmed.pop(record.key, None)
        if _is_small(record):
            self._written.pop(record.key, None)
            return record, None
        slices = max(1, _CYCLE_MS // max(_SLICE_MS, record.interval_ms))
        now, before = entries_of(record), self._written.get(record.key)
        if before is None or before.slices != slices:
            self._unconfirmed[record.key] = _Written(slices, now, 1, 0, monotonic())
            return record, Part(0, slices, whole=True)
        due = monotonic() - before.slice_at >= _SLICE_MS / 1000
        place = before.next_slice if due else -1
        chosen = {name: _chosen(before.entries[name], entries, place, slices) for name, entries in now.items()}
        left = {name: tuple(before.entries[name].keys() - entries.keys()) for name, entries in now.items()}
        gone = {name: names for name, names in left.items() if names}
        written = {name: _merged(before.entries[name], chosen[name], left[name]) for name in now}
        after = _Written(slices, written, before.number + 1, before.next_slice, before.slice_at)
        if due:
            after.next_slice, after.slice_at = (before.next_slice + 1) % slices, monotonic()
        self._unconfirmed[record.key] = after
        return _with(record, chosen), Part(before.number, slices, place, gone=gone)

    def stored(self, key: str) -> None:
        """Note that the part written last is stored; a part whose storing is unknown is written anew."""
        if (written := self._unconfirmed.pop(key, None)) is not None:
            self._written[key] = written

    def forget(self, key: str) -> None:
        """Drop what is kept of a presence that is not announced any more."""
        self._written.pop(key, None)
        self._unconfirmed.pop(key, None)


def _chosen(before: Mapping[str, Any], now: Mapping[str, Any], place: int, slices: int) -> dict[str, Any]:
    """Return the entries of a part: those of its slice, and those that have changed."""
    chosen = {name: value for name, value in now.items() if place >= 0 and _slice_of(name, slices) == place}
    changed = {
        name: value
        for name, value in now.items()
        if (known := before.get(name)) is not value and known != value and name not in chosen
    }
    routine = (name for name, value in changed.items() if _is_routine(before.get(name), value))
    later = set(islice(routine, _MOST_ROUTINE, None))
    return chosen | {name: value for name, value in changed.items() if name not in later}


def _merged(before: Mapping[str, Any], chosen: Mapping[str, Any], gone: tuple[str, ...]) -> dict[str, Any]:
    merged = {**before, **chosen}
    for name in gone:
        merged.pop(name, None)
    return merged


@lru_cache(maxsize=1 << 16)
def _slice_of(name: str, slices: int) -> int:
    """Return the slice of a name, the same for every process."""
    return zlib.crc32(name.encode()) % slices


def _is_routine(before: Any, now: Any) -> bool:
    """Return whether progress of a topic says no more than that the copies of the same partitions go on."""
    if not isinstance(before, dict) or before.keys() != now.keys():
        return False
    return all(
        isinstance(each, PartitionProgress) and _remarkable(before[partition]) == _remarkable(each)
        for partition, each in now.items()
    )


def _remarkable(progress: PartitionProgress) -> tuple[object, ...]:
    """Return the facts of a partition that somebody may wait for or look into."""
    return (
        progress.problem,
        progress.trouble,
        progress.at_barrier,
        progress.direct_id,
        progress.direct_epoch,
        progress.runs,
    )


@dataclass(frozen=True, slots=True)
class _Read:
    """A presence as far as its parts were read."""

    number: int
    slices: int
    entries: Entries
    missing: frozenset[int]
    """Slices that were not read yet."""


class PartReader:
    """Puts the presences of all processes together from their parts."""

    def __init__(self) -> None:
        self._read: dict[str, _Read] = {}

    def put_together(self, record: Divided, part: Part) -> Divided:
        """Return a presence after one more part; a partial presence says so (C)."""
        before = self._read.get(record.key)
        follows = before is not None and part.slices == before.slices and part.number - before.number in (0, 1)
        if part.whole or before is None or not follows:
            missing = frozenset() if part.whole else frozenset(range(part.slices))
            before = _Read(part.number, part.slices, {name: {} for name in entries_of(record)}, missing)
        merged = {
            name: _merged(before.entries[name], entries, part.gone.get(name, ()))
            for name, entries in entries_of(record).items()
        }
        missing = before.missing - {part.slice}
        self._read[record.key] = _Read(part.number, part.slices, merged, missing)
        whole = _with(record, merged)
        return _partial(whole) if missing else whole

    def forget(self, key: str) -> None:
        """Drop the parts of a process that is gone, or that writes whole presences."""
        self._read.pop(key, None)


def _partial(record: Divided) -> Divided:
    """Return a presence on which no decision counts, because entries are missing."""
    if isinstance(record, MirrorPresence):
        return replace(record, applied=-1, generation=-1)
    return replace(record, applied=-1)
