"""Renders a parity report as a self-contained HTML page: no script, no font, no image from elsewhere.

From top to bottom the page shows the verdict, the figures, and a plot by partition. Then follow the meaning of the
findings' names, and a table for each topic, which opens to its partitions and findings. The page is well-formed XML,
too. A report contains no payloads, so the page cannot contain any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kmigrate.parity.report import EXAMPLES_OF_A_KIND, ParityReport, PartitionRow, TopicRow
from kmigrate.parity.verdict import Anomaly, AnomalyKind
from kmigrate.report.check import Check, by_topic, differs, escaped, place_text
from kmigrate.report.parity_chart import CHART_STYLE, bytes_text, chart, drawn, time_chart

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

_STYLE = """
:root { color-scheme: light dark; --font: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  --ink: #1d2329; --dim: #626d79; --paper: #ffffff; --card: #f5f7f9; --rule: #e1e6eb;
  --good: #1a7f4b; --bad: #c0342b; --source: #3f6fb5; --target: #e09b3d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --dim: #98a4b0; --paper: #14181c; --card: #1d2329;
  --rule: #313a43; --good: #4cc38a; --bad: #ff7b72; --source: #7ba6e6; --target: #e8b067; } }
body { margin: 0 auto; max-width: 1060px; padding: 28px 24px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 var(--font); }
h1 { font-size: 30px; margin: 2px 0 4px; } h1.good { color: var(--good); } h1.bad { color: var(--bad); }
h2 { font-size: 18px; margin: 34px 0 10px; }
.dim { color: var(--dim); }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 20px 0 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: 8px; padding: 10px 16px; min-width: 110px; }
.tiles b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.tiles .bad b { color: var(--bad); }
.key i { display: inline-block; width: 12px; height: 8px; border-radius: 2px; margin: 0 6px 0 14px; }
table { border-collapse: collapse; width: 100%; margin: 6px 0 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--dim); font-size: 13px; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere; }
th.n, td.n { text-align: right; }
td.bad, summary .bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); }
details { border-top: 1px solid var(--rule); padding: 8px 0; } summary { cursor: pointer; }
summary b { margin-right: 10px; overflow-wrap: anywhere; }
details > div { padding: 4px 0 0 18px; }
"""


def parity_page(check: Check, report: ParityReport) -> str:
    """Return the page as text."""
    rows, found = by_topic(report.partitions), by_topic(report.examples)
    verdict = "✓ equal" if report.equal else f"✗ {report.mismatches:,} mismatch{'' if report.mismatches == 1 else 'es'}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>{escaped(verdict)}: {escaped(check.link)}</title>",
        f"<style>{_STYLE}{CHART_STYLE}</style></head><body>",
        f'<p class="dim">kmigrate verify · link {escaped(check.link)} · {escaped(check.at)}</p>',
        f'<h1 class="{"good" if report.equal else "bad"}">{escaped(verdict)}</h1>',
        f"<div>{escaped(check.source)} → {escaped(check.target)}: every record of the compared offsets</div>",
        *_before(report),
        *_tiles(report),
        *_plot(report),
        *_over_time(report),
        *_kinds(report),
        *_lookups(report),
        "<h2>Topics</h2>",
        *(
            part
            for topic in sorted(report.topics, key=lambda topic: (-topic.mismatches, topic.topic))
            for part in _topic(topic, rows[topic.topic], found.get(topic.topic, []))
        ),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _before(report: ParityReport) -> Iterator[str]:
    if report.verified_before:
        yield (
            f'<div class="dim">{report.verified_before:,} source offsets before them were found equal by earlier checks'
            " and not read again</div>"
        )


def _tiles(report: ParityReport) -> Iterator[str]:
    size = sum(row.source_bytes for row in report.partitions)
    figures = [
        ("records", f"{report.records:,}", ""),
        ("keys and values", bytes_text(size), ""),
        ("topics", f"{len(report.topics):,}", ""),
        ("partitions", f"{len(report.partitions):,}", ""),
        ("mismatches", f"{report.mismatches:,}", "" if report.equal else "bad"),
        ("seconds", f"{report.seconds.get('total', 0.0):,.1f}", ""),
    ]
    yield '<ul class="tiles">'
    for name, figure, shade in figures:
        yield f'<li class="{shade}"><b>{figure}</b><span class="dim">{name}</span></li>'
    yield "</ul>"


def _plot(report: ParityReport) -> Iterator[str]:
    yield "<h2>By partition</h2>"
    shown, count = len(drawn(report.partitions)), len(report.partitions)
    some = f"The {shown} of {count:,} partitions with most mismatches, then most records." if shown < count else ""
    yield (
        f'<p class="key dim">{some}<i style="background: var(--source)"></i>source'
        '<i style="background: var(--target)"></i>target<i style="background: var(--bad)"></i>mismatches</p>'
    )
    yield chart(report.partitions)


def _over_time(report: ParityReport) -> Iterator[str]:
    if len(report.times) > 1:
        yield "<h2>Over time</h2>"
        yield '<p class="dim">By the timestamps of the records, in UTC. A red mark: mismatches there.</p>'
        yield time_chart(report.times)


def _kinds(report: ParityReport) -> Iterator[str]:
    if report.equal:
        return
    yield "<h2>Findings</h2>"
    rows = [
        *((kind.value, MEANING[kind], count) for kind, count in sorted(report.counts.items())),
        ("unexamined", "buckets that differ and were not read again: too many records", report.unexamined_buckets),
        ("unnamed", "buckets that differ in which no record could be named", report.unnamed_buckets),
    ]
    found = [(name, meaning, f"{count:,}") for name, meaning, count in rows if count]
    yield from _table(("name", "meaning", "#count"), found)
    if len(report.examples) < len(report.findings):
        yield f'<p class="dim">Below are the first {EXAMPLES_OF_A_KIND} of each name; --parquet writes all of them.</p>'


def _lookups(report: ParityReport) -> Iterator[str]:
    """Yield the table of partitions whose look-ups by time differ."""
    differing = [each for each in report.lookups if each.early or each.late]
    if not differing:
        return
    yield "<h2>Look-ups by time</h2>"
    yield (
        '<p class="dim">Early: a reader that starts by time at the target itself reads again, because control markers '
        "bear the time of the copy. Late: such a reader skips records.</p>"
    )
    columns = ("topic", "partition", "#compared", "#early", "#late", "#time, ms", "#source offset", "#target offset")
    yield from _table(columns, [(each.topic, *map(str, each[1:])) for each in differing])


def _topic(topic: TopicRow, rows: Sequence[PartitionRow], found: Sequence[Anomaly]) -> Iterator[str]:
    equal = topic.digest_equal and not topic.mismatches
    shade, verdict = ("good", "equal") if equal else ("bad", f"{topic.mismatches:,} mismatches")
    figures = f"{topic.source_records:,} records, {topic.partitions} partition{'' if topic.partitions == 1 else 's'}"
    yield "<details>" if equal else '<details open="open">'
    yield f"<summary><b>{escaped(topic.topic)}</b>"
    yield f'<span class="{shade}">{verdict}</span> <span class="dim">· {figures}</span></summary><div>'
    columns = ("partition", "source offsets", "target offsets", "#source records", "#target records", "#mismatches")
    yield from _table(columns, map(_cells, rows))
    if found:
        header = ("finding", "on the source, partition @ offset", "on the target", "what differs")
        cells = ((each.kind.value, place_text(each.source), place_text(each.target), differs(each)) for each in found)
        yield from _table(header, cells)
    yield "</div></details>"


def _cells(row: PartitionRow) -> tuple[str, ...]:
    offsets = f"{row.start:,} … {row.end:,}", f"{row.target_start:,} … {row.target_end:,}"
    records = f"{row.source_records:,}", f"{row.target_records:,}"
    return str(row.partition), *offsets, *records, f"{row.mismatches:,}" if row.mismatches else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table: columns with a name that begins with # hold figures, and the column "#mismatches" is marked."""
    shades = ["n" if name.startswith("#") else "" for name in columns]
    bad = ["bad" if name == "#mismatches" else "" for name in columns]
    yield "<table><thead><tr>"
    yield "".join(f'<th class="{s}">{escaped(n.lstrip("#"))}</th>' for n, s in zip(columns, shades, strict=True))
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = zip(row, shades, bad, strict=True)
        yield "<tr>" + "".join(f'<td class="{s} {b}">{escaped(text)}</td>' for text, s, b in cells) + "</tr>"
    yield "</tbody></table>"
