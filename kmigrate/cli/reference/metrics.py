"""The tables of docs/metrics.md, made from the declarations: `python -m kmigrate.cli.reference.metrics FILE`.

The page above the marker stays; a test compares the tables, so that every metric has a row.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from kmigrate.cli.process.metrics_endpoint import METRICS as OF_PROCESS
from kmigrate.mirror.metrics import METRICS as OF_MIRROR
from kmigrate.observe.registry import Metric
from kmigrate.router.metrics import METRICS as OF_ROUTER
from kmigrate.web.metrics import METRICS as OF_STATUS
from kmigrate.workflow.controller.metrics import METRICS as OF_TOPICS
from kmigrate.workflow.groups.watch import METRICS as OF_GROUPS

__all__ = ["ALL_METRICS", "with_tables"]

_MARKER = "<!-- From here on made by `python -m kmigrate.cli.reference.metrics docs/metrics.md`; do not edit. -->\n"
_BY_PART: Mapping[str, tuple[Metric, ...]] = {
    "Mirror": OF_MIRROR,
    "Router": OF_ROUTER,
    "Controller": (*OF_GROUPS, *OF_TOPICS),
    "Web page": OF_STATUS,
    "Process": OF_PROCESS,
}
ALL_METRICS = tuple(metric for metrics in _BY_PART.values() for metric in metrics)
"""All metrics that a process of kmigrate may serve."""


def with_tables(page: str) -> str:
    """Return the page with today's tables below the marker."""
    written, marker, _ = page.partition(_MARKER)
    return "".join((written, marker, *(_table(part, metrics) for part, metrics in _BY_PART.items())))


def _table(title: str, metrics: Iterable[Metric]) -> str:
    rows = [f"\n## {title}\n", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
