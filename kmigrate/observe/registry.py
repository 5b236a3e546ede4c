"""Declares a process's metrics: their names and meanings, and the functions that read their samples.

Nothing is sampled between scrapes. The code that does the work counts in plain attributes of its own. A scrape reads
these attributes through the functions that stand beside the declarations. So a batch costs a few additions, and a
record costs nothing. A partition that is no longer copied leaves no sample behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.observe.distributions import HistogramValue, SummaryValue

__all__ = ["Kind", "Metric", "Read", "Registry", "Sample", "Value"]


class Kind(StrEnum):
    """A metric type of Prometheus; the samples of a histogram are `HistogramValue`, of a summary `SummaryValue`."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of a metric; `help` is a single sentence, the same in the exposition and in docs/metrics.md."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


Value = float | HistogramValue | SummaryValue
Sample = tuple[tuple[str, ...], Value]
"""Values of the metric's labels, in the order of the labels, and the measured value."""
Read = Callable[[], Iterable[Sample]]
"""Function that returns the current samples, in a stable order.

The reader may pause between two samples, so the underlying data may change meanwhile.
"""


class Registry:
    """The metrics of one process, in the order of their declaration."""

    def __init__(self) -> None:
        self._reads: dict[Metric, Read] = {}

    def add(self, metric: Metric, read: Read) -> None:
        """Declare a metric with the function that reads its samples; raise ValueError if the name is taken."""
        if any(known.name == metric.name for known in self._reads):
            raise ValueError(f"two metrics named {metric.name}")
        self._reads[metric] = read

    def families(self) -> Iterator[tuple[Metric, Iterable[Sample]]]:
        """Yield every metric with its samples; a metric is read when the iteration reaches it."""
        for metric, read in self._reads.items():
            yield metric, read()
