"""A process's metrics: what each is called and means, and where its samples are read when somebody asks.

Nothing is sampled in between. Who does the work counts in plain attributes of its own; a scrape reads them through
the functions that stand beside the declarations. So a batch costs a few additions, a record nothing, and a partition
that is no longer copied leaves no sample behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.observe.distributions import HistogramValue, SummaryValue

__all__ = ["Kind", "Metric", "Read", "Registry", "Sample", "Value"]


class Kind(StrEnum):
    """Prometheus' types; a histogram's samples are `HistogramValue`, a summary's `SummaryValue`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration; `help` is one sentence, the same in the exposition and in docs/metrics.md."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


Value = float | HistogramValue | SummaryValue
Sample = tuple[tuple[str, ...], Value]
"""Values of the metric's labels, in their order, and what was measured."""
Read = Callable[[], Iterable[Sample]]
"""The samples of this moment, in an order that stays. Whoever takes them may pause between two of them, so what they
are read from may change meanwhile."""


class Registry:
    """The metrics of one process, in the order in which they were declared."""

    def __init__(self) -> None:
        self._reads: dict[Metric, Read] = {}

    def add(self, metric: Metric, read: Read) -> None:
        if any(known.name == metric.name for known in self._reads):
            raise ValueError(f"two metrics named {metric.name}")
        self._reads[metric] = read

    def families(self) -> Iterator[tuple[Metric, Iterable[Sample]]]:
        """Every metric with its samples; each is read when it is come to."""
        for metric, read in self._reads.items():
            yield metric, read()
