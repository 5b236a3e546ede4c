"""Names in PromQL: the metrics and labels that an expression asks for; `make soak-deploy` has the syntax judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kmigrate.cli.reference.metrics import ALL_METRICS
from kmigrate.observe.registry import Kind, Metric

__all__ = ["unknown_names"]

_SELECTOR = re.compile(r"\b((?:kmigrate|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([a-z_, ]*)\)")
_OF_SCRAPES = frozenset({"job", "instance"})
"""Labels that Prometheus adds to every sample."""


def _served(metrics: tuple[Metric, ...]) -> Iterator[tuple[str, frozenset[str]]]:
    yield "up", frozenset()
    for metric in metrics:
        labels = frozenset(metric.labels)
        if metric.kind in {Kind.HISTOGRAM, Kind.SUMMARY}:
            yield f"{metric.name}_sum", labels
            yield f"{metric.name}_count", labels
        if metric.kind is Kind.HISTOGRAM:
            yield f"{metric.name}_bucket", labels | {"le"}
        else:
            yield metric.name, labels | ({"quantile"} if metric.kind is Kind.SUMMARY else set())


_SERVED: Mapping[str, frozenset[str]] = dict(_served(ALL_METRICS))


def unknown_names(expression: str) -> list[str]:
    """Return the metrics and labels of an expression that no process of kmigrate serves."""
    unknown: list[str] = []
    labels = set(_OF_SCRAPES)
    for name, matchers in _SELECTOR.findall(expression):
        if name not in _SERVED:
            unknown.append(name)
            continue
        labels |= _SERVED[name]
        unknown += [
            f"{name}{{{label}}}" for label in _MATCHER.findall(matchers) if label not in _SERVED[name] | _OF_SCRAPES
        ]
    grouped = {label.strip() for labels_of in _GROUPING.findall(expression) for label in labels_of.split(",")}
    return unknown + sorted(grouped - labels - {""})
