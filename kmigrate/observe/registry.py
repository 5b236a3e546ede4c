"""Declares a process's metrics, with the functions that read their samples, and renders the answer to a scrape.

Nothing is sampled between scrapes: working code counts in plain attributes of its own, which a scrape reads. So a batch
costs a few additions, a record costs nothing, and a partition that is no longer copied leaves no sample behind.

The answer is Prometheus' text format 0.0.4:

    # HELP name text          backslash and line end escaped
    # TYPE name counter
    name{label="value"} 1     backslash, quote and line end escaped

Metrics stand in declared order, samples in label order, so scrapes differ only where something happened. A metric
without a sample is left out. Thousands of partitions give megabytes: lines are yielded, so other tasks run in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.observe.distributions import HistogramValue, SummaryValue

__all__ = ["CONTENT_TYPE", "Kind", "Metric", "Read", "Registry", "Sample", "Value", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = {
    **str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""}),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # half a surrogate pair cannot be encoded, and would end the page
}


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
"""Function that returns the current samples in a stable order; data may change while the reader pauses between two."""


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


def exposition(registry: Registry) -> Iterator[str]:
    """Yield all metrics of a registry as they are now, line by line."""
    for metric, samples in registry.families():
        for number, line in enumerate(_lines(metric, samples)):
            if number == 0:
                yield f"# HELP {metric.name} {metric.help.translate(_IN_HELP)}\n"
                yield f"# TYPE {metric.name} {metric.kind}\n"
            yield line + "\n"


def _lines(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    name = metric.name
    for values, value in samples:
        labels = [f'{label}="{text.translate(_IN_LABEL)}"' for label, text in zip(metric.labels, values, strict=True)]
        if isinstance(value, HistogramValue):
            for bound, count in (*value.buckets, (math.inf, value.count)):
                within = f'le="{_number(bound)}"'
                yield f"{name}_bucket{_braces(*labels, within)} {count}"
            yield from _sum_and_count(name, labels, value)
        elif isinstance(value, SummaryValue):
            for quantile, at in value.quantiles:
                which = f'quantile="{_number(quantile)}"'
                yield f"{name}{_braces(*labels, which)} {_number(at)}"
            yield from _sum_and_count(name, labels, value)
        else:
            yield f"{name}{_braces(*labels)} {_number(value)}"


def _sum_and_count(name: str, labels: list[str], value: HistogramValue | SummaryValue) -> Iterator[str]:
    yield f"{name}_sum{_braces(*labels)} {_number(value.total)}"
    yield f"{name}_count{_braces(*labels)} {value.count}"


def _braces(*labels: str) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else f"{value:.12g}"
