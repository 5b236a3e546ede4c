"""`promote` on topics, and `promote --cancel`, which takes back a promote that still waits.

A cancelled promote ends as at its time-out: in one record, with the reason. From the fence on, the controller alone
ends a promote, within seconds: writers wait, and each step rests on the step before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable
from kmigrate.model.coupling import coupled_topics
from kmigrate.model.lifecycle import (
    BEHIND_FENCE,
    PROMOTING,
    ROLLING_BACK,
    GroupPhase,
    TopicEvent,
    TopicPhase,
    advance_topic,
)
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import Action, Asked, LinkRecord, PromoteTerms, TopicRecord
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.model.stops import DISK_LOW
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.control_markers import marker_findings
from kmigrate.workflow.base.plan import Finding, Level, ok, refuse, warn
from kmigrate.workflow.base.running import until_mirroring
from kmigrate.workflow.groups.misplaced import promoted_group_findings
from kmigrate.workflow.groups.readers import reading_groups
from kmigrate.workflow.promote.denying import mirror_principals
from kmigrate.workflow.promote.direct_writers import Straggler, look_for_direct_writers
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.promote.sealing import Sealer, strays
from kmigrate.workflow.promote.transactions import forced_aborts
from kmigrate.workflow.status.lags import lost_beginning
from kmigrate.workflow.verbs.groups import coupled_groups, judged_promote, promote_guards, unmirrored_readers
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.mirror import setting_guards
from kmigrate.workflow.verbs.proposal import Judged, Proposal, propose, refuse_if
from kmigrate.workflow.verbs.routers import unheard_routers
from kmigrate.workflow.verbs.way_back import denial_findings, way_back_findings, without_way_back

__all__ = ["cancel_promote", "coupled_findings", "direct_findings", "judged_topics", "promote_topics"]

_MOST = 20
"""Maximum number of direct writers that are named; those in the way come first."""
_DIRECT_NEXT = "restart that producer with the router's address; where its writes may be lost: --accept-direct-writers"


async def promote_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    *,
    straggler_window_s: float = 5.0,
    wait_s: float = 0.0,
    accept_misplaced: bool = False,
    scheduled: bool = False,
) -> Proposal:
    """Propose to promote topics by the controller; guards that time may lift are asked again for `wait_s` seconds.

    A promote ends the topics' schedules, but for a promote that is `scheduled` with a deadline.
    """
    deadline, longer = monotonic() + wait_s, 0.0
    while True:
        try:
            return await _promote_topics(
                connections,
                link_name,
                topics,
                terms,
                straggler_window_s,
                accept_misplaced=accept_misplaced,
                scheduled=scheduled,
            )
        except Refused as refused:
            if refused.ref not in _PASSING or monotonic() > deadline:
                raise
            if wait_s and not longer and refused.ref == "direct-writers":
                longer = await _silence_s(connections, link_name, topics, straggler_window_s)
                deadline = max(deadline, monotonic() + min(longer, _MOST_SILENCE_S))
        await sleep(0.25)


_PASSING = frozenset({"direct-writers", "member-on-source", "not-mirroring"})
"""Refusals that time alone may lift."""
_MOST_SILENCE_S = 60.0
"""Longest silence of direct writers that a promote waits for; a longer silence refuses at once."""


async def _silence_s(connections: Connections, link_name: str | None, topics: Sequence[str], window_s: float) -> float:
    """Return how long the direct writers have to stay silent until none is in the way."""
    link = resolve_link(connections.log.state, link_name)
    source, _ = await connections.source(link)
    records = [record for topic in topics if (record := connections.log.state.topic(link.name, topic)) is not None]
    found = [each for r in records for each in await look_for_direct_writers(connections.log, source, r, window_s)]
    return 1.0 + max((each.left_s for each in found if each.in_the_way), default=0.0)


async def _promote_topics(
    connections: Connections,
    link_name: str | None,
    topics: Sequence[str],
    terms: PromoteTerms,
    straggler_window_s: float,
    *,
    accept_misplaced: bool,
    scheduled: bool,
) -> Proposal:
    link = resolve_link(connections.log.state, link_name)
    final: dict[str, list[str]] = {}
    """Reasons by topic why the promote has no way back."""

    judged = judged_topics(connections, link.name, terms, final, scheduled=scheduled)
    records, found = judged.look(connections.log.state, topics)
    if not records:
        return propose(connections.log, judged.verb, found)
    names, new = list(records), list(records.values())
    source, source_admin = await connections.source(link)
    coupled = coupled_groups(connections.log.state, link.name, names)
    with_them = [group for group in coupled if group.phase is not GroupPhase.PROMOTED]
    found += coupled_findings(connections.log.state, link, names)
    found += await reading_groups(connections.log.state, link.name, names, source)
    found += await promoted_group_findings(
        connections, link, source, topics=names, accepted=accept_misplaced, verb=advised("promote", link.name, *names)
    )
    for group in with_them:
        found += await promote_guards(connections, link, group)
    for record in new:
        looked = await look_for_direct_writers(connections.log, source, record, straggler_window_s)
        found += direct_findings(looked, accepted=terms.accept_direct)
    found += await _cut_copies(connections, source, new)
    found += unheard_routers(connections.log)
    found += await _seal_findings(connections, source, source_admin, new)
    found += await setting_guards(connections, link, source)
    refuse_if(judged.verb, *found)
    final |= await without_way_back(connections, source, source_admin, new, terms)
    if terms.way_back:
        found += way_back_findings(link.name, final)
        mirrors = mirror_principals(connections.log, link.name)
        found += await denial_findings(source, link, final, mirrors)
    found += [each for record in new if record.generation for each in forced_aborts(connections.log.state, record)]
    found += await _groups_left_behind(connections, link, source, source_admin, names)
    found += await marker_findings(connections.target, connections.target_admin, link, new, finish=False)
    groups = judged_promote(link.name, terms.asked_by, connections.log.now_ms)
    of_topics = [(f"promote {topic}", judged.write(topic)) for topic in names]
    of_groups = [
        (f"promote group {g.group}, whose positions their transactions commit", groups.write(g.group))
        for g in with_them
    ]
    changes = [change for change, _ in (*of_topics, *of_groups)]
    return propose(connections.log, judged.verb, found, [*of_groups, *of_topics], changes)


def judged_topics(
    connections: Connections,
    link: str,
    terms: PromoteTerms,
    final: Mapping[str, Sequence[str]],
    *,
    scheduled: bool = False,
) -> Judged[TopicRecord]:
    """Return the promote of single topics of a link; `final` has the reasons by topic why there is no way back.

    A schedule with a deadline stays in the record, for the next try.
    """

    def change(record: TopicRecord) -> TopicRecord:
        phase = advance_topic(record.phase, TopicEvent.PROMOTE_ASKED)
        asked = Asked(Action.PROMOTE, connections.log.now_ms(), terms.asked_by)
        way_back = terms.way_back and not final.get(record.topic, ["not judged"])
        own = replace(terms, way_back=way_back)
        again = record.schedule if scheduled and record.schedule is not None and record.schedule.deadline_ms else None
        changed = replace(record, phase=phase, since_ms=now_ms(), terms=own, asked=asked, schedule=again)
        return replace(changed, reason="", way_on="")

    return Judged.topics("promote", link, partial(_promote_guard, connections.log), change)


async def _seal_findings(
    connections: Connections, source: ClusterClient, admin: Admin, records: Sequence[TopicRecord]
) -> list[Finding]:
    """Refuse topics that must be sealed for a router's earlier process, where the source does not allow the seal."""
    earlier = strays(connections.log.state)
    found: list[Finding] = []
    for record in records if earlier else ():
        try:
            await Sealer(connections.log, source, admin).try_rights(record, earlier)
        except BrokerRefused as refused:
            found.append(refuse(refused.ref, refused.what, refused.next_step))
        except Unreachable as away:
            found.append(warn(away.ref, away.what, away.next_step))
    return found


async def _cut_copies(connections: Connections, source: ClusterClient, records: Sequence[TopicRecord]) -> list[Finding]:
    """Return warnings for copies whose beginning somebody has deleted, perhaps on purpose."""
    of = {(record.topic, partition): record for record in records for partition in range(record.partitions)}
    try:
        asked = (cluster.list_offsets(dict.fromkeys(of, EARLIEST)) for cluster in (connections.target, source))
        mine, theirs = await together(*asked)
    except KmigrateError:
        return []  # a promote needs these clusters anyway, and asks them again
    cut = {key: lost_beginning(record, key, mine, theirs) for key, record in of.items()}
    return [
        warn(
            "copy-cut",
            f"{topic}-{partition}: {why}",
            f"where that was a mistake, mirror it anew: {advised('topic forget', of[topic, partition].link, topic)}",
        )
        for (topic, partition), why in cut.items()
        if why
    ]


def _promote_guard(log: StateLog, record: TopicRecord) -> Finding | None:
    """Return why the topic's own state keeps a promote back; None where the promote may go on."""
    topic, link = record.topic, record.link
    if record.phase is TopicPhase.PROMOTED:
        return ok("already-promoted", f"topic {topic} is promoted already")
    if record.phase in ROLLING_BACK:
        what = f"the rollback of topic {topic} is under way: {record.phase}"
        return refuse("not-mirroring", what, "wait until the rollback has ended: kmigrate status --watch")
    if record.phase in PROMOTING:
        return ok("under-way", f"the promote of topic {topic} is under way: {record.phase}")
    if record.phase is not TopicPhase.MIRRORING:
        return refuse(
            "not-mirroring",
            f"topic {topic} is {record.phase}" + (f": {record.reason}" if record.reason else ""),
            until_mirroring(log, link),
        )
    if record.paused:
        resume = advised("topic resume", link, topic)
        return refuse("topic-paused", f"topic {topic} is paused", resume)
    if low := _disk_low(log, record):
        return refuse(
            DISK_LOW,
            f"topic {topic} is not copied on: {low}",
            "make room on the target's brokers; kmigrate status says when the copy goes on",
        )
    for partition, stop in sorted(record.stops.items()):
        return refuse(
            "partition-stopped",
            f"partition {partition} of {topic} has stopped: {stop.text}",
            stop.way_on(record.link, topic, partition),
        )
    return None


def _disk_low(log: StateLog, record: TopicRecord) -> str:
    """Name the log directories of the target that a topic's copy waits for, because they lack room; '' for none."""
    mirrors = [mirror for mirror in log.alive(MirrorPresence) if mirror.link == record.link]
    seen = progress_of(log.state, record, mirrors)
    if not any(DISK_LOW in each.trouble for each in seen.values()):
        return ""
    return next((mirror.disk_low for mirror in mirrors if mirror.disk_low), "the target has too little room")


def coupled_findings(state: State, link: LinkRecord, topics: Collection[str]) -> list[Finding]:
    """Return a refusal for each topic that is written in the same transactions and that nobody has asked to promote."""
    found: list[Finding] = []
    for topic, name in sorted(coupled_topics(state.couplings(link.name), topics).items()):
        record = state.topic(link.name, topic)
        if record is None or record.phase in (TopicPhase.PROMOTED, *PROMOTING):
            continue
        promote = advised("promote", link.name, *sorted({*topics, topic}))
        found.append(
            refuse(
                "coupled-topics",
                f"{topic} is written in the same transactions (transactional id {name})",
                f"promote them together: {promote}",
            )
        )
    return found


async def _groups_left_behind(
    connections: Connections, link: LinkRecord, source: ClusterClient, source_admin: Admin, topics: Collection[str]
) -> list[Finding]:
    """Warn of unmirrored groups with positions in a topic: a member that reads on begins without a position.

    No refusal: the group may have been given up, or, where groups cannot be listed, have nothing to do with the topic.
    """
    if not topics:
        return []
    try:
        readers = await unmirrored_readers(connections, source, source_admin)
    except KmigrateError as error:
        what = f"which groups read the topics and are not mirrored could not be asked: {error.what}"
        return [warn("readers-unknown", what)]
    return [
        warn(
            "group-not-mirrored",
            f"groups that read {topic} and are not mirrored lose their place: {', '.join(readers[topic])}",
            f"before the promote: {advised('group mirror', link.name, *readers[topic])}",
        )
        for topic in topics
        if topic in readers
    ]


def direct_findings(found: Sequence[Straggler], *, accepted: bool) -> list[Finding]:
    """Name a topic's direct writers, also silent writers that may return; recent writers refuse unless accepted."""
    lately = [each for each in found if each.in_the_way]
    gone = sorted((each for each in found if not each.in_the_way), key=lambda each: each.silent_ms)
    level: Level = "warn" if accepted else "refuse"
    ref = "direct-writers-accepted" if accepted else "direct-writers"
    named = [Finding(level, ref, each.reason, "" if accepted else _DIRECT_NEXT) for each in lately[:_MOST]]
    if len(lately) > _MOST:
        named.append(
            Finding(level, ref, f"{len(lately) - _MOST} more direct writers of {lately[0].topic}", _DIRECT_NEXT)
        )
    room = max(0, _MOST - len(lately))
    seen = "make sure that this producer has the router's address by now"
    named += [warn("direct-writers-seen", each.text, seen) for each in gone[:room]]
    if len(gone) > room:
        what = f"{len(gone) - room} more direct writers of {gone[0].topic} have been seen during the link"
        named.append(warn("direct-writers-seen", what, f"kmigrate topic show {gone[0].topic}"))
    return named


async def cancel_promote(
    connections: Connections, link_name: str | None, topics: Sequence[str], *, who: str
) -> Proposal:
    """Propose to take waiting promotes back; no cluster is asked except for the state log."""
    state = connections.log.state
    link = resolve_link(state, link_name).name
    reason = f"cancelled: taken back by {who}"
    judged = Judged.topics("promote", link, _cancel_guard, lambda record: _cancelled(record, reason))
    waiting, found = judged.look(state, topics)
    found += _left_waiting(state, link, waiting)
    writes = [(f"take back the promote of {topic}", judged.write(topic)) for topic in waiting]
    return propose(connections.log, judged.verb, found, writes)


def _cancelled(record: TopicRecord, reason: str) -> TopicRecord:
    """Return the record without its promote, which waits for the fence or is scheduled."""
    if record.phase is TopicPhase.PROMOTE_PENDING:
        return replace(given_up(record, reason), schedule=None)
    return replace(record, schedule=None, since_ms=now_ms(), reason=reason, way_on="")


def _cancel_guard(record: TopicRecord) -> Finding | None:
    """Return why a promote cannot, or need not, be taken back; None where the promote waits."""
    topic = record.topic
    if record.at_target:
        rollback = advised("rollback", record.link, topic)
        way_on = rollback if record.copied_back else "its clients go on at the target: kmigrate status"
        return refuse("already-promoted", f"topic {topic} is promoted: nothing waits that could be cancelled", way_on)
    if record.phase in BEHIND_FENCE:
        return refuse(
            "fence-begun",
            f"topic {topic} is {record.phase}: its promote is over in seconds, one way or the other",
            "see how it ends: kmigrate status --watch",
        )
    if record.phase is not TopicPhase.PROMOTE_PENDING and record.schedule is None:
        return ok("already", f"no promote of topic {topic} is asked for: it is {record.phase}")
    return None


def _left_waiting(state: State, link: str, topics: Collection[str]) -> list[Finding]:
    """Return findings for the rest of the unit: coupled topics wait on; the controller gives up groups."""
    coupled = coupled_topics(state.couplings(link), topics)
    left = {
        topic: name
        for topic, name in sorted(coupled.items())
        if (record := state.topic(link, topic)) is not None and record.phase is TopicPhase.PROMOTE_PENDING
    }
    return [
        warn(
            "coupled-topics",
            f"{topic} is written in the same transactions (transactional id {name}): its promote waits on for theirs",
            f"take it back, too: {advised('promote --cancel', link, *left)}",
        )
        for topic, name in left.items()
    ] + [
        warn("coupled-group", f"the promote of group {group.group} goes with theirs, and is given up, too")
        for group in coupled_groups(state, link, topics)
        if group.phase is GroupPhase.PROMOTING
    ]
