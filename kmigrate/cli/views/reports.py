"""Reports of promotes and rollbacks, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text, below
from kmigrate.cli.views.tables import facts, figure, table
from kmigrate.model.moments import utc_text
from kmigrate.model.reports import Outcome, ReportRecord
from kmigrate.report.promote_steps import pause_text, steps_of, title_of
from kmigrate.workflow.status.aftermath import Aftermath

__all__ = ["report_view", "reports_table"]

_MOST_PARTITIONS = 40
"""Maximum number of partitions in the view: those with the longest pauses; `--json` has all of the report's."""


def reports_table(reports: Sequence[ReportRecord]) -> RenderableType:
    """Return a row for each report."""
    if not reports:
        return Text("no report yet: each promote leaves one")
    columns = ("ended", "what", "name", "action", "outcome", "fence", "pause, max", "asked by", "--asked", "reason")
    made = table(*columns, right=("fence", "pause, max"))
    for each in reports:
        made.add_row(
            utc_text(each.ended_ms),
            str(each.what),
            each.name,
            str(each.action),
            _outcome(each),
            f"{each.fence_ms:,} ms" if each.fence_ms >= 0 else "",
            f"{each.pause.max:,.1f} ms" if each.pause is not None else "",
            each.asked.by,
            str(each.asked.at_ms),
            each.reason,
        )
    return made


def _outcome(report: ReportRecord) -> Text:
    return Text(str(report.outcome), style="green" if report.outcome is Outcome.DONE else "yellow")


def report_view(report: ReportRecord, now: Aftermath) -> RenderableType:
    """Return the whole report: head, steps, routers, partitions, and what has happened since."""
    style = "bold green" if report.outcome is Outcome.DONE else "bold yellow"
    parts: list[RenderableType] = [Text(title_of(report), style=style), facts(_head(report)), _steps(report)]
    if report.routers:
        parts.append(_routers(report))
    if report.partitions:
        parts.append(_partitions(report))
    if report.positions:
        parts.append(_positions(report))
    if report.hooks:
        parts.append(_hooks(report))
    parts += [Text(f"! {gap}", style="yellow") for gap in report.gaps]
    return Group(*parts, facts(_since(report, now)))


def _head(report: ReportRecord) -> Iterator[tuple[str, str]]:
    yield "asked by", report.asked.by or "?"
    if report.reason:
        yield "given up", report.reason
    if report.fence_ms >= 0:
        yield "pause", pause_text(report)
    if report.unit:
        yield "flipped with", ", ".join(report.unit)
    if report.direct:
        accepted = ", accepted" if report.accepted_direct else ""
        yield "direct writers", f"{len(report.direct) + report.more_direct} seen{accepted}"
    if report.unread or report.read_again:
        yield "positions", f"{report.unread:,} records not read, {report.read_again:,} read again"
    if report.versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in report.versions.items())


def _steps(report: ReportRecord) -> RenderableType:
    made = table("step", "time", "after", right=("after",))
    for step in steps_of(report):
        made.add_row(step.name, step.time, step.after)
    return made


def _routers(report: ReportRecord) -> RenderableType:
    made = table("router", "in flight at the fence", "longest hold", right=("in flight at the fence", "longest hold"))
    for each in report.routers:
        in_flight = "silent: sealed" if each.silent else figure(each.in_flight)
        made.add_row(each.name, in_flight, f"{each.pause_ms:,.1f} ms" if each.pause_ms >= 0 else "–")
    return made


def _partitions(report: ReportRecord) -> RenderableType:
    columns = ("partition", "barrier", "leader epoch", "pause", "verified up to")
    shown = sorted(report.partitions.items(), key=lambda item: (-item[1].pause_ms, item[0]))[:_MOST_PARTITIONS]
    left = report.partition_count - len(shown)
    made = table(*columns, right=columns)
    for partition, each in sorted(shown):
        made.add_row(
            str(partition),
            figure(each.barrier),
            figure(each.leader_epoch),
            f"{each.pause_ms:,.1f} ms" if each.pause_ms >= 0 else "–",
            f"{each.verified_to:,}" if each.verified_to >= 0 else "–",
        )
    return Group(made, Text(f"{left:,} more partitions with shorter pauses", style="dim")) if left > 0 else made


def _hooks(report: ReportRecord) -> RenderableType:
    made = table("hook", "exit code", "took", "output", right=("exit code", "took"))
    for each in report.hooks:
        code = Text(str(each.exit_code), style="red" if each.exit_code else "")
        made.add_row(str(each.point), code, f"{each.ms:,} ms", below(each.output.strip().splitlines()))
    return made


def _positions(report: ReportRecord) -> RenderableType:
    made = table("topic", "partition", "position", right=("partition", "position"))
    for topic, of_topic in report.positions.items():
        for partition, position in of_topic.items():
            made.add_row(topic, str(partition), f"{position:,}")
    return made


def _since(report: ReportRecord, now: Aftermath) -> Iterator[tuple[str, str]]:
    yield "now", now.phase or "not mirrored"
    if report.partitions and report.outcome is Outcome.DONE:
        yield "parity", f"{now.verified:,} of {report.partition_count:,} partitions equal up to the barrier"
        if now.late_records:
            yield "late records", f"{now.late_records:,}, of which the target lacks {now.late_missing:,}"
    if now.misplaced:
        yield "members", f"{now.misplaced:,} seen at the wrong cluster: kmigrate stragglers"
    yield "next", now.next_step
