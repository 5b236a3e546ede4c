"""The compared records over their time: where in a topic's history two clusters differ.

A bucket stands as a whole at the time of its first record: a report has no finer sums, and a plot needs none. There are
no more steps than a partition has buckets, because finer steps would be empty in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kmigrate.parity.plan import BucketDigest, BucketKey

__all__ = ["MOST_STEPS", "TimeStep", "timeline"]

MOST_STEPS = 60


@dataclass(frozen=True, slots=True)
class TimeStep:
    """The sums of the buckets that begin from start_ms to end_ms (excluded)."""

    start_ms: int
    end_ms: int
    source_records: int
    target_records: int
    source_bytes: int
    target_bytes: int
    mismatches: int


def timeline(
    source: Mapping[BucketKey, BucketDigest],
    target: Mapping[BucketKey, BucketDigest],
    mismatches: Mapping[BucketKey, int],
) -> tuple[TimeStep, ...]:
    """Return steps of equal length from the first time to the last, or none if no record has a time."""
    nothing = BucketDigest(0, 0, 0, 0, 0, 0)
    times = {key: source[key].since if key in source else target[key].since for key in source.keys() | target.keys()}
    times = {key: time for key, time in times.items() if time >= 0}
    if not times:
        return ()
    first, last = min(times.values()), max(times.values())
    count = min(MOST_STEPS, max(Counter(key.of for key in times).values()))
    length = -(-(last - first + 1) // count)
    sums = [[0] * 5 for _ in range((last - first) // length + 1)]
    for key, time in times.items():
        here, there = source.get(key, nothing), target.get(key, nothing)
        figures = (here.records, there.records, here.size, there.size, mismatches.get(key, 0))
        into = sums[(time - first) // length]
        into[:] = [total + figure for total, figure in zip(into, figures, strict=True)]
    return tuple(
        TimeStep(first + number * length, first + (number + 1) * length, *figures)
        for number, figures in enumerate(sums)
    )
