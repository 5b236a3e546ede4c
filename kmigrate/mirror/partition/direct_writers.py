"""The direct writers of a partition, producers that write to the source without a router, as the lane has read them.

Pure. Only batches that were written while the link mirrors the topic count (`TopicRecord.began`). An interval between
two batches counts only if the lane was read without a pause in between: a lane that stood still sees the pause's
batches at once, and late. Times are of this process's clock (`steady_ms`), which nobody sets;
`upkeep.direct_writer_log` converts them to the clock of the state log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmigrate.mirror.partition.steps import DirectBatches, Producer

__all__ = ["READ_PAUSE_MS", "DirectSeen", "SeenWriter"]

_MOST = 64
"""Maximum number of writers that are kept for each partition; those that wrote longest ago are only counted."""
_MOST_ROUTED = 1000
READ_PAUSE_MS = 2_000
"""Longest silence of a source after which a lane can still measure an interval."""


@dataclass(slots=True)
class SeenWriter:
    """The batches of a producer."""

    first_ms: int
    last_ms: int
    offset: int
    """Base offset of the newest batch."""
    unsaved: int = 0
    """Number of records that the state log does not count yet."""
    slowest_ms: int = -1
    """Longest interval between two batches; −1 if none is known."""


class DirectSeen:
    """Collects the direct writers of a partition."""

    def __init__(self, is_routed: Callable[[Producer], bool] = lambda producer: False) -> None:
        self.is_routed = is_routed
        """Tells whether the state log names a producer id and epoch as those of a routed transactional producer."""
        self.writers: dict[Producer, SeenWriter] = {}
        self.dropped = 0
        """Number of writers that were only counted and that the state log does not count yet."""
        self.newest: tuple[Producer, int, int] | None = None
        """Producer, offset and time of the newest batch."""
        self._routed: set[Producer] = set()
        self._sure_from = 0
        """Time since which the lane is read without a pause."""

    def paused(self, now_ms: int) -> None:
        """Note that batches written before now may have been read late."""
        self._sure_from = now_ms

    def note(self, found: Mapping[Producer, DirectBatches], now_ms: int) -> None:
        """Add the direct batches of a fetch response."""
        for producer, batches in found.items():
            if producer not in self.writers and self._routes(producer):
                continue
            known = self.writers.get(producer)
            if known is None:
                self.writers[producer] = SeenWriter(now_ms, now_ms, batches.offset, batches.records)
                self._bound()
            else:
                if known.last_ms >= self._sure_from:
                    known.slowest_ms = max(known.slowest_ms, now_ms - known.last_ms)
                known.last_ms, known.offset = now_ms, batches.offset
                known.unsaved += batches.records
            if self.newest is None or batches.offset > self.newest[1]:
                self.newest = producer, batches.offset, now_ms

    def routed(self, producer: Producer) -> None:
        """Forget a producer that turned out to be a router's producer."""
        self.writers.pop(producer, None)
        self._routed.add(producer)
        if self.newest is not None and self.newest[0] == producer:
            self.newest = None

    def _routes(self, producer: Producer) -> bool:
        if producer in self._routed:
            return True
        if producer[0] < 0 or not self.is_routed(producer):
            return False
        if len(self._routed) >= _MOST_ROUTED:
            self._routed.clear()
        self._routed.add(producer)
        return True

    def _bound(self) -> None:
        if len(self.writers) > _MOST:
            oldest = min(self.writers, key=lambda each: self.writers[each].last_ms)
            del self.writers[oldest]
            self.dropped += 1
