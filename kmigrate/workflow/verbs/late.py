"""`promote --seal`, `--no-seal`, `--on-late` and `--no-way-back` on promoted topics; findings about late writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kmigrate.errors import KmigrateError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import LatePolicy, LinkRecord, OnLate, PromoteTerms, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised, as_words
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, refuse, warn
from kmigrate.workflow.promote.late_findings import LateFound, find_late, late_of
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.proposal import Proposal, Write, propose
from kmigrate.workflow.verbs.way_back import ending

__all__ = ["Treatment", "late_findings", "late_guards", "treat_promoted"]

_PATIENCE_S = 12.0
_MOST = 20
"""Maximum number of partitions that findings name."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """The treatment of promoted topics' sources that a person asks for; None: as before."""

    seal: bool | None = None
    on_late: OnLate | None = None
    ends_way_back: bool = False
    who: str = ""

    @property
    def asked(self) -> bool:
        return self.seal is not None or self.on_late is not None or self.ends_way_back


async def treat_promoted(
    connections: Connections, link_name: str | None, topics: Sequence[str], asked: Treatment
) -> Proposal | None:
    """Propose how promoted topics' sources are treated; None where a topic is not promoted, or nothing is asked for."""
    link = resolve_link(connections.log.state, link_name)
    records = [connections.log.state.topic(link.name, topic) for topic in dict.fromkeys(topics)]
    promoted = [record for record in records if record is not None and record.phase is TopicPhase.PROMOTED]
    if not asked.asked or len(promoted) < len(records):
        return None
    wanted = [(record, _wanted(record.late, asked.seal, asked.on_late)) for record in promoted]
    writes: list[Write] = [(_change(*each), partial(_write, *each)) for each in wanted if each[1] != each[0].late]
    if asked.ends_way_back:
        open_ = [record for record in promoted if record.copied_back]
        writes += ending(connections.log, open_, f"ended by {asked.who}")
    return propose(connections.log, "promote", (), writes)


def _wanted(policy: LatePolicy, seal: bool | None, on_late: OnLate | None) -> LatePolicy:
    return LatePolicy(policy.seal if seal is None else seal, on_late or policy.on_late)


def _change(record: TopicRecord, wanted: LatePolicy) -> str:
    seal = "the source refuses writes" if wanted.seal else "the source takes writes"
    return f"of {record.topic}: {seal}; late records: {wanted.on_late}"


def _write(record: TopicRecord, wanted: LatePolicy, state: State) -> TopicRecord | None:
    now = state.topic(record.link, record.topic)
    if now is None or now.phase is not TopicPhase.PROMOTED or now.late == wanted:
        return None
    return replace(now, terms=replace(now.terms or PromoteTerms(now_ms()), late=wanted))


async def late_guards(connections: Connections, link: LinkRecord, *, accepted: bool) -> list[Finding]:
    """Return the late records that the source holds now, as findings: `link finish` ends the watch."""
    records = connections.log.state.topics(link.name)
    if not any(record.phase is TopicPhase.PROMOTED and record.barrier for record in records):
        return []
    found, why = tuple(each for record in records for each in late_of(connections.log.state, record, {})), ""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            source, _ = await connections.source(link)
            found, why = await find_late(connections.log.state, source, records)
    except KmigrateError as error:
        why = error.what
    except TimeoutError:
        why = f"no answer within {_PATIENCE_S:g} s"
    findings = late_findings(link.name, found, accepted=accepted)
    if why:
        what = f"the source cannot be asked for what was written there after the flips: {why}"
        findings.append(warn("source-unasked", what, "repeat the command once the source answers"))
    return findings


def late_findings(link: str, found: Iterable[LateFound], *, accepted: bool) -> list[Finding]:
    """Name late records: a record that the target lacks refuses, unless a person accepts the loss."""
    found = sorted(found, key=lambda each: not each.missing)
    named = [
        refuse("late-writes", each.text, _next(link, each.topic))
        if each.missing and not accepted
        else warn("late-writes-accepted" if each.missing else "late-writes-handled", each.text)
        for each in found[:_MOST]
    ]
    if len(found) > _MOST:
        named.append(warn("late-writes-more", f"{len(found) - _MOST} more partitions have late records"))
    return named


def _next(link: str, topic: str) -> str:
    copy = advised("promote --on-late copy", link, topic)
    accept = f"kmigrate link finish {as_words(link)} --accept-late"
    return f"stop that producer, then: {copy}, or --on-late quarantine; where the records may be lost: {accept}"
