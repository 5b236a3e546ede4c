"""The report on the source once the target is gone, for a person."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from kmigrate.cli.base.words import Text
from kmigrate.cli.views.tables import table
from kmigrate.cluster.transactions import OpenTransaction
from kmigrate.model.moments import utc_text
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.way_back_notes import NoteState
from kmigrate.net.clock import now_ms
from kmigrate.workflow.verbs.target_lost import GroupAtSource, PartitionAtSource, SourceFindings, UnitAtSource

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
    parts += [Text(line) for each in report.units for line in _unit(each)]
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
    if group.held:
        yield f"group {group.group}: a placeholder of kmigrate keeps members and commits out of it at the source"


def _unit(unit: UnitAtSource) -> Iterator[str]:
    """Return what the source holds of the transactions that write some topics."""
    more = f" and {unit.more_transactional_ids} more" if unit.more_transactional_ids else ""
    known = f"all that had ended by {utc_text(unit.whole_ms)} are whole at the source, and" if unit.whole_ms else ""
    yield (
        f"transactions of {', '.join(unit.transactional_ids)}{more} on {', '.join(unit.topics)}: "
        f"{known or 'nobody knows which are whole at the source;'} a later one may be there in part"
    )
    for group in unit.groups:
        yield (
            f"group {group}: its offsets were committed in these transactions, and what these have written is at the "
            "source: an application that starts at the group's committed offsets there writes that again"
        )


def _steps(report: SourceFindings, source: ClusterSettings) -> Iterator[str]:
    name = source.name
    if not report.is_complete:
        yield "records that are missing are on the target alone: keep its disks, and write these records again"
    if any(each.state is NoteState.ENDED for each in report.partitions):
        yield f"a topic whose way back has ended may refuse writes: look at its max.message.bytes on source {name}"
    for each in report.partitions:
        if each.waits_for is not None:
            yield _end_of(each.waits_for, each, source)
    if report.units:
        yield "compare the last transactions of each topic that is named above with what the application holds of them"
    if any(unit.groups for unit in report.units):
        yield (
            f"before such an application starts: set its group's offsets on source {name} behind the last record "
            "whose result is there"
        )
    if any(each.held for each in report.groups):
        yield (
            "let members into the named groups: repeat with --release-groups, "
            "or wait for up to 30 minutes after the last controller has stopped"
        )
    if report.groups:
        yield f"set committed offsets of the named groups on source {name}, where reading again is not wanted"
    yield "make sure that no broker of the target comes back: it would take writes that the source lacks"
    yield f"start all clients with the addresses of source {name}: {source.bootstrap_servers}"


def _end_of(waits: OpenTransaction, at: PartitionAtSource, source: ClusterSettings) -> str:
    """Return how a person ends the open transaction of a partition at the source."""
    abort = (
        f"kafka-transactions.sh --bootstrap-server {source.bootstrap_servers} abort "
        f"--topic {at.topic} --partition {at.partition} --start-offset {waits.offset}"
    )
    if waits.hanging:
        return abort
    ends = f"a producer that starts with transactional id {waits.transactional_id}" if waits.transactional_id else ""
    return (
        f"the transaction at {at.topic}-{at.partition} ends by its timeout"
        f"{f', or with {ends}' if ends else f'; if not: {abort}'}"
    )
