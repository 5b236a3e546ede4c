"""Keeps exact sums, fixed buckets and last-minute quantiles of values, weighted by the records of a batch. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

__all__ = ["QUANTILES", "Histogram", "HistogramValue", "Recent", "SummaryValue"]

QUANTILES = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
"""Quantiles that MirrorMaker 2 reports of a latency: minimum, median, tails, maximum."""

_WINDOW_MS = 30_000
_FINE_BITS = 6
_FIRST_WIDE = 1 << _FINE_BITS
"""First number with a wide bucket: buckets are exact below 64, and above at most 1/32 of their value wide."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Upper bounds with the number of values at or below each bound; the last bucket, without a bound, is left out."""

    buckets: tuple[tuple[float, int], ...]
    total: float
    count: int


@dataclass(frozen=True, slots=True)
class SummaryValue:
    """Quantiles of the last minute, and sum and count since the process began to count."""

    quantiles: tuple[tuple[float, float], ...]
    total: float
    count: int


class Histogram:
    """Counts by fixed upper bounds, never reset."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, values: Sequence[float], weights: Sequence[int]) -> None:
        bounds, counts = self._bounds, self._counts
        for value, weight in zip(values, weights, strict=True):
            counts[bisect_left(bounds, value)] += weight
        self._total += sum(map(mul, values, weights))

    def value(self) -> HistogramValue:
        seen = 0
        buckets = []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            seen += count
            buckets.append((bound, seen))
        return HistogramValue(tuple(buckets), self._total, sum(self._counts))


class Recent:
    """Quantiles of whole numbers over the last half to whole minute; sum and count are never reset.

    Two windows take turns, so no value is removed singly. Minimum and maximum are exact, the others within 1/32.
    """

    __slots__ = ("_began_ms", "_newer", "_older", "count", "total")

    def __init__(self) -> None:
        self._began_ms = 0
        self._newer = _Window()
        self._older = _Window()
        self.total = 0
        self.count = 0

    def add(self, values: Sequence[int], weights: Sequence[int], now_ms: int) -> None:
        """Add values with their weights; no value may be negative."""
        if not values:
            return
        self.total += sum(map(mul, values, weights))
        self.count += sum(weights)
        if not 0 <= now_ms - self._began_ms < _WINDOW_MS:
            self._turn(now_ms)
        window = self._newer
        counts = window.counts
        for value, weight in zip(values, weights, strict=True):
            if value >= _FIRST_WIDE:
                shift = value.bit_length() - _FINE_BITS
                value = value >> shift << shift
            counts[value] = counts.get(value, 0) + weight
        window.widen(min(values), max(values))

    def _turn(self, now_ms: int) -> None:
        """Start a new window and keep the newer as the older, unless too old; a clock set back ends both windows."""
        recent = 0 <= now_ms - self._began_ms < 2 * _WINDOW_MS
        self._older = self._newer if recent else _Window()
        self._newer = _Window()
        self._began_ms = now_ms

    def value(self, now_ms: int, scale: float = 1.0) -> SummaryValue:
        """Return the summary now; `scale` turns the added numbers into the metric's unit."""
        if not 0 <= now_ms - self._began_ms < _WINDOW_MS:
            self._turn(now_ms)
        windows = [window for window in (self._older, self._newer) if window.counts]
        found = tuple((q, value * scale) for q, value in zip(QUANTILES, _quantiles(windows), strict=False))
        return SummaryValue(found, self.total * scale, self.count)


class _Window:
    """Counts by bucket; the smallest number of a bucket names the bucket."""

    __slots__ = ("counts", "greatest", "least")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.least = -1
        self.greatest = -1

    def widen(self, least: int, greatest: int) -> None:
        """Extend the range of values so that `least` and `greatest` are in the range."""
        self.least = least if self.least < 0 else min(self.least, least)
        self.greatest = max(self.greatest, greatest)


def _quantiles(windows: Sequence[_Window]) -> list[int]:
    """Return the values at QUANTILES; an empty list if nothing was added."""
    if not windows:
        return []
    counts: dict[int, int] = {}
    for window in windows:
        for bucket, count in window.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
    least, greatest = min(w.least for w in windows), max(w.greatest for w in windows)
    whole = sum(counts.values())
    out: list[int] = []
    seen = 0
    ordered = iter(sorted(counts.items()))
    bucket = least
    for wanted in QUANTILES:
        while seen < wanted * whole:
            bucket, count = next(ordered)
            seen += count
        out.append(max(bucket, least))
    out[-1] = greatest
    return out
