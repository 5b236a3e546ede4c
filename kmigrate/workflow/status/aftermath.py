"""Tells what has become of a promote or rollback since its report, and what a person does next."""

from __future__ import annotations

from dataclasses import dataclass

from kmigrate.model.records import Action, GroupRecord, TopicRecord
from kmigrate.model.reports import Outcome, ReportedKind, ReportRecord
from kmigrate.model.state import State
from kmigrate.model.verified import standing
from kmigrate.model.words import advised, as_words

__all__ = ["Aftermath", "aftermath_of"]


@dataclass(frozen=True, slots=True)
class Aftermath:
    """The state of a reported topic or group as of now."""

    phase: str
    """Present phase; '' if the link no longer mirrors the topic or group."""
    newest: bool
    """True if no later request was made for the topic or group."""
    late_records: int
    """Number of records that the source took at or beyond the barrier."""
    late_missing: int
    """Number of these records that the target lacks."""
    misplaced: int
    """Number of members of the group that were seen at the cluster that does not serve the group."""
    verified: int
    """Number of partitions in which `verify` has found the copy equal up to the barrier."""
    next_step: str
    """Next step of a person."""


def aftermath_of(report: ReportRecord, state: State) -> Aftermath:
    """Return what the state log says of the reported topic or group as of now."""
    is_topic = report.what is ReportedKind.TOPIC
    now = (state.topic if is_topic else state.group)(report.link, report.name)
    late = state.late(report.link, report.name) if is_topic else None
    writes = list(late.partitions.values()) if late is not None else []
    missing = sum(each.lost for each in writes)
    verified = _verified(report, state) if isinstance(now, TopicRecord) else 0
    seen = state.misplaced(report.link, report.name)
    newest = now is not None and now.asked == report.asked
    return Aftermath(
        phase=now.phase if now is not None else "",
        newest=newest,
        late_records=sum(each.records for each in writes),
        late_missing=missing,
        misplaced=0 if is_topic else len(seen.members) + seen.more_members,
        verified=verified,
        next_step=_next_step(report, now, newest, missing, verified),
    )


def _verified(report: ReportRecord, state: State) -> int:
    """Count the partitions that a check has found equal up to the barrier."""
    record, link = state.topic(report.link, report.name), state.link(report.link)
    if record is None or link is None:
        return 0
    ranges = standing(state.verified(report.link, report.name), link, record)
    return sum(
        partition in ranges and ranges[partition].end >= barrier.offset for partition, barrier in record.barrier.items()
    )


def _next_step(
    report: ReportRecord, now: TopicRecord | GroupRecord | None, newest: bool, missing: int, verified: int
) -> str:
    noun, link, name = report.what, report.link, report.name
    if now is None:
        return f"link {link} does not mirror {noun} {name} any more: kmigrate status"
    if not newest:
        return f"a later request was made: {advised('report show', link, name)}"
    if report.outcome is Outcome.GIVEN_UP:
        return report.way_on or advised(_verb(report), link, name)
    if report.action is Action.ROLLBACK:
        return f"when the time has come: {advised(_verb(report, Action.PROMOTE), link, name)}"
    if isinstance(now, GroupRecord):
        return f"kmigrate group show {as_words(name)}"
    if missing:
        return f"the target lacks {missing:,} late records: {advised('promote --on-late copy', link, name)}"
    if verified < len(now.barrier):
        return advised("verify", link, name)
    return f"when all topics and groups are promoted: kmigrate link finish {link}"


def _verb(report: ReportRecord, action: Action | None = None) -> str:
    verb = str(action or report.action)
    return f"group {verb}" if report.what is ReportedKind.GROUP else verb
