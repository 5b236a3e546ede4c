"""The report of a judged migration, for a person."""

from __future__ import annotations

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import SafeTable, Text, below
from kmigrate.cli.views.tables import table
from kmigrate.report.migration import FAILING, MigrationReport, Millis

__all__ = ["migration_view"]


def _waits(report: MigrationReport) -> SafeTable:
    made = table("", "p50", "p99", "max", title="waits, ms", right=("p50", "p99", "max"))
    rows: list[tuple[str, Millis | None]] = [
        ("producer pause at promote (clients' own histories)", report.producer_pause_ms),
        ("held by the router", report.router_hold_ms),
        ("ordinary acknowledgement before", report.baseline_ack_ms),
        ("consumer gap around group promote, topics written all the time", report.consumer_gap_live_ms),
        ("the same, with the topic that is written in transactions", report.consumer_gap_ms),
        ("whole transaction at promote, from first send to commit", report.transaction_pause_ms),
        ("ordinary transaction before", report.baseline_transaction_ms),
    ]
    for label, waits in rows:
        figures = (waits.p50, waits.p99, waits.max) if waits is not None else ()
        made.add_row(label, *(f"{value:,.1f}" for value in figures))
    return made


def _moved(report: MigrationReport) -> SafeTable:
    columns = ("topic", "phase", "offsets", "partitions", "offsets on target")
    made = table(*columns, title="moved", right=columns[3:])
    for topic, row in report.moved.items():
        made.add_row(topic, row["phase"], row["offsets"], f"{row['partitions']}", f"{row['target_offsets']:,}")
    return made


def _anomalies(report: MigrationReport) -> RenderableType:
    text = Text("anomalies: ")
    for name in FAILING:
        count = report.anomalies.get(name, 0)
        text.append(f"{name} {count}  ", style="red bold" if count else "green")
    text.append(f"(group re-reads, allowed: {report.anomalies.get('group_rereads', 0)})", style="dim")
    lines: list[Text | str] = [text]
    for name, found in report.examples.items():
        style = "dim" if name == "group_rereads" else "red"
        lines += [Text(f"{name}: {example}", style=style) for example in found[:3]]
    return below(lines, indent="  ")


def migration_view(report: MigrationReport) -> RenderableType:
    """Return what moved, how long clients waited, and what the judges found."""
    verdict = Text(
        "clean: nothing lost, doubled or reordered" if report.clean else "NOT CLEAN",
        "bold green" if report.clean else "bold red",
    )
    gaps = ", ".join(f"{group} {gap:,.0f} ms" for group, gap in sorted(report.group_gap_ms.items()))
    return Group(
        _moved(report),
        _waits(report),
        Text(f"longest read gap by group, topics written all the time: {gaps or 'none'}"),
        Text(
            f"parity by Spark: {report.parity.topics} topics, {report.parity.records:,} records, "
            f"{report.parity.mismatches} mismatches"
        ),
        Text(f"offsets identical: {'yes' if report.offsets_identical else 'NO'}"),
        _anomalies(report),
        Text(f"{report.acked:,} live records acknowledged, {report.preloaded:,} preloaded, {report.seconds:.0f} s"),
        *(Text(f"missed: {words}", "yellow") for words in report.missed),
        verdict,
    )
