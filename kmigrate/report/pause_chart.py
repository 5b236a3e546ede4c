"""Draws the pause of each partition at a promote as an SVG: a bar by partition, and lines at p50 and p99."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor, log10

from kmigrate.model.reports import PartitionEvidence, Pause

__all__ = ["PAUSE_CHART_STYLE", "pause_chart"]

_LEFT, _RIGHT, _TOP, _HEIGHT, _FOOT = 64, 60, 14, 180, 42
_WIDTH = 980
_WIDEST = 40.0
"""Maximum width of a bar, for topics with few partitions."""
_TEXT = 14
"""Height of a line of text."""
_NAMED = 24
"""Maximum number of partitions named under the axis."""

PAUSE_CHART_STYLE = """
.chart { width: 100%; height: auto; display: block; font: 12px/1 var(--font); }
.chart text { fill: var(--dim); font-variant-numeric: tabular-nums; }
.chart .axis { font-weight: 600; }
.chart .rule { stroke: var(--rule); }
.chart .bar { fill: var(--source); }
.chart .mark { stroke: var(--target); stroke-width: 1.5; stroke-dasharray: 4 3; }
.chart .name { fill: var(--ink); }
"""


def pause_chart(partitions: Mapping[int, PartitionEvidence], pause: Pause) -> str:
    """Return the SVG; the colours come from the surrounding page."""
    rows = sorted(partitions.items())
    top = _round_up(pause.max)
    height = _TOP + _HEIGHT + _FOOT
    out = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="pause by partition">']
    out += _grid(top)
    out += _bars(rows, top)
    out += _marks(pause, top)
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    out.append(f'<text class="axis" x="{middle:.0f}" y="{height - 4}" text-anchor="middle">partition</text>')
    return "\n".join([*out, "</svg>"])


def _round_up(longest: float) -> float:
    """Return the end of the axis: the next 1, 2 or 5 times a power of ten at or above the longest pause."""
    power = 10.0 ** floor(log10(max(longest, 0.001)))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= longest)


def _y(ms: float, top: float) -> float:
    return _TOP + _HEIGHT * (1 - ms / top)


def _grid(top: float) -> Iterator[str]:
    for quarter in range(5):
        ms = top * quarter / 4
        y = _y(ms, top)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{ms:g} ms</text>'


def _bars(rows: list[tuple[int, PartitionEvidence]], top: float) -> Iterator[str]:
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(rows))
    width = min(_WIDEST, room * 0.7)
    every = ceil(len(rows) / _NAMED)
    for number, (partition, each) in enumerate(rows):
        middle = _LEFT + (number + 0.5) * room
        if each.pause_ms >= 0:
            y = _y(each.pause_ms, top)
            shape = f'x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_TOP + _HEIGHT - y:.1f}"'
            title = f"partition {partition}: {each.pause_ms:,.1f} ms"
            yield f'<rect class="bar" {shape} rx="1"><title>{title}</title></rect>'
        if number % every == 0:
            place = f'x="{middle:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle"'
            yield f'<text class="name" {place}>{partition}</text>'


def _marks(pause: Pause, top: float) -> Iterator[str]:
    """Yield the lines at p50 and p99; where both are close, the names stand below and above their lines."""
    y50, y99 = _y(pause.p50, top), _y(pause.p99, top)
    apart = 0 if y50 - y99 >= _TEXT else _TEXT / 2
    for name, y, text in (("p50", y50, y50 + apart), ("p99", y99, y99 - apart)):
        yield f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="{_WIDTH - _RIGHT + 8}" y="{text + 4:.1f}">{name}</text>'
