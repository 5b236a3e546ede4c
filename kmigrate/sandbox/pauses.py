"""The waits of a run's clients, taken from the clients' own histories.

Windows are epoch nanoseconds (fence … flip of a partition, or the moments around a group promote), because other
programs name them. Every duration is a difference of monotonic times (H3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeVar

from kmigrate.sandbox.history import Event, Slot

__all__ = ["Percentiles", "Timeline", "Window", "percentiles"]

K = TypeVar("K")


class Window(NamedTuple):
    """A stretch of epoch time in ns."""

    start: int
    end: int


class Percentiles(NamedTuple):
    """p50, p99 and the maximum of some waits in ms, and the number of waits."""

    p50: float
    p99: float
    max: float
    of: int

    def as_json(self) -> dict[str, float]:
        return {"p50": self.p50, "p99": self.p99, "max": self.max, "of": self.of}


def percentiles(waits_ns: Iterable[int]) -> Percentiles:
    ranked = sorted(waits_ns)
    if not ranked:
        return Percentiles(0.0, 0.0, 0.0, 0)

    def rank(share: float) -> float:  # nearest rank: a wait that a client really had
        return round(ranked[max(0, math.ceil(share * len(ranked)) - 1)] / 1e6, 3)

    return Percentiles(rank(0.5), rank(0.99), rank(1.0), len(ranked))


class _Span(NamedTuple):
    start: int  # epoch ns
    end: int
    wait: int  # monotonic ns


class _Instant(NamedTuple):
    t: int
    m: int


class Timeline:
    """The times of sends and acknowledgements, of reads per partition, and of begins and ends of transactions."""

    def __init__(self) -> None:
        self._asked: dict[str, _Instant] = {}
        self._sends: defaultdict[tuple[str, Slot], list[_Span]] = defaultdict(list)
        self._reads: defaultdict[tuple[str, Slot], list[_Instant]] = defaultdict(list)
        self._begun: dict[tuple[str, int], _Instant] = {}
        self._transactions: defaultdict[tuple[str, str], list[_Span]] = defaultdict(list)
        self._transactional: set[str] = set()

    @classmethod
    def of(cls, history: Iterable[Event]) -> Timeline:
        timeline = cls()
        for _ in timeline.observing(history):
            pass
        return timeline

    def observing(self, history: Iterable[Event]) -> Iterator[Event]:
        """Yield the events again, so that a single pass over a long history serves the checker, too."""
        for event in history:
            if event.f == "send":
                self._take_send(event)
            elif event.f == "poll" and event.type == "ok":
                self._reads[event.group, (event.topic, event.partition)].append(_Instant(event.t, event.m))
            elif event.f == "txn" and event.type != "invoke":
                self._take_end(event)
            elif event.f == "open" and event.detail.get("role") == "transactional":
                self._transactional.add(event.process)
            yield event

    def _take_send(self, event: Event) -> None:
        if event.process in self._transactional:
            # These records are acknowledged at the commit, so their waits are the waits of whole transactions.
            if event.type == "invoke":
                self._begun.setdefault((event.process, event.txn), _Instant(event.t, event.m))
            return
        if event.type == "invoke":
            self._asked[event.value] = _Instant(event.t, event.m)
            return
        asked = self._asked.pop(event.value, None)
        if asked is not None and event.type == "ok":
            producer = event.value.rpartition(":")[0].rpartition(".")[0]
            span = _Span(asked.t, event.t, event.m - asked.m)
            self._sends[producer, (event.topic, event.partition)].append(span)

    def _take_end(self, event: Event) -> None:
        begun = self._begun.pop((event.process, event.txn), None)
        if begun is not None:
            span = _Span(begun.t, event.t, event.m - begun.m)
            self._transactions[event.process.rpartition(".")[0], event.topic].append(span)

    # -- producers -----------------------------------------------------------------------------

    def producer_pauses(self, window: Window, slot: Slot) -> dict[str, int]:
        """Return per producer of a partition the longest send→ack in ns that overlaps the window."""
        return _longest(((producer, spans) for (producer, of), spans in self._sends.items() if of == slot), window)

    def producer_pause_ms(self, windows: dict[Slot, Window]) -> Percentiles:
        """Return percentiles of all (producer, partition) pairs' pauses, each partition with its own fence…flip."""
        return percentiles(
            wait for slot, window in windows.items() for wait in self.producer_pauses(window, slot).values()
        )

    def baseline_ack_ms(self, before: int | None = None, after: int = 0) -> Percentiles:
        """Return percentiles of ordinary acknowledgement times: all sends between two moments (epoch ns)."""
        return _baseline(self._sends.values(), before, after)

    # -- consumers -----------------------------------------------------------------------------

    def consumer_gaps(self, group: str, window: Window) -> dict[Slot, int]:
        """Return per partition the longest time in ns between two reads that overlaps the window."""
        return _longest(((slot, _gaps(reads)) for (of, slot), reads in self._reads.items() if of == group), window)

    def consumer_gap_ms(self, windows: dict[str, Window]) -> Percentiles:
        """Return percentiles of the gaps of all groups' partitions, each group with its own promote window."""
        return percentiles(
            gap for group, window in windows.items() for gap in self.consumer_gaps(group, window).values()
        )

    # -- transactions --------------------------------------------------------------------------

    def transaction_pause_ms(self, windows: dict[Slot, Window]) -> Percentiles:
        """Return percentiles of each writer's longest transaction that overlaps a fence…flip of its topic.

        Duration: first send to end, committed or not. All records go out at once, so the writer's pace adds nothing.
        """
        longest: dict[tuple[str, str], int] = {}
        for (topic, _), window in windows.items():
            written = ((writer, spans) for writer, spans in self._transactions.items() if writer[1] == topic)
            for writer, wait in _longest(written, window).items():
                longest[writer] = max(wait, longest.get(writer, 0))
        return percentiles(longest.values())

    def baseline_transaction_ms(self, before: int | None = None) -> Percentiles:
        """Return percentiles of ordinary transactions' durations: all that ended before a moment (epoch ns)."""
        return _baseline(self._transactions.values(), before)


def _longest(waits: Iterable[tuple[K, Iterable[_Span]]], window: Window) -> dict[K, int]:
    """Return by key the longest wait that overlaps the window."""
    longest: dict[K, int] = {}
    for key, spans in waits:
        for span in spans:
            if span.start <= window.end and span.end >= window.start:
                longest[key] = max(span.wait, longest.get(key, 0))
    return longest


def _gaps(reads: Iterable[_Instant]) -> Iterator[_Span]:
    for earlier, later in pairwise(sorted(reads)):
        yield _Span(earlier.t, later.t, later.m - earlier.m)


def _baseline(waits: Iterable[Iterable[_Span]], before: int | None, after: int = 0) -> Percentiles:
    return percentiles(
        span.wait for spans in waits for span in spans if span.start >= after and (before is None or span.end < before)
    )
