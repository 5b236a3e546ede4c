"""`rollback` on topics, and `rollback --cancel`, which takes back a rollback that still waits.

Groups go back with the topics whose transactions commit their positions. A cancelled rollback ends as at its time-out:
in one record, with the reason. From the fence on, the controller alone ends a rollback, within seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kmigrate.model.coupling import coupled_topics
from kmigrate.model.lifecycle import (
    ROLLBACK_BEHIND_FENCE,
    ROLLING_BACK,
    GroupPhase,
    TopicEvent,
    TopicPhase,
    advance_topic,
)
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import Action, Asked, LinkRecord, RollbackTerms, TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.net.clock import now_ms
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.promote.rollback import MOST_ROLLBACKS, given_back
from kmigrate.workflow.promote.transactions import forced_aborts, left_behind, unrecorded_writers
from kmigrate.workflow.verbs.group_rollback import judged_group_rollback, rollback_guards
from kmigrate.workflow.verbs.groups import coupled_groups
from kmigrate.workflow.verbs.links import refuse_finished, resolve_link
from kmigrate.workflow.verbs.proposal import Judged, Proposal, propose

__all__ = ["cancel_rollback", "roll_back_topics"]


async def roll_back_topics(
    connections: Connections, link_name: str | None, topics: Sequence[str], terms: RollbackTerms, *, who: str
) -> Proposal:
    """Propose to roll topics back by the controller: writes go to the source again, and the topics are mirrored."""
    link = resolve_link(connections.log.state, link_name)

    def change(record: TopicRecord) -> TopicRecord:
        way = record.way_back
        way = replace(way, terms=terms, reason="", way_on="") if way is not None else None
        phase = advance_topic(record.phase, TopicEvent.ROLLBACK_ASKED)
        asked = Asked(Action.ROLLBACK, connections.log.now_ms(), who)
        return replace(record, phase=phase, since_ms=now_ms(), way_back=way, asked=asked)

    judged = Judged.topics("rollback", link.name, _guard, change)
    records, found = judged.look(connections.log.state, topics)
    if not records:
        return propose(connections.log, judged.verb, found)
    refuse_finished(link)
    found += _unheard_routers(connections.log)
    found += _left_out(connections.log.state, link.name, topics)
    for record in records.values():
        if names := left_behind(connections.log.state, record):
            found.append(refuse("no-way-back", names, "its promote is final; the topic stays at the target"))
        found += forced_aborts(connections.log.state, record)
        if names := await unrecorded_writers(connections.log.state, connections.target, record):
            found.append(refuse("no-way-back", names, "its promote is final; the topic stays at the target"))
        found += [*await _partitions(connections, record), *_let_in(link, record)]
    with_them = [
        group
        for group in coupled_groups(connections.log.state, link.name, list(records))
        if group.phase is GroupPhase.PROMOTED
    ]
    for group in with_them:
        found += await rollback_guards(connections, link, group)
    groups = judged_group_rollback(connections.log, link.name, who)
    of_topics = [(f"roll back {topic}", judged.write(topic)) for topic in records]
    of_groups = [
        (f"roll back group {each.group}, whose positions their transactions commit", groups.write(each.group))
        for each in with_them
    ]
    changes = [change for change, _ in (*of_topics, *of_groups)]
    return propose(connections.log, judged.verb, found, [*of_groups, *of_topics], changes)


def _guard(record: TopicRecord) -> Finding | None:
    """Return why the topic's own state keeps a rollback back, or needs none; None where the rollback may go on."""
    topic = record.topic
    if record.phase in ROLLING_BACK:
        return ok("under-way", f"the rollback of topic {topic} is under way: {record.phase}")
    if record.phase is TopicPhase.MIRRORING and record.generation:
        return ok("already-rolled-back", f"topic {topic} is rolled back already: it is mirrored")
    if record.phase is not TopicPhase.PROMOTED:
        return refuse("not-promoted", f"topic {topic} is {record.phase}: only a promoted topic can be rolled back")
    return _against(record)


def _against(record: TopicRecord) -> Finding | None:
    """Return why a promoted topic cannot be rolled back now; None where it can."""
    topic, way = record.topic, record.way_back
    if way is None or not way.open:
        why = "was promoted without a way back" if way is None else f"has no way back any more: {way.ended}"
        return refuse("no-way-back", f"topic {topic} {why}", "its promote is final; its clients go on at the target")
    if record.generation >= MOST_ROLLBACKS:
        what = f"topic {topic} was rolled back {record.generation} times: no further generation of producer ids is left"
        return refuse("no-way-back", what, "its promote is final; its clients go on at the target")
    if record.unsettled:
        what = f"topic {topic} has not got its own configs back{f': {record.reason}' if record.reason else ''}"
        return refuse("topic-not-settled", what, "a running controller puts them back: kmigrate status; then repeat")
    if record.seal is not None:
        names = ", ".join(sorted(set(record.seal.routers.values())))
        what = f"the source does not take writes to topic {topic}, in place of router {names}"
        return refuse("topic-sealed", what, f"start router {names} again, or: kmigrate router forget NAME --dead")
    for partition, stop in sorted(way.stops.items()):
        what = f"the copy of partition {partition} of {topic} to the source has stopped: {stop.text}"
        return refuse("partition-stopped", what, advised("topic resume", record.link, topic))
    return None


def _unheard_routers(log: StateLog) -> list[Finding]:
    """Refuse while a process of a router may write to the target unseen: no seal replaces its acknowledgement."""
    alive = {presence.instance for presence in log.alive(RouterPresence)}
    names = {router.name for router in log.state.routers() if router.instance not in alive}
    names |= {stray.name for stray in log.state.strays()}
    return [
        refuse(
            "router-unheard",
            f"a process of router {name} may live and does not answer: nobody knows what it writes to the target",
            f"start it again, or, if it has ended: kmigrate router forget {name} --dead",
        )
        for name in sorted(names)
    ]


def _left_out(state: State, link: str, topics: Sequence[str]) -> list[Finding]:
    """Refuse to leave out topics that are written in the same transactions and can be rolled back, too."""
    found: list[Finding] = []
    for topic, name in sorted(coupled_topics(state.couplings(link), topics).items()):
        record = state.topic(link, topic)
        if record is not None and record.phase is TopicPhase.PROMOTED and record.copied_back:
            what = f"{topic} is written in the same transactions (transactional id {name})"
            together = advised("rollback", link, *sorted({*topics, topic}))
            found.append(refuse("coupled-topics", what, f"roll them back together: {together}"))
    return found


def _let_in(link: LinkRecord, record: TopicRecord) -> list[Finding]:
    """Name the principals that may write the topic at the source again, where deny entries keep them out."""
    if record.denied is None or not record.denied.may_exist:
        return []
    what = f"before the flip {record.denied.names} may write topic {record.topic} at {link.source.name} again"
    return [ok("writers-let-in", what)]


async def _partitions(connections: Connections, record: TopicRecord) -> list[Finding]:
    """Refuse where the target topic has got partitions since the promote: nothing copies these to the source."""
    info = await connections.target.topic(record.topic)
    if info is None or len(info.partitions) == record.partitions:
        return []
    count = len(info.partitions)
    what = f"topic {record.topic} has {count} partitions on the target, and {record.partitions} of them are copied"
    return [refuse("partitions-changed", what, "its promote is final; its clients go on at the target")]


async def cancel_rollback(
    connections: Connections, link_name: str | None, topics: Sequence[str], *, who: str
) -> Proposal:
    """Propose to take waiting rollbacks back; no cluster is asked except for the state log."""
    link = resolve_link(connections.log.state, link_name).name
    reason = f"cancelled: taken back by {who}"
    judged = Judged.topics("rollback", link, _cancel_guard, lambda record: given_back(record, reason))
    waiting, found = judged.look(connections.log.state, topics)
    found += [
        warn("coupled-group", f"the rollback of group {group.group} goes with theirs, and is given up, too")
        for group in coupled_groups(connections.log.state, link, list(waiting))
        if group.phase is GroupPhase.ROLLING_BACK
    ]
    writes = [(f"take back the rollback of {topic}", judged.write(topic)) for topic in waiting]
    return propose(connections.log, judged.verb, found, writes)


def _cancel_guard(record: TopicRecord) -> Finding | None:
    """Return why a rollback cannot, or need not, be taken back; None where the rollback waits."""
    topic = record.topic
    if record.phase in ROLLBACK_BEHIND_FENCE:
        return refuse(
            "fence-begun",
            f"topic {topic} is {record.phase}: its rollback is over in seconds, one way or the other",
            "see how it ends: kmigrate status --watch",
        )
    if record.phase is not TopicPhase.ROLLBACK_PENDING:
        return ok("already", f"no rollback of topic {topic} is asked for: it is {record.phase}")
    return None
