"""A unit is promoted whole or rolled back whole: topics that transactions write, and groups whose offsets they commit.

A  A topic of a unit is proven when all topics of the unit stand at their barriers (`promote.topic`, rules B and C).
B  One record decides: the first flip, which names the whole unit (`TopicRecord.unit`). That flip is written only if
   every other topic still has the record that was proven, and every group that follows is staged.
C  From then on the unit has no way back. The record holds all that the other flips need, so the next process proves
   nothing anew. Routers hold a topic until its own flip, so no transaction begins in between.
D  The progress before that record is in the controller's memory only: after a crash all topics are proven anew.
E  A rollback of a unit obeys the same rules with the clusters exchanged. Its transactions end before its groups are
   frozen, and its groups are staged before a topic is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from kmigrate.errors import Refused, WaitTimedOut
from kmigrate.model.coupling import unit_of
from kmigrate.model.lifecycle import PROMOTING, ROLLING_BACK, GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, PromotedUnit, ProvenTopic, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.state.log import StateLog

__all__ = ["PromoteProgress", "Unit", "decided", "group_decided"]

_PAUSE_S = 0.005
_PENDING = frozenset({TopicPhase.PROMOTE_PENDING, TopicPhase.ROLLBACK_PENDING})


@dataclass(slots=True)
class PromoteProgress:
    """The progress of one controller's promotes, which wait for each other, by record key (D)."""

    ready: set[str] = field(default_factory=set)
    """Topics that wait only for their groups before they are fenced; in a rollback also groups that can be frozen."""
    closed: set[str] = field(default_factory=set)
    """Topics before their fence, on which no transaction begins and none is open."""
    at_barrier: set[str] = field(default_factory=set)
    proven: dict[str, tuple[TopicRecord, ProvenTopic]] = field(default_factory=dict)
    """Each proven topic, with the record that was proven."""
    waits: dict[str, str] = field(default_factory=dict)
    """Reasons why topics and groups wait; the controller reports them."""

    def leave(self, key: str) -> None:
        """Forget a topic whose promote is over, or begins anew."""
        self.ready.discard(key)
        self.closed.discard(key)
        self.at_barrier.discard(key)
        self.proven.pop(key, None)
        self.waits.pop(key, None)

    def note(self, key: str, why: str | None) -> Literal[True] | None:
        """Note why a promote waits; return True if the promote waits for nothing."""
        if why:
            self.waits[key] = why
            return None
        self.waits.pop(key, None)
        return True

    async def wait(
        self, log: StateLog, key: str, why: Callable[[State], str | None], timeout: float, what: str
    ) -> None:
        """Wait until `why` gives no reason to wait, and note the reason; WaitTimedOut then has the last reason."""
        try:
            await log.wait(lambda state: self.note(key, why(state)), max(0.0, timeout), what)
        except WaitTimedOut as timed_out:
            timed_out.what = why(log.state) or timed_out.what
            raise

    def not_ready_with(self, unit: Unit) -> str | None:
        """Return another topic of the unit that is not ready: behind a fence now, writers would wait for that topic."""
        for other in unit.left:
            if other.phase in _PENDING and other.key not in self.ready:
                return f"{other.topic}, which is written together with {unit.topic}, is not ready"
        for group in unit.groups:
            if unit.back and group.key not in self.ready:
                return f"group {group.group}, whose positions its transactions commit, is not ready"
        return None

    def not_closed_with(self, unit: Unit) -> str | None:
        """Return another topic of the unit on which a transaction may be open: no fence may come before its end."""
        for other in unit.left:
            if other.phase in _PENDING and other.key not in self.closed:
                return f"{other.topic}, which is written together with {unit.topic}, has open transactions"
        return None

    async def wait_for_unit(self, log: StateLog, record: TopicRecord, deadline: float) -> None:
        """Wait until every coupled topic stands at its barrier, too; a topic that is given up takes the others back."""
        tries = Backoff(_PAUSE_S, within_s=deadline - monotonic())
        while True:
            unit = Unit.of(log.state, record)
            if against := unit.not_asked_for():
                raise Refused("coupled-topics", against)
            missing = [other.topic for other in unit.left if other.key not in self.at_barrier]
            if not missing:
                return
            await tries.pause(Refused("coupled-topics", f"{', '.join(missing)} did not reach its barrier in time"))

    async def wait_proven(self, log: StateLog, record: TopicRecord, deadline: float) -> None:
        """Wait until the last topic of the unit is proven: its flip decides, and the others follow its record."""

        def proven(state: State) -> bool | None:
            over = state.topic(record.link, record.topic) != record or decided(state, record) is not None
            return True if over or self.unit_to_flip(state, record) is not None else None

        try:
            await log.wait(proven, max(0.0, deadline - monotonic()), "its unit to be proven")
        except WaitTimedOut as late:
            raise Refused("coupled-topics", "not all topics that are written with it were proven in time") from late

    def unit_to_flip(self, state: State, record: TopicRecord) -> PromotedUnit | None:
        """Return what a flip names (rule B); None while a topic is not as proven; Refused after a give-up."""
        unit = Unit.of(state, record)
        if against := unit.not_asked_for():
            raise Refused("coupled-topics", against)
        if against := unit.not_staged():
            raise Refused("coupled-group", against)
        topics: dict[str, ProvenTopic] = {}
        for other in unit.left:
            known, proven = self.proven.get(other.key, (None, None))
            if proven is None or known != other:
                return None
            topics[other.topic] = proven
        return PromotedUnit(topics, tuple(group.group for group in unit.groups))


@dataclass(frozen=True, slots=True)
class Unit:
    """The rest of a topic's unit: topics that the link mirrors, and groups that follow."""

    topic: str
    topics: tuple[TopicRecord, ...]
    groups: tuple[GroupRecord, ...]
    """The groups that are not promoted yet, or in a rollback not mirrored again."""
    back: bool = False
    """True if the topic is rolled back."""

    @staticmethod
    def of(state: State, record: TopicRecord) -> Unit:
        names, groups = unit_of(state.couplings(record.link), [record.topic])
        topics = (state.topic(record.link, name) for name in sorted(names))
        known = (state.group(record.link, name) for name in sorted(groups))
        back = record.phase in ROLLING_BACK
        left = (group for group in known if group and group.mode is GroupMode.FOLLOW and group.at_target is back)
        return Unit(record.topic, tuple(filter(None, topics)), tuple(left), back)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(topic.key for topic in self.topics)

    @property
    def left(self) -> list[TopicRecord]:
        """The topics that are not flipped yet."""
        return [topic for topic in self.topics if topic.at_target is self.back]

    def not_staged(self) -> str | None:
        """Return a coupled group whose offsets are not on the other cluster yet; Refused where that was given up."""
        before, verb, there = (
            (GroupPhase.PROMOTED, "rollback", "source") if self.back else (GroupPhase.MIRRORED, "promote", "target")
        )
        for group in self.groups:
            if group.phase is before and group.reason:
                raise Refused("coupled-group", f"the {verb} of group {group.group} was given up: {group.reason}")
            if not group.staged:
                return (
                    f"the positions of group {group.group}, which its transactions commit, are not on the {there} yet"
                )
        return None

    def not_asked_for(self) -> str | None:
        """Return a coupled topic that nobody has asked to promote, or a topic or group that nobody rolls back."""
        asked, verb = (ROLLING_BACK, "rolled back") if self.back else (PROMOTING, "promoted")
        for other in self.left:
            if other.phase not in asked:
                way = other.way_back
                reason = other.reason if not self.back else way.reason if way is not None else ""
                why = f": {reason}" if reason else ""
                return f"{other.topic}, which is written together with {self.topic}, is not being {verb}{why}"
        for group in self.groups:
            if self.back and group.phase is not GroupPhase.ROLLING_BACK:
                why = f": {group.reason}" if group.reason else ""
                return f"group {group.group}, whose positions its transactions commit, is not being rolled back{why}"
        return None


def _names_topics(record: TopicRecord) -> bool:
    """Return whether a topic's flip names other topics."""
    return any(topic != record.topic for topic in record.unit.topics)


def _names_groups(record: TopicRecord) -> bool:
    return bool(record.unit.groups)


def decided(state: State, record: TopicRecord) -> ProvenTopic | None:
    """Return what another topic's flip says about this topic; None while no flip names this topic's present fence."""
    for other in state.topics_that(_names_topics, record.link):
        named = other.unit.topics.get(record.topic)
        if named is not None and named.fence_epoch == record.newest_fence:
            return named
    return None


def group_decided(state: State, link: str, group: str, *, back: bool = False) -> bool:
    """Return True if a flip names the group as promoted, or as rolled back, with its topic."""
    flipped = (other for other in state.topics_that(_names_groups, link) if other.at_target is not back)
    return any(group in other.unit.groups for other in flipped)
