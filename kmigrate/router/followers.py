"""One router's account of groups that follow: who speaks to them through it, whose join it holds, what is on its way,
and what of their assignments is kept from them.

A controller that promotes such a group waits for these words (`GroupWord`): everybody in the source's group must be
known to a router and have joined anew, and nothing may be on its way to the source any more. A member is who the
source has answered as one: else any client could name made-up ones, until the true ones are forgotten. Whose join is
in hand counts as one meanwhile.

What is kept from a member is told for people: nothing is decided by it but whether its client is asked to say all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupWord, Withheld
from kmigrate.model.routes import RoutingTable
from kmigrate.router.topic_ids import TopicIds

__all__ = ["Followers"]

_MOST_MEMBERS = 20_000
"""Of one group: beyond that the members that were heard longest ago are forgotten."""
_SILENT_S = 1_800.0
"""As long as a session lasts at most by brokers' default: who was not heard since has died, or moved to another router.

The timeout that a JoinGroup names would say it sooner, but a router that has started since has not seen it.
"""
_SESSION_S = 60.0
"""As long as a session of the new protocol lasts at most by brokers' default: whose heartbeats have not come for so
long is assigned nothing any more, or sends them elsewhere."""
_OPENED_S = 60.0
"""By then every member of a group that has opened has been told by a heartbeat: brokers allow for 15 s between two."""
_MOST_WITHHELD = 64
"""Topics that are told of one group: a presence record must fit into one message."""


@dataclass(slots=True)
class _Assigned:
    """What is known here of a member's assignment (KIP-848)."""

    withheld: frozenset[UUID]
    """Topics in it that the member is not told of, by the source's ids."""
    heard: float
    """When a heartbeat of the member was taken last."""


@dataclass(slots=True)
class Followers:
    """By group; a member id is kept as its mark only."""

    _in_flight: Counter[str] = field(default_factory=Counter)
    _members: dict[str, dict[str, float]] = field(default_factory=dict)
    """When each was heard last, the newest last."""
    _joined: dict[str, Counter[str]] = field(default_factory=dict)
    _gathering: dict[str, float] = field(default_factory=dict)
    _assigned: dict[str, dict[str, _Assigned]] = field(default_factory=dict)
    """Of members whose connection lives, and whose assignment was told through it."""
    _followed: frozenset[str] = frozenset()
    _held: frozenset[str] = frozenset()
    """Groups that wait for their promotes."""
    _opened: dict[str, float] = field(default_factory=dict)
    """Groups that followed, or waited, until a moment ago and are the target's now."""

    def heard(self, group: str, member_id: str, now: float) -> None:
        """The source's coordinator has taken somebody for a member."""
        if not member_id:
            return
        known = self._members.setdefault(group, {})
        mark = member_mark(member_id)
        known.pop(mark, None)  # so that the newest stand last
        known[mark] = now
        if (assigned := self._assigned.get(group, {}).get(mark)) is not None:
            assigned.heard = now
        while len(known) > _MOST_MEMBERS or now - known[next(iter(known))] > _SILENT_S:
            oldest = next(iter(known))
            del known[oldest]
            self._forget_assigned(group, oldest)

    def gone(self, group: str, member_id: str) -> None:
        self._members.get(group, {}).pop(member_mark(member_id), None)
        self.parted(group, member_id)

    def withhold(self, group: str, member_id: str, topics: frozenset[UUID], now: float) -> None:
        """The newest assignment of a member has these topics, which it is not told of; called once it is heard."""
        self._assigned.setdefault(group, {})[member_mark(member_id)] = _Assigned(topics, now)

    def withheld(self, group: str, member_id: str) -> frozenset[UUID] | None:
        """What a member is not told of; None where its assignment is not known here."""
        assigned = self._assigned.get(group, {}).get(member_mark(member_id))
        return None if assigned is None else assigned.withheld

    def parted(self, group: str, member_id: str) -> None:
        """A member's connection is gone: whoever takes its next heartbeat knows better, be it another router."""
        self._forget_assigned(group, member_mark(member_id))

    def withheld_topics(self, group: str, ids: TopicIds) -> dict[UUID, int]:
        """From how many members each topic is withheld that still must not be read, by the source's ids."""
        found = Counter(topic for each in self._assigned.get(group, {}).values() for topic in each.withheld)
        return {topic: count for topic, count in found.items() if ids.at_target(topic) is None}

    def join(self, group: str, member_id: str) -> None:
        """A member's JoinGroup is in hand; a new member has no id yet, and nothing to lose."""
        if member_id:
            self._joined.setdefault(group, Counter())[member_mark(member_id)] += 1

    def joined(self, group: str, member_id: str) -> None:
        """That JoinGroup is answered, or its client is gone."""
        if member_id:
            known = self._joined[group]
            known[member_mark(member_id)] -= 1
            self._joined[group] = +known
            if not self._joined[group]:
                del self._joined[group]

    def gathering(self, group: str, now: float) -> float:
        """Since when a group gathers, as all routers see it at once; since now where it does not."""
        return self._gathering.get(group, now)

    def opened(self, now: float) -> Collection[str]:
        """Groups whose members may not know yet that the target has them."""
        for group in [group for group, since in self._opened.items() if now - since > _OPENED_S]:
            del self._opened[group]
        return self._opened.keys()

    def leave(self, group: str) -> None:
        """Something that changes the group's positions goes to the source."""
        self._in_flight[group] += 1

    def resolved(self, group: str) -> bool:
        """Its fate is known; whether it was the last one."""
        self._in_flight[group] -= 1
        if self._in_flight[group]:
            return False
        del self._in_flight[group]
        return True

    def follow(self, table: RoutingTable, now: float) -> frozenset[str]:
        """Forget the members of groups that do not follow any more, and note which gather from now on.

        Those that followed and have just opened, to be told others.
        """
        for group in [group for group in self._members if group not in table.followed]:
            del self._members[group]
        for group in self._assigned.keys() - table.followed.keys():
            del self._assigned[group]
        promoted = {group for group, route in table.followed.items() if route.gathering}
        for group in self._gathering.keys() - promoted:
            del self._gathering[group]
        for group in promoted:
            self._gathering.setdefault(group, now)
        gone = self._followed - table.followed.keys() - table.held_groups
        for group in self._opened.keys() & (table.followed.keys() | table.held_groups):
            del self._opened[group]
        self.opened(now)
        self._opened |= dict.fromkeys(gone | (self._held - table.held_groups - table.followed.keys()), now)
        self._followed, self._held = frozenset(table.followed), frozenset(table.held_groups)
        return gone

    def words(
        self, table: RoutingTable, transactions: Mapping[str, int], ids: TopicIds, now: float
    ) -> dict[str, GroupWord]:
        """This router's word on each group that follows; `transactions` is how many are open that may commit for it."""
        self._forget_silent(now)
        return {
            group: GroupWord(
                self._in_flight[group] + transactions.get(group, 0),
                tuple(dict.fromkeys((*self._members.get(group, ()), *self._joined.get(group, ())))),
                tuple(self._joined.get(group, ())),
                *self._told_withheld(group, ids),
            )
            for group in table.followed
        }

    def _told_withheld(self, group: str, ids: TopicIds) -> tuple[tuple[Withheld, ...], int]:
        """The first few by id, which are the same at each router, and how many more there are."""
        told = self.withheld_topics(group, ids)
        found = sorted((str(topic), count, ids.name_at_source(topic)) for topic, count in told.items())
        return tuple(Withheld(*each) for each in found[:_MOST_WITHHELD]), max(0, len(found) - _MOST_WITHHELD)

    def _forget_silent(self, now: float) -> None:
        for group, known in list(self._assigned.items()):
            for mark in [mark for mark, each in known.items() if now - each.heard > _SESSION_S]:
                self._forget_assigned(group, mark)

    def _forget_assigned(self, group: str, mark: str) -> None:
        if (known := self._assigned.get(group)) is not None:
            known.pop(mark, None)
            if not known:
                del self._assigned[group]
