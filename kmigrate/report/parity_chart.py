"""Draws the contents of both sides as SVGs: partition by partition, and over the records' time.

Three panels a row let an eye follow a partition. Some forty rows stay readable: first mismatches, then most records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from kmigrate.model.amounts import bytes_text
from kmigrate.parity.report import PartitionRow, TimeStep
from kmigrate.report.check import escaped

__all__ = ["CHART_STYLE", "chart", "drawn", "time_chart"]

_MOST_ROWS = 40
_ROW, _BAR, _TOP = 28, 8, 34
_LABEL, _PANEL, _LONGEST = 230, 250, 140
_WIDTH, _HEIGHT, _HEAD = 980, 90, 28
_MARK, _AXIS = 8, 20
"""Heights of the marks under the bars over time, and of the line of times under the marks."""
_NAME = 32
"""Maximum number of characters of a name; the beginning is cut, because the end tells partitions apart."""

CHART_STYLE = """
.chart { width: 100%; height: auto; display: block; font: 12px/1 var(--font); }
.chart text { fill: var(--ink); }
.chart .axis { fill: var(--dim); font-weight: 600; }
.chart .figure { fill: var(--dim); font-size: 11px; }
.chart .bad { fill: var(--bad); font-weight: 600; }
.chart .rule { stroke: var(--rule); }
.chart .source { fill: var(--source); }
.chart .target { fill: var(--target); }
.chart .wrong { fill: var(--bad); }
"""


def drawn(rows: Sequence[PartitionRow]) -> list[PartitionRow]:
    """Return the partitions that get a row, in the order of their names."""
    first = sorted(rows, key=lambda row: (-row.mismatches, -row.source_records))[:_MOST_ROWS]
    return sorted(first, key=lambda row: (row.topic, row.partition))


def chart(rows: Sequence[PartitionRow]) -> str:
    """Return the SVG; the colours come from the surrounding page."""
    rows = drawn(rows)
    most = (
        max((max(row.source_records, row.target_records) for row in rows), default=0),
        max((max(row.source_bytes, row.target_bytes) for row in rows), default=0),
        max((row.mismatches for row in rows), default=0),
    )
    width, height = _LABEL + 3 * _PANEL, _TOP + _ROW * len(rows)
    out = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="records, bytes, mismatches">']
    for panel, name in enumerate(("records", "bytes of keys and values", "mismatches")):
        out.append(f'<text class="axis" x="{_LABEL + panel * _PANEL}" y="14">{name}</text>')
    for number, row in enumerate(rows):
        out += _row(row, _TOP + number * _ROW, most)
    return "\n".join([*out, "</svg>"])


def _row(row: PartitionRow, top: int, most: tuple[int, int, int]) -> Iterator[str]:
    name = f"{row.topic}-{row.partition}"
    short = name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
    counts = f"{name}: {row.source_records:,} records on the source, {row.target_records:,} on the target"
    yield f"<g><title>{escaped(counts)}</title>"
    yield f'<line class="rule" x1="0" x2="{_LABEL + 3 * _PANEL}" y1="{top - 5}" y2="{top - 5}"/>'
    yield f'<text class="{"name" if row.equal else "bad"}" x="0" y="{top + 12}">{escaped(short)}</text>'
    figures = f"{row.source_records:,}", f"{row.target_records:,}"
    yield from _pair(_LABEL, top, most[0], (row.source_records, row.target_records), figures)
    figures = bytes_text(row.source_bytes), bytes_text(row.target_bytes)
    yield from _pair(_LABEL + _PANEL, top, most[1], (row.source_bytes, row.target_bytes), figures)
    if row.mismatches:
        x, length = _LABEL + 2 * _PANEL, _length(row.mismatches, most[2])
        yield f'<rect class="wrong" x="{x}" y="{top + 4}" width="{length}" height="{_BAR}" rx="2"/>'
        yield f'<text class="bad" x="{x + length + 6}" y="{top + 12}">{row.mismatches:,}</text>'
    yield "</g>"


def _pair(x: int, top: int, most: int, counts: tuple[int, int], figures: tuple[str, str]) -> Iterator[str]:
    """Yield two bars, the source's above the target's; the target's figure appears only if the figures differ."""
    for number, (side, count, figure) in enumerate(zip(("source", "target"), counts, figures, strict=True)):
        length, y = _length(count, most), top + number * (_BAR + 1)
        yield f'<rect class="{side}" x="{x}" y="{y}" width="{length}" height="{_BAR}" rx="2"/>'
        same = figures[0] == figures[1]
        if number == 0 or not same:
            lower = 12 if same else 7 + 12 * number
            yield f'<text class="figure{"" if same else " bad"}" x="{x + length + 6}" y="{top + lower}">{figure}</text>'


def _length(count: int, most: int) -> int:
    """Return the width of a bar; every count above 0 is visible."""
    return max(2, round(_LONGEST * count / most)) if count else 0


def time_chart(steps: Sequence[TimeStep]) -> str:
    """Return the SVG: two panels, records and bytes, each over an axis of time."""
    half = (_WIDTH - 40) // 2
    height = _HEAD + _HEIGHT + _MARK + _AXIS + 6
    records = [(step.source_records, step.target_records) for step in steps]
    sizes = [(step.source_bytes, step.target_bytes) for step in steps]
    out = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="records and bytes over time">']
    out += _panel(0, half, steps, records, f"records, at most {max(map(max, records)):,} a step")
    out += _panel(half + 40, half, steps, sizes, f"bytes, at most {bytes_text(max(map(max, sizes)))} a step")
    return "\n".join([*out, "</svg>"])


def _panel(
    left: int, width: int, steps: Sequence[TimeStep], pairs: Sequence[tuple[int, int]], name: str
) -> Iterator[str]:
    most, ground = max(1, *map(max, pairs)), _HEAD + _HEIGHT
    room = min(60.0, width / len(steps))
    bar = max(1.0, (room - 1.5) / 2)
    yield f'<text class="axis" x="{left}" y="14">{name}</text>'
    yield f'<line class="rule" x1="{left}" x2="{left + width}" y1="{ground}" y2="{ground}"/>'
    for number, (step, pair) in enumerate(zip(steps, pairs, strict=True)):
        x = left + number * room
        wrong = f", {step.mismatches:,} mismatches" if step.mismatches else ""
        yield f"<g><title>{_time(step.start_ms)}: source {pair[0]:,}, target {pair[1]:,}{wrong}</title>"
        for side, count, at in (("source", pair[0], x), ("target", pair[1], x + bar)):
            tall = max(1.0, _HEIGHT * count / most) if count else 0.0
            shape = f'x="{at:.1f}" y="{ground - tall:.1f}" width="{bar:.1f}" height="{tall:.1f}"'
            yield f'<rect class="{side}" {shape}/>'
        if step.mismatches:
            yield f'<rect class="wrong" x="{x:.1f}" y="{ground + 2}" width="{2 * bar:.1f}" height="{_MARK - 2}"/>'
        yield "</g>"
    y = ground + _MARK + _AXIS - 6
    yield f'<text class="figure" x="{left}" y="{y}">{_time(steps[0].start_ms)}</text>'
    yield f'<text class="figure" x="{left + width}" y="{y}" text-anchor="end">{_time(steps[-1].end_ms)}</text>'


def _time(ms: int) -> str:
    """Return a moment in UTC; a moment beyond the calendar in ms."""
    try:
        return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
