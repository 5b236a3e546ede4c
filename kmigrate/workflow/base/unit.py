"""A unit is promoted whole or goes back whole: topics that transactions write, and groups whose offsets they commit.

A  A topic of a unit is proven when all topics of the unit stand at their barriers (`promote.topic`, rules B and C).
B  One record decides: the first flip. That flip is written only if every other topic still has the record that was
   proven, and every group that follows is staged. The flip names all of them (`TopicRecord.unit`).
C  From that record on, no topic or group of the unit has a way back. The record holds all that the other flips need, so
   that the next process that drives them proves nothing anew. Routers hold a topic until its own flip, so no
   transaction begins in between.
D  The progress before that record is in the controller's memory only: after a crash all topics are proven anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.errors import Refused
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import PROMOTING, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, PromotedUnit, ProvenTopic, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, sleep
from kmigrate.state.log import StateLog

__all__ = [
    "UnitProgress",
    "decided",
    "group_decided",
    "not_asked_for",
    "not_ready_with",
    "not_staged",
    "unit_records",
    "unit_to_flip",
    "wait_for_unit",
]

_PAUSE_S = 0.005


@dataclass(slots=True)
class UnitProgress:
    """The progress of one controller's promotes that wait for each other, by link and topic (D)."""

    pending: set[tuple[str, str]] = field(default_factory=set)
    """Topics that wait only for their groups before they are fenced."""
    at_barrier: set[tuple[str, str]] = field(default_factory=set)
    proven: dict[tuple[str, str], tuple[TopicRecord, ProvenTopic]] = field(default_factory=dict)
    """Each proven topic, with the record that was proven."""

    def leave(self, link: str, topic: str) -> None:
        """Forget a topic whose promote is over, or begins anew."""
        self.pending.discard((link, topic))
        self.at_barrier.discard((link, topic))
        self.proven.pop((link, topic), None)


def unit_records(state: State, record: TopicRecord) -> tuple[list[TopicRecord], list[GroupRecord]]:
    """Return the other topics of a topic's unit that this link mirrors, and its followed groups that are not
    promoted."""
    names, groups = unit_of(state.couplings(record.link), [record.topic])
    topics = [found for name in sorted(names) if (found := state.topic(record.link, name)) is not None]
    known = [group for name in sorted(groups) if (group := state.group(record.link, name)) is not None]
    return topics, [g for g in known if g.mode is GroupMode.FOLLOW and g.phase is not GroupPhase.PROMOTED]


def not_staged(state: State, record: TopicRecord) -> str | None:
    """Return a coupled group whose offsets are not on the target yet; Refused where its promote was given up."""
    return _unstaged(unit_records(state, record)[1])


def _unstaged(groups: Iterable[GroupRecord]) -> str | None:
    for group in groups:
        if group.phase is GroupPhase.MIRRORED and group.reason:
            raise Refused("coupled-group", f"the promote of group {group.group} was given up: {group.reason}")
        if not group.staged:
            return f"the positions of group {group.group}, which its transactions commit, are not on the target yet"
    return None


def not_asked_for(state: State, record: TopicRecord) -> str | None:
    """Return a coupled topic that nobody has asked to promote."""
    return _unasked(record, unit_records(state, record)[0])


def _unasked(record: TopicRecord, others: Iterable[TopicRecord]) -> str | None:
    for other in others:
        if other.phase not in PROMOTING and other.phase is not TopicPhase.PROMOTED:
            why = f": {other.reason}" if other.reason else ""
            return f"{other.topic}, which is written together with {record.topic}, is not being promoted{why}"
    return None


def not_ready_with(state: State, record: TopicRecord, rendezvous: UnitProgress) -> str | None:
    """Return another topic of the unit that cannot be fenced yet.

    If this topic were fenced now, writers would wait behind its fence for that other topic.
    """
    for other in unit_records(state, record)[0]:
        if other.phase is TopicPhase.PROMOTE_PENDING and (other.link, other.topic) not in rendezvous.pending:
            return f"{other.topic}, which is written together with {record.topic}, is not ready"
    return None


async def wait_for_unit(log: StateLog, record: TopicRecord, rendezvous: UnitProgress, deadline: float) -> None:
    """Wait until every coupled topic stands at its barrier, too; a topic that is given up takes the others back."""
    while True:
        others, _ = unit_records(log.state, record)
        against = _unasked(record, others)
        if against is not None:
            raise Refused("coupled-topics", against)
        left = [other for other in others if other.phase is not TopicPhase.PROMOTED]
        waits = [other.topic for other in left if (other.link, other.topic) not in rendezvous.at_barrier]
        if not waits:
            return
        if monotonic() > deadline:
            raise Refused("coupled-topics", f"{', '.join(waits)} did not reach its barrier in time")
        await sleep(_PAUSE_S)


def unit_to_flip(state: State, record: TopicRecord, rendezvous: UnitProgress) -> PromotedUnit | None:
    """Return what is flipped with a topic (rule B); None while another topic of the unit is not as proven.

    Raises Refused where the promote of a topic or a group of the unit was given up.
    """
    others, groups = unit_records(state, record)
    for ref, against in (("coupled-topics", _unasked(record, others)), ("coupled-group", _unstaged(groups))):
        if against is not None:
            raise Refused(ref, against)
    topics: dict[str, ProvenTopic] = {}
    for other in others:
        if other.phase is TopicPhase.PROMOTED:
            continue
        known = rendezvous.proven.get((other.link, other.topic))
        if known is None or known[0] != other:
            return None
        topics[other.topic] = known[1]
    return PromotedUnit(topics, tuple(group.group for group in groups))


def decided(state: State, record: TopicRecord) -> ProvenTopic | None:
    """Return what another topic's flip says about this topic; None while no flip names this topic's present fence."""
    for other in state.topics(record.link):
        named = other.unit.topics.get(record.topic)
        if named is not None and named.fence_epoch == record.fence_epoch:
            return named
    return None


def group_decided(state: State, link: str, group: str) -> bool:
    """Return True if a flip names the group as promoted with its topic."""
    return any(group in other.unit.groups for other in state.topics(link))
