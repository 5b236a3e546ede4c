"""Keeps samples of a whole migration in a fixed room: when the room is full, every second sample goes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kmigrate.workflow.status.progress import Progress
from kmigrate.workflow.status.snapshot import Snapshot

__all__ = ["History", "Sample", "sample_of"]

_MOST_SAMPLES = 600
_FIRST_SPACING_MS = 2_000


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one moment; None is unknown."""

    at_ms: int
    lag: int | None
    """Records that the targets lack."""
    copied_per_s: float | None
    written_per_s: float | None


def sample_of(shot: Snapshot, progress: Progress) -> Sample:
    """Return the sample of a snapshot."""
    lags = [topic.lag for topic in shot.topics]
    total = progress.total
    seen_twice = total.written_per_s >= 0  # promoted topics copy nothing, which is known at once
    return Sample(
        shot.at_ms,
        sum(lags) if min(lags, default=0) >= 0 else None,
        total.copied_per_s if seen_twice and total.copied_per_s >= 0 else None,
        total.written_per_s if seen_twice else None,
    )


class History:
    """Samples at nearly equal distances, from the beginning to now."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.spacing_ms = _FIRST_SPACING_MS

    def add(self, sample: Sample) -> None:
        """Add a sample, unless the last sample is too near; a clock that was set back begins anew."""
        last = self.samples[-1].at_ms if self.samples else sample.at_ms - self.spacing_ms
        if sample.at_ms < last:
            self.samples, self.spacing_ms = [], _FIRST_SPACING_MS
        elif sample.at_ms - last < self.spacing_ms:
            return
        self.samples.append(sample)
        if len(self.samples) > _MOST_SAMPLES:
            del self.samples[1::2]
            self.spacing_ms *= 2

    def as_json(self) -> dict[str, Any]:
        return {"spacing_ms": self.spacing_ms, "samples": [asdict(sample) for sample in self.samples]}
