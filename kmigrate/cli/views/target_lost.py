"""The report on the source once the target is gone, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.model.moments import utc_text
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NoteState
from kmigrate.net.clock import now_ms
from kmigrate.workflow.verbs.target_lost import GroupAtSource, PartitionAtSource, SourceFindings

__all__ = ["target_lost_view"]


def target_lost_view(report: SourceFindings, source: ClusterSettings) -> RenderableType:
    """Return the partitions, the groups, and the next steps."""
    rows = table(
        "topic", "partition", "way back", "complete to", "known missing", "complete as of", "remarks",
        right=("partition", "complete to", "known missing"),
    )  # fmt: skip
    for each in report.partitions:
        rows.add_row(
            each.topic,
            str(each.partition),
            Text(each.state, style="red" if each.state is NoteState.ENDED else ""),
            f"{each.complete_to:,}",
            Text(f"{each.missing:,}" if each.missing >= 0 else "unknown", style="red" if each.missing else ""),
            utc_text(each.complete_ms) if each.complete_ms else "unknown",
            "; ".join(_remarks(each)),
        )
    parts: list[RenderableType] = [rows]
    parts += [Text(f"! {each.what}: {each.next_step}", style="yellow") for each in report.findings]
    parts += [Text(line) for each in report.groups for line in _group(each)]
    if report.more_groups:
        parts.append(Text(f"{report.more_groups} more promoted groups are not named in the notes"))
    parts += [Text(f"next: {step}") for step in _steps(report, source)]
    return Group(*parts)


def _remarks(each: PartitionAtSource) -> Iterator[str]:
    if each.reason:
        yield each.reason
    if each.foreign:
        yield f"others have written to the source: {each.foreign}"
    if each.waits_for is not None:
        yield each.waits_for.text(now_ms())


def _group(group: GroupAtSource) -> Iterator[str]:
    """Return what a promoted group finds at the source."""
    places = [
        f"{topic}-{partition}: {offset:,}"
        for topic, offsets in sorted(group.offsets.items())
        for partition, offset in sorted(offsets.items())
    ]
    since = utc_text(group.promoted_ms) if group.promoted_ms else "its promote"
    yield (
        f"group {group.group}: its commits since {since} are lost with the target; "
        f"at the source it stands at {', '.join(places) or 'no committed offset'}"
    )


def _steps(report: SourceFindings, source: ClusterSettings) -> Iterator[str]:
    name = source.name
    if not report.is_complete:
        yield "records that are missing are on the target alone: keep its disks, and write these records again"
    if any(each.state is NoteState.ENDED for each in report.partitions):
        yield f"a topic whose way back has ended may refuse writes: look at its max.message.bytes on source {name}"
    if any(each.waits_for is not None for each in report.partitions):
        yield f"end each open transaction on source {name}: kafka-transactions.sh abort"
    if report.groups:
        yield f"set committed offsets of the named groups on source {name}, where reading again is not wanted"
    yield "make sure that no broker of the target comes back: it would take writes that the source lacks"
    yield f"start all clients with the addresses of source {name}: {source.bootstrap_servers}"
