"""What one lane has read, copied and tried again, in numbers; counted per batch, never per record. Pure.

A lane begins a tally of its own, so counters begin at 0 again where a partition is resumed, or another process takes
over: whoever reads counters knows such resets.
"""

from __future__ import annotations

from collections import Counter

from kmigrate.mirror.reactions import Asked
from kmigrate.mirror.steps import Append, Form, Step
from kmigrate.model.lag import Pace
from kmigrate.observe.distributions import Recent

__all__ = ["Tally"]

_QUIET_MS = 10_000
_COARSE_MS = 5_000
_REMEMBERED_BYTES = 16 << 20
"""How far back the bytes per offset reach: a partition's records change their size now and then."""


class Tally:
    """Counters of one lane."""

    __slots__ = (
        "_level_ms",
        "_recent_bytes",
        "_recent_offsets",
        "age_ms",
        "batches",
        "bytes",
        "copied_ms",
        "heard_ms",
        "hole_offsets",
        "latency_ms",
        "lost_offsets",
        "read_bytes",
        "record_bytes",
        "records",
        "retries",
    )

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.batches: Counter[Form] = Counter()
        self.read_bytes = 0
        self.hole_offsets = 0
        self.lost_offsets = 0
        """Stored on the target and gone from there; copied again."""
        self.retries: Counter[tuple[str, ...]] = Counter()
        """By what was asked and the cause."""
        self.age_ms = Recent()
        """Newest record of each batch when it was read (MM-121)."""
        self.latency_ms = Recent()
        """The same when the target had acknowledged it (MM-119)."""
        self.record_bytes = Recent()
        """Mean size of a batch's records as they were sent (MM-120)."""
        self.copied_ms = 0
        """Time of the newest record of the batch copied last; never later than the moment of its copying."""
        self.heard_ms = 0
        """When the source last told where its log ends, or by its silence that this is still so."""
        self._level_ms = 0
        self._recent_bytes = 0.0
        self._recent_offsets = 0.0

    # reading

    def stands_at(self, position: int, source_end: int) -> None:
        """To be said before either moves on: at the end, the copy is level with what the source has last told."""
        if 0 <= source_end <= position:
            self._level_ms = self.heard_ms

    def pace(self, position: int, source_end: int) -> Pace:
        """What is known of the copy's lag beside the offsets.

        At the end of a partition that nobody writes now, the moment is told to within some seconds: so it is the same
        one for some seconds, and thousands of such partitions need not be told anew each time.
        """
        self.stands_at(position, source_end)
        known = self._recent_bytes / self._recent_offsets if self._recent_offsets else 0.0
        fresh = max(self._level_ms, self.copied_ms)
        if 0 <= source_end <= position and fresh - self.copied_ms > _QUIET_MS:
            fresh -= fresh % _COARSE_MS
        return Pace(fresh, round(known, 1))

    def read(self, steps: list[Step], size: int, offsets: int, now_ms: int) -> None:
        """An answer of `size` bytes has brought the reading on by so many offsets."""
        self.read_bytes += size
        self._recent_bytes += size
        self._recent_offsets += offsets
        if self._recent_bytes > _REMEMBERED_BYTES:
            self._recent_bytes /= 2
            self._recent_offsets /= 2
        for step in steps:
            if isinstance(step, Append) and step.max_timestamp >= 0:
                self.age_ms.add(now_ms - step.max_timestamp, step.end - step.start, now_ms)

    # writing

    def copied(self, step: Append, now_ms: int) -> int:
        """The target has acknowledged a batch; its latency in ms, −1 where its records have no time."""
        count, size = step.end - step.start, len(step.view)
        self.records += count
        self.bytes += size
        self.batches[step.form] += 1
        self.record_bytes.add(size // count, count, now_ms)
        if step.max_timestamp < 0:
            return -1
        latency = now_ms - step.max_timestamp
        if latency < 0:
            latency = 0
        self.copied_ms = now_ms - latency
        self.latency_ms.add(latency, count, now_ms)
        return latency

    def retried(self, asked: Asked, cause: str) -> None:
        """Something is asked again: `cause` is the name that status has for it, else the broker's error code."""
        self.retries[(asked, cause)] += 1
