"""Counters of a lane, per batch, never per record; a new lane restarts at 0, as readers of counters know. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kmigrate.mirror.partition.reactions import Asked
from kmigrate.mirror.partition.steps import Append, Form, Step
from kmigrate.model.lag import Pace
from kmigrate.observe.distributions import Histogram, Recent

__all__ = ["Copies", "Tally"]

_AT_ONCE = 64
_QUIET_MS = 10_000
_COARSE_MS = 5_000
_REMEMBERED_BYTES = 16 << 20
"""Number of bytes over which the bytes per offset are averaged: records change their size now and then."""
_Noted = tuple[int, int, int, int, Form]
"""An acknowledged batch: time, time of its newest record, number of records, bytes, form."""


@dataclass(slots=True, eq=False)
class Copies:
    """The batches of a lane that the target has acknowledged."""

    records: int = 0
    bytes: int = 0
    batches: Counter[Form] = field(default_factory=Counter)
    latency_ms: Recent = field(default_factory=Recent)
    """Time from each batch's newest record to the target's acknowledgement."""
    record_bytes: Recent = field(default_factory=Recent)
    """Mean size of each batch's records as they were sent."""
    newest_ms: int = 0
    """Time of the newest record of the last copied batch; never later than the moment of its copying."""


@dataclass(slots=True, eq=False)
class Tally:
    """Counters of a lane; acknowledged batches are noted singly and counted many at a time, at the latest when read.

    Single counts would fetch their data into the processor's cache anew for every batch.
    """

    read_bytes: int = 0
    hole_offsets: int = 0
    windows: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Number of stored windows, by `short` (a single hole) and `long`."""
    lost_offsets: int = 0
    """Number of offsets that were on the target and are gone from there; they are copied again."""
    retries: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Number of retries by request and cause."""
    age_ms: Recent = field(default_factory=Recent)
    """Age of the newest record of each batch when the batch was read."""
    heard_ms: int = 0
    """Time when the source last reported its log end, or confirmed the log end by leaving the partition out."""
    _latencies: Histogram | None = None
    """Latencies of all partitions together, in seconds."""
    _noted: list[_Noted] = field(default_factory=list)
    _copies: Copies = field(default_factory=Copies)
    _level_ms: int = 0
    _recent_bytes: float = 0.0
    _recent_offsets: float = 0.0

    # reading

    def stands_at(self, position: int, source_end: int) -> None:
        """Note whether the copy has reached the reported log end; call this before either value changes."""
        if 0 <= source_end <= position:
            self._level_ms = self.heard_ms

    def pace(self, position: int, source_end: int) -> Pace:
        """Return the known facts about the copy's lag, beside the offsets.

        At the end of a quiet partition the time is rounded to some seconds, so that thousands need no new announcement.
        """
        self.stands_at(position, source_end)
        known = self._recent_bytes / self._recent_offsets if self._recent_offsets else 0.0
        copied = self.copies.newest_ms
        fresh = max(self._level_ms, copied)
        if 0 <= source_end <= position and fresh - copied > _QUIET_MS:
            fresh -= fresh % _COARSE_MS
        return Pace(fresh, round(known, 1))

    def read(self, steps: list[Step], size: int, offsets: int, now_ms: int) -> None:
        """Note a response of `size` bytes that has moved the read position by `offsets`."""
        self.read_bytes += size
        self._recent_bytes += size
        self._recent_offsets += offsets
        if self._recent_bytes > _REMEMBERED_BYTES:
            self._recent_bytes /= 2
            self._recent_offsets /= 2
        timed = [step for step in steps if isinstance(step, Append) and step.max_timestamp >= 0]
        ages = [max(0, now_ms - step.max_timestamp) for step in timed]
        self.age_ms.add(ages, [step.end - step.start for step in timed], now_ms)

    # writing

    def add_latencies_to(self, latencies: Histogram) -> None:
        """Add the latencies from now on to those of all partitions."""
        self._latencies = latencies

    def copied(self, step: Append, now_ms: int) -> None:
        """Note that the target has acknowledged a batch."""
        noted = self._noted
        noted.append((now_ms, step.max_timestamp, step.end - step.start, len(step.view), step.form))
        if len(noted) >= _AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count the noted batches."""
        if not self._noted:
            return
        noted, self._noted = self._noted, []
        copies = self._copies
        times, _, counts, sizes, forms = zip(*noted, strict=True)
        copies.records += sum(counts)
        copies.bytes += sum(sizes)
        copies.batches.update(forms)
        copies.record_bytes.add([size // count for _, _, count, size, _ in noted], counts, times[-1])
        timed = [(max(0, at - newest), count, at) for at, newest, count, _, _ in noted if newest >= 0]
        if timed:
            latencies, counts, times = zip(*timed, strict=True)
            copies.newest_ms = times[-1] - latencies[-1]
            copies.latency_ms.add(latencies, counts, times[-1])
            if self._latencies is not None:
                self._latencies.add([latency / 1000 for latency in latencies], counts)

    @property
    def copies(self) -> Copies:
        """All copies, including those that were just noted."""
        self.count()
        return self._copies

    def retried(self, asked: Asked, cause: str) -> None:
        """Count a retry; `cause` is the name that status has for the cause, else the broker's error code."""
        self.retries[(asked, cause)] += 1
