"""Renders the report of a promote or rollback as a self-contained HTML page, without a script, font or image file.

The template `promote_page.html.jinja` shows the outcome, the figures, the steps, a plot of the pause by partition, and
tables of routers, direct writers, partitions and positions. The page is well-formed XML.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from kmigrate.model.moments import utc_text
from kmigrate.model.records import ClusterRef
from kmigrate.model.reports import Outcome, ReportedKind, ReportRecord
from kmigrate.report.page import page_environment
from kmigrate.report.pause_chart import PAUSE_CHART_STYLE, pause_chart
from kmigrate.report.promote_steps import pause_text, steps_of, title_of
from kmigrate.workflow.status.aftermath import Aftermath

__all__ = ["promote_page"]

_NONE = "–"


def promote_page(report: ReportRecord, now: Aftermath, source: ClusterRef, target: ClusterRef) -> str:
    """Return the page as text; `now` says what has become of the topic or group since."""
    return (
        page_environment()
        .get_template("promote_page.html.jinja")
        .render(
            title=title_of(report),
            done=report.outcome is Outcome.DONE,
            report=report,
            now=now,
            source=source.name,
            target=target.name,
            ended=utc_text(report.ended_ms),
            tiles=list(_tiles(report, now)),
            steps=steps_of(report),
            pause=pause_text(report),
            chart=Markup(pause_chart(report.partitions, report.pause)) if report.pause is not None else "",
            chart_style=Markup(PAUSE_CHART_STYLE),
            left=report.partition_count > len(report.partitions),
            routers=list(_routers(report)),
            direct=list(_direct(report)),
            partitions=list(_partitions(report)),
            positions=[
                (topic, str(partition), f"{at:,}")
                for topic, of_topic in report.positions.items()
                for partition, at in of_topic.items()
            ],
            hooks=[(str(each.point), str(each.exit_code), f"{each.ms:,} ms", each.output) for each in report.hooks],
            versions=list(report.versions.items()),
        )
    )


def _tiles(report: ReportRecord, now: Aftermath) -> Iterator[tuple[str, str, str]]:
    """Yield names and figures, each with the class of the tile."""
    if report.fence_ms >= 0:
        yield "fence to end", f"{report.fence_ms:,} ms", ""
    if report.pause is not None:
        for name in ("p50", "p99", "max"):
            yield f"pause, {name}", f"{getattr(report.pause, name):,.1f} ms", ""
    yield "partitions" if report.what is ReportedKind.TOPIC else "positions", f"{report.partition_count:,}", ""
    if report.what is ReportedKind.TOPIC and report.outcome is Outcome.DONE:
        yield "late records", f"{now.late_records:,}", "bad" if now.late_missing else ""
    if report.what is ReportedKind.GROUP and report.outcome is Outcome.DONE:
        yield "misplaced members", f"{now.misplaced:,}", "bad" if now.misplaced else ""
        yield "records not read", f"{report.unread:,}", ""
        yield "records read again", f"{report.read_again:,}", ""


def _milliseconds(ms: float) -> str:
    return f"{ms:,.1f} ms" if ms >= 0 else _NONE


def _number(value: int) -> str:
    return f"{value:,}" if value >= 0 else _NONE


def _routers(report: ReportRecord) -> Iterator[tuple[str, ...]]:
    for each in report.routers:
        in_flight = "silent: the source held the fence" if each.silent else _number(each.in_flight)
        yield each.name, in_flight, _milliseconds(each.pause_ms)


def _direct(report: ReportRecord) -> Iterator[tuple[str, ...]]:
    for each in report.direct:
        producer = str(each.producer_id) if each.producer_id >= 0 else "without an id"
        yield producer, str(each.epoch), str(each.partition), f"{each.records:,}", utc_text(each.last_ms)


def _partitions(report: ReportRecord) -> Iterator[tuple[str, ...]]:
    for partition, each in sorted(report.partitions.items()):
        barrier, epoch = _number(each.barrier), _number(each.leader_epoch)
        yield str(partition), barrier, epoch, _milliseconds(each.pause_ms), _number(each.verified_to)
