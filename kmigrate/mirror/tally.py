"""What one lane has read, copied and tried again, in numbers; counted per batch, never per record. Pure.

A lane begins a tally of its own, so counters begin at 0 again where a partition is resumed, or another process takes
over: whoever reads counters knows such resets.
"""

from __future__ import annotations

from collections import Counter

from kmigrate.mirror.reactions import Asked
from kmigrate.mirror.steps import Append, Form, Step
from kmigrate.model.lag import Pace
from kmigrate.observe.distributions import Histogram, Recent

__all__ = ["Copies", "Tally"]

_AT_ONCE = 64
_QUIET_MS = 10_000
_COARSE_MS = 5_000
_REMEMBERED_BYTES = 16 << 20
"""How far back the bytes per offset reach: a partition's records change their size now and then."""
_Noted = tuple[int, int, int, int, Form]
"""Of a batch that was acknowledged: when, the time of its newest record, its records, its bytes, its form."""


class Copies:
    """What the target has acknowledged of one lane."""

    __slots__ = ("batches", "bytes", "latency_ms", "newest_ms", "record_bytes", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.batches: Counter[Form] = Counter()
        self.latency_ms = Recent()
        """From the time of each batch's newest record to the target's acknowledgement (MM-119)."""
        self.record_bytes = Recent()
        """Mean size of each batch's records as they were sent (MM-120)."""
        self.newest_ms = 0
        """Time of the newest record of the batch copied last; never later than the moment of its copying."""


class Tally:
    """Counters of one lane.

    What the target has acknowledged is noted batch by batch and counted many at a time, at the latest when somebody
    asks for it: counting is a loop that keeps in the processor's cache what else would be fetched anew for every batch.
    """

    __slots__ = (
        "_copies",
        "_level_ms",
        "_noted",
        "_recent_bytes",
        "_recent_offsets",
        "age_ms",
        "heard_ms",
        "hole_offsets",
        "lost_offsets",
        "of_link",
        "read_bytes",
        "retries",
    )

    def __init__(self) -> None:
        self.read_bytes = 0
        self.hole_offsets = 0
        self.lost_offsets = 0
        """Stored on the target and gone from there; copied again."""
        self.retries: Counter[tuple[str, ...]] = Counter()
        """By what was asked and the cause."""
        self.age_ms = Recent()
        """Newest record of each batch when it was read (MM-121)."""
        self.heard_ms = 0
        """When the source last told where its log ends, or by its silence that this is still so."""
        self.of_link: Histogram | None = None
        """Latencies, in seconds, of all partitions together."""
        self._noted: list[_Noted] = []
        self._copies = Copies()
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
        copied = self.copies.newest_ms
        fresh = max(self._level_ms, copied)
        if 0 <= source_end <= position and fresh - copied > _QUIET_MS:
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
        timed = [step for step in steps if isinstance(step, Append) and step.max_timestamp >= 0]
        ages = [max(0, now_ms - step.max_timestamp) for step in timed]
        self.age_ms.add(ages, [step.end - step.start for step in timed], now_ms)

    # writing

    def copied(self, step: Append, now_ms: int) -> None:
        """The target has acknowledged a batch."""
        noted = self._noted
        noted.append((now_ms, step.max_timestamp, step.end - step.start, len(step.view), step.form))
        if len(noted) >= _AT_ONCE:
            self.count()

    def count(self) -> None:
        """Count what is noted."""
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
            if self.of_link is not None:
                self.of_link.add([latency / 1000 for latency in latencies], counts)

    @property
    def copies(self) -> Copies:
        """All of them, those that were just noted, too."""
        self.count()
        return self._copies

    def retried(self, asked: Asked, cause: str) -> None:
        """Something is asked again: `cause` is the name that status has for it, else the broker's error code."""
        self.retries[(asked, cause)] += 1
