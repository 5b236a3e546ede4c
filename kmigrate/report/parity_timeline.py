"""Draws the contents of both sides over the records' time as an SVG, with a mark at each step with mismatches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence

from kmigrate.parity.timeline import TimeStep
from kmigrate.report.parity_chart import bytes_text

__all__ = ["time_chart"]

_WIDTH, _HEIGHT, _TOP = 980, 90, 28
_MARK, _AXIS = 8, 20
"""Heights of the marks under the bars, and of the line of times under the marks."""


def time_chart(steps: Sequence[TimeStep]) -> str:
    """Return the SVG: two panels, records and bytes, each over an axis of time."""
    half = (_WIDTH - 40) // 2
    height = _TOP + _HEIGHT + _MARK + _AXIS + 6
    records = [(step.source_records, step.target_records) for step in steps]
    sizes = [(step.source_bytes, step.target_bytes) for step in steps]
    out = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="records and bytes over time">']
    out += _panel(0, half, steps, records, f"records, at most {max(map(max, records)):,} a step")
    out += _panel(half + 40, half, steps, sizes, f"bytes, at most {bytes_text(max(map(max, sizes)))} a step")
    return "\n".join([*out, "</svg>"])


def _panel(
    left: int, width: int, steps: Sequence[TimeStep], pairs: Sequence[tuple[int, int]], name: str
) -> Iterator[str]:
    most, ground = max(1, *map(max, pairs)), _TOP + _HEIGHT
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
