"""`promote --not-before`, `--postpone`, `--when-ready`, `--deadline` and `--release`: promotes at their time.

A schedule stands in the topic's record, so the controller carries the promote out, whatever becomes of the call. The
guards of a promote are asked when the time has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kmigrate.model.lifecycle import PROMOTING
from kmigrate.model.moments import utc_text
from kmigrate.model.records import Schedule, TopicRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.promote import coupled_findings
from kmigrate.workflow.verbs.proposal import Judged, Proposal, propose, refuse_if

__all__ = ["release_promote", "released", "schedule_promote", "schedule_text"]


async def schedule_promote(
    connections: Connections, link_name: str | None, topics: Sequence[str], schedule: Schedule
) -> Proposal:
    """Propose to promote topics together at a later time; topics that transactions write with them have to be named."""
    link = resolve_link(connections.log.state, link_name)
    judged = Judged.topics("promote", link.name, _guard, partial(_scheduled, schedule))
    records, found = judged.look(connections.log.state, topics)
    found += coupled_findings(connections.log.state, link, list(records))
    refuse_if(judged.verb, *found)
    what = schedule_text(schedule)
    writes = [(f"promote {topic}, {what}", judged.write(topic)) for topic in records]
    return propose(connections.log, judged.verb, found, writes)


def _scheduled(schedule: Schedule, record: TopicRecord) -> TopicRecord:
    return replace(record, schedule=schedule, reason="", way_on="")


def _guard(record: TopicRecord) -> Finding | None:
    """Return why no promote of the topic can, or need, be scheduled."""
    if record.at_target:
        return ok("already-promoted", f"topic {record.topic} is promoted already")
    if record.phase in PROMOTING:
        return ok("under-way", f"the promote of topic {record.topic} is under way: {record.phase}")
    return None


async def release_promote(connections: Connections, link_name: str | None, topics: Sequence[str]) -> Proposal:
    """Propose to release postponed promotes; no cluster is asked except for the state log."""
    link = resolve_link(connections.log.state, link_name)
    judged = Judged.topics("promote", link.name, _not_postponed, released)
    records, found = judged.look(connections.log.state, topics)
    refuse_if(judged.verb, *found)
    writes = [(f"release the promote of {topic}", judged.write(topic)) for topic in records]
    return propose(connections.log, judged.verb, found, writes)


def released(record: TopicRecord) -> TopicRecord:
    """Return the record with a promote that waits for no release any more."""
    if record.schedule is None:
        return record
    return replace(record, schedule=replace(record.schedule, postponed=False))


def _not_postponed(record: TopicRecord) -> Finding | None:
    topic = record.topic
    if record.schedule is not None and record.schedule.postponed:
        return None
    if record.schedule is not None or record.phase in PROMOTING or record.at_target:
        return ok("already", f"the promote of topic {topic} waits for no release")
    return refuse("not-postponed", f"no promote of topic {topic} is postponed", "kmigrate promote --postpone first")


def schedule_text(schedule: Schedule) -> str:
    """Return in words when the controller asks for the promote."""
    parts = []
    if schedule.postponed:
        file = f" or {schedule.release_file} exists" if schedule.release_file else ""
        parts.append(f"once a person releases it{file}")
    if schedule.not_before_ms:
        parts.append(f"not before {utc_text(schedule.not_before_ms)}")
    if schedule.deadline_ms:
        parts.append(f"tried again until {utc_text(schedule.deadline_ms)}")
    return ", ".join(parts) or "at once"
