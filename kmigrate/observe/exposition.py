"""Renders a registry in Prometheus' text format 0.0.4: the lines that answer a scrape. Pure.

    # HELP name text          backslash and line end escaped
    # TYPE name counter
    name{label="value"} 1     backslash, quote and line end escaped

Metrics come in the order of their declaration, and samples in the order of their labels. So two scrapes differ only
where something happened. A metric without a sample is left out. With thousands of partitions the text is megabytes
long. So the text is yielded line by line, and the caller can let other tasks run in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kmigrate.observe.distributions import HistogramValue, SummaryValue
from kmigrate.observe.registry import Metric, Registry, Sample

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = {
    **str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""}),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),  # half a surrogate pair cannot be encoded, and would end the page
}


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
