"""Renders a parity report as a self-contained HTML page: no script, no font, no image from elsewhere.

The template `parity_page.html.jinja` shows the verdict, the figures, plots, the meaning of the findings' names, and a
table per topic, which opens to partitions and findings. The page is well-formed XML, and reports have no payloads.
"""

from __future__ import annotations

from markupsafe import Markup

from kmigrate.model.amounts import bytes_text
from kmigrate.parity.report import EXAMPLES_OF_A_KIND, ParityReport, PartitionRow
from kmigrate.parity.verdict import AnomalyKind
from kmigrate.report.check import Check, by_topic, differs, place_text
from kmigrate.report.page import page_environment
from kmigrate.report.parity_chart import CHART_STYLE, chart, drawn, time_chart

__all__ = ["parity_page"]

MEANING: dict[AnomalyKind, str] = {
    AnomalyKind.LOST: "the target does not hold the record",
    AnomalyKind.DUPLICATED: "a second copy of a record that has its own",
    AnomalyKind.REORDERED: "on both sides, but out of the shared order",
    AnomalyKind.ALTERED: "in its place, with another key, value, headers, timestamp or timestamp type",
    AnomalyKind.MISPLACED: "the target holds it in another partition only",
    AnomalyKind.EXTRA: "the source never held it",
    AnomalyKind.SHIFTED: "equal records at other offsets that nothing else explains",
}


def parity_page(check: Check, report: ParityReport) -> str:
    """Return the page as text."""
    verdict = "✓ equal" if report.equal else f"✗ {report.mismatches:,} mismatch{'' if report.mismatches == 1 else 'es'}"
    environment = page_environment()
    environment.filters |= {"place": place_text, "differs": differs, "cells": _cells}
    template = environment.get_template("parity_page.html.jinja")
    return template.render(
        check=check,
        report=report,
        verdict=verdict,
        chart_style=Markup(CHART_STYLE),
        size=bytes_text(sum(row.source_bytes for row in report.partitions)),
        drawn=len(drawn(report.partitions)),
        chart=Markup(chart(report.partitions)),
        time_chart=Markup(time_chart(report.times)) if len(report.times) > 1 else "",
        kinds=_kinds(report),
        most_examples=EXAMPLES_OF_A_KIND,
        lookups=[(each.topic, *map(str, each[1:])) for each in report.lookups if each.early or each.late],
        topics=sorted(report.topics, key=lambda topic: (-topic.mismatches, topic.topic)),
        rows=by_topic(report.partitions),
        found=by_topic(report.examples),
    )


def _kinds(report: ParityReport) -> list[tuple[str, str, str]]:
    rows = [
        *((kind.value, MEANING[kind], count) for kind, count in sorted(report.counts.items())),
        ("unexamined", "buckets that differ and were not read again: too many records", report.unexamined_buckets),
        ("unnamed", "buckets that differ in which no record could be named", report.unnamed_buckets),
    ]
    return [(name, meaning, f"{count:,}") for name, meaning, count in rows if count]


def _cells(row: PartitionRow) -> tuple[str, ...]:
    offsets = f"{row.start:,} … {row.end:,}", f"{row.target_start:,} … {row.target_end:,}"
    records = f"{row.source_records:,}", f"{row.target_records:,}"
    return str(row.partition), *offsets, *records, f"{row.mismatches:,}" if row.mismatches else ""
