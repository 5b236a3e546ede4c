"""`promote --cancel`: takes back a promote that still waits, for a person.

Such a promote ends as at its time-out: in one record, with the reason. From the fence on, the controller alone ends a
promote, within seconds: writers wait, and each step rests on the step before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from kmigrate.model.coupling import coupled_topics
from kmigrate.model.lifecycle import BEHIND_FENCE, GroupPhase, TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, Plan
from kmigrate.workflow.base.writes import write_each
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.verbs.groups import coupled_groups
from kmigrate.workflow.verbs.links import resolve_link

__all__ = ["cancel_promote"]


async def cancel_promote(
    connections: Connections, link_name: str | None, topics: Sequence[str], *, who: str, plan: bool = False
) -> Plan:
    """Take waiting promotes back; no cluster is asked except for the state log."""
    state = connections.log.state
    link = resolve_link(state, link_name).name
    found: list[Finding] = []
    waiting: list[TopicRecord] = []
    for topic in dict.fromkeys(topics):
        record = state.topic(link, topic)
        against = _guard(topic, record)
        if against is not None:
            found.append(against)
        elif record is not None:
            waiting.append(record)
    found += _left_waiting(state, link, [record.topic for record in waiting])
    made = Plan.of("promote", [f"take back the promote of {record.topic}" for record in waiting], found)
    made.refuse()
    if plan:
        return made
    writes = (partial(_take_back, record, f"cancelled: taken back by {who}") for record in waiting)
    await write_each(connections.log, zip(made.changes, writes, strict=True))
    return made.done()


def _take_back(record: TopicRecord, reason: str, state: State) -> TopicRecord | None:
    """Return the record without its promote, judged on the current record.

    The fence may have begun since the guards looked.
    """
    now = state.topic(record.link, record.topic)
    against = _guard(record.topic, now)
    if against is not None or now is None:
        Plan.of("promote", [], [against] if against is not None else []).refuse()
        return None
    return given_up(now, reason)


def _guard(topic: str, record: TopicRecord | None) -> Finding | None:
    """Return why a promote cannot, or need not, be taken back; None where the promote waits."""
    if record is None:
        return Finding("refuse", "not-mirrored", f"topic {topic} is not mirrored by this link", "kmigrate topic list")
    if record.phase is TopicPhase.PROMOTED:
        what = f"topic {topic} is promoted: there is no way back"
        return Finding("refuse", "already-promoted", what, "its clients go on at the target: kmigrate status")
    if record.phase in BEHIND_FENCE:
        return Finding(
            "refuse",
            "fence-begun",
            f"topic {topic} is {record.phase}: its promote is over in seconds, one way or the other",
            "see how it ends: kmigrate status --watch",
        )
    if record.phase is not TopicPhase.PROMOTE_PENDING:
        return Finding("ok", "already", f"no promote of topic {topic} is asked for: it is {record.phase}")
    return None


def _left_waiting(state: State, link: str, topics: Collection[str]) -> list[Finding]:
    """Return findings for what was to be promoted in one unit with these topics.

    Coupled topics wait on; coupled groups are given up by the controller.
    """
    coupled = coupled_topics(state.couplings(link), topics)
    left = {
        topic: name
        for topic, name in sorted(coupled.items())
        if (record := state.topic(link, topic)) is not None and record.phase is TopicPhase.PROMOTE_PENDING
    }
    return [
        Finding(
            "warn",
            "coupled-topics",
            f"{topic} is written in the same transactions (transactional id {name}): its promote waits on for theirs",
            f"take it back, too: {advised('promote --cancel', link, *left)}",
        )
        for topic, name in left.items()
    ] + [
        Finding("warn", "coupled-group", f"the promote of group {group.group} goes with theirs, and is given up, too")
        for group in coupled_groups(state, link, topics)
        if group.phase is GroupPhase.PROMOTING
    ]
