"""`promote --cancel`: takes back a promote that still waits, for a person.

Such a promote ends as at its time-out: in one record, with the reason. From the fence on, the controller alone ends a
promote, within seconds: writers wait, and each step rests on the step before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmigrate.model.coupling import coupled_topics
from kmigrate.model.lifecycle import BEHIND_FENCE, GroupPhase, TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.model.words import advised
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.plan import Finding, ok, refuse, warn
from kmigrate.workflow.promote.outcome import given_up
from kmigrate.workflow.verbs.groups import coupled_groups
from kmigrate.workflow.verbs.links import resolve_link
from kmigrate.workflow.verbs.proposal import Judged, Proposal, propose

__all__ = ["cancel_promote"]


async def cancel_promote(
    connections: Connections, link_name: str | None, topics: Sequence[str], *, who: str
) -> Proposal:
    """Propose to take waiting promotes back; no cluster is asked except for the state log."""
    state = connections.log.state
    link = resolve_link(state, link_name).name
    judged = Judged.topics("promote", link, _guard, lambda record: given_up(record, f"cancelled: taken back by {who}"))
    waiting, found = judged.look(state, topics)
    found += _left_waiting(state, link, waiting)
    writes = [(f"take back the promote of {topic}", judged.write(topic)) for topic in waiting]
    return propose(connections.log, judged.verb, found, writes)


def _guard(record: TopicRecord) -> Finding | None:
    """Return why a promote cannot, or need not, be taken back; None where the promote waits."""
    topic = record.topic
    if record.phase is TopicPhase.PROMOTED:
        what = f"topic {topic} is promoted: there is no way back"
        return refuse("already-promoted", what, "its clients go on at the target: kmigrate status")
    if record.phase in BEHIND_FENCE:
        return refuse(
            "fence-begun",
            f"topic {topic} is {record.phase}: its promote is over in seconds, one way or the other",
            "see how it ends: kmigrate status --watch",
        )
    if record.phase is not TopicPhase.PROMOTE_PENDING:
        return ok("already", f"no promote of topic {topic} is asked for: it is {record.phase}")
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
