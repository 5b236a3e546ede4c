"""The groups that follow, as one router sees them: members, held joins, requests in flight and withheld topics.

A promote waits for the reports of all routers (`GroupReport`): every member of the source's group must be known to a
router and have joined anew. No request may be on its way to the source. A client counts as a member once the source has
answered it as a member, or while its join is in progress. Otherwise any client could name made-up members until the
true members are forgotten. Withheld topics are reported for people, and decide only whether a member's client must send
a full heartbeat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from kmigrate.model.members import member_mark
from kmigrate.model.presences import GroupReport, Withheld
from kmigrate.model.routes import RoutingTable
from kmigrate.router.wire.topic_ids import TopicIds

__all__ = ["Followers", "MovedGroups"]

_MOST_MEMBERS = 20_000
"""Maximum members of a group; beyond that the members that were heard longest ago are forgotten."""
_SILENT_S = 1_800.0
"""Brokers' default maximum of a session: a member silent for so long has died, or moved to another router.

The timeout in a JoinGroup would tell sooner, but a router that started later has not seen the JoinGroup.
"""
_SESSION_S = 60.0
"""Brokers' default maximum of a session of the new protocol; a member silent for longer has no assignment here."""
_OPENED_S = 60.0
"""Time after which a heartbeat has told every member that its group has opened; brokers allow 15 s between two."""
_MOST_WITHHELD = 64
"""Maximum topics reported per group: a presence record must fit into one message."""


@dataclass(slots=True)
class _Assigned:
    """A member's assignment, as far as this router knows (KIP-848)."""

    withheld: frozenset[UUID]
    """Topics in the assignment that are withheld from the member, by the source's ids."""
    heard: float
    """Time of the last heartbeat."""


class MovedGroups(NamedTuple):
    """Groups that belong to another cluster than before."""

    to_target: frozenset[str]
    to_source: frozenset[str]


_NOTHING = GroupReport()
"""The report on a group that no member has joined through this router."""


@dataclass(slots=True)
class Followers:
    """Members by group; a member id is kept as its mark only."""

    _in_flight: Counter[str] = field(default_factory=Counter)
    _members: dict[str, dict[str, float]] = field(default_factory=dict)
    """Time when each member was heard last, the newest last."""
    _joined: dict[str, Counter[str]] = field(default_factory=dict)
    _gathering: dict[str, float] = field(default_factory=dict)
    _assigned: dict[str, dict[str, _Assigned]] = field(default_factory=dict)
    """Assignments by group and member, if the connection that carried the assignment still lives."""
    _table: RoutingTable | None = None
    """The newest table that has other groups than the table before."""
    _followed: frozenset[str] = frozenset()
    _held: frozenset[str] = frozenset()
    """Groups that wait for their promotes."""
    _opened: dict[str, float] = field(default_factory=dict)
    """Groups of the target that followed, or waited, until a moment ago, with the time of their opening."""
    _at_target: frozenset[str] = frozenset()
    """Groups that are rolled back."""
    _returned: dict[str, float] = field(default_factory=dict)
    """Groups that follow or hold again since the end of their rollback, with the time of that end."""

    def heard(self, group: str, member_id: str, now: float) -> None:
        """Note that the source's coordinator has accepted a member."""
        if not member_id:
            return
        known = self._members.setdefault(group, {})
        mark = member_mark(member_id)
        known.pop(mark, None)  # so that the newest stay last
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
        """Note the topics of a member's newest assignment that are withheld; call `heard` first."""
        self._assigned.setdefault(group, {})[member_mark(member_id)] = _Assigned(topics, now)

    def withheld(self, group: str, member_id: str) -> frozenset[UUID] | None:
        """Return the topics that are withheld from a member; None if the assignment is not known here."""
        assigned = self._assigned.get(group, {}).get(member_mark(member_id))
        return None if assigned is None else assigned.withheld

    def parted(self, group: str, member_id: str) -> None:
        """Forget the assignment of a member whose connection is gone; the router of its next heartbeat knows better."""
        self._forget_assigned(group, member_mark(member_id))

    def withheld_topics(self, group: str, ids: TopicIds) -> dict[UUID, int]:
        """Return the number of members from whom each topic, not readable yet, is withheld, by the source's ids."""
        found = Counter(topic for each in self._assigned.get(group, {}).values() for topic in each.withheld)
        return {topic: count for topic, count in found.items() if ids.at_target(topic) is None}

    def join(self, group: str, member_id: str) -> None:
        """Note that a member's JoinGroup is in progress; a new member has no id yet, and nothing to lose."""
        if member_id:
            self._joined.setdefault(group, Counter())[member_mark(member_id)] += 1

    def joined(self, group: str, member_id: str) -> None:
        """Note that a JoinGroup is answered, or the client is gone."""
        if member_id:
            self._joined[group] -= Counter([member_mark(member_id)])
            if not self._joined[group]:
                del self._joined[group]

    def gathering(self, group: str, now: float) -> float:
        """Return the time since when a group gathers, which all routers see at once; `now` for any other group."""
        return self._gathering.get(group, now)

    def opened(self, now: float) -> Collection[str]:
        """Return the groups whose members may not know yet that the group belongs to the target."""
        _forget_old(self._opened, now)
        return self._opened.keys()

    def returned(self, group: str, now: float) -> bool:
        """Return whether members of the group may not know yet that the group belongs to the source again."""
        _forget_old(self._returned, now)
        return group in self._returned

    def leave(self, group: str) -> None:
        """Count a request to the source that changes the group's committed offsets."""
        self._in_flight[group] += 1

    def resolved(self, group: str) -> bool:
        """Note that the fate of such a request is known; return whether the request was the last in flight."""
        self._in_flight[group] -= 1
        if self._in_flight[group]:
            return False
        del self._in_flight[group]
        return True

    def follow(self, table: RoutingTable, now: float) -> MovedGroups:
        """Forget groups that no longer follow, and note those that gather; return the groups that have just opened."""
        known = self._table
        if known is not None and known.followed is table.followed and known.held_groups is table.held_groups:
            self.opened(now)
            return MovedGroups(frozenset(), frozenset())
        self._table = table
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
        at_target = frozenset(group for group, route in table.followed.items() if route.at_target)
        waiting = table.followed.keys() | table.held_groups
        returned = (self._at_target - at_target) & waiting
        self._returned |= dict.fromkeys(returned, now)
        self._at_target = at_target
        return MovedGroups(gone, returned)

    def reports(
        self, table: RoutingTable, transactions: Mapping[str, int], ids: TopicIds, now: float
    ) -> dict[str, GroupReport]:
        """Return the report on each group that follows; `transactions`: open transactions that may commit, by group."""
        self._forget_silent(now)
        known = {*self._in_flight, *transactions, *self._members, *self._joined, *self._assigned}
        reports = dict.fromkeys(table.followed, _NOTHING)
        for group in known & table.followed.keys():
            reports[group] = GroupReport(
                self._in_flight[group] + transactions.get(group, 0),
                tuple(dict.fromkeys((*self._members.get(group, ()), *self._joined.get(group, ())))),
                tuple(self._joined.get(group, ())),
                *self._report_withheld(group, ids),
            )
        return reports

    def _report_withheld(self, group: str, ids: TopicIds) -> tuple[tuple[Withheld, ...], int]:
        """Return the first withheld topics by id, the same at each router, and the number of further topics."""
        withheld = self.withheld_topics(group, ids).items()
        found = sorted((str(topic), count, ids.name_at_source(topic)) for topic, count in withheld)
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


def _forget_old(groups: dict[str, float], now: float) -> None:
    """Forget groups whose members all know by now which cluster the group belongs to."""
    for group in [group for group, since in groups.items() if now - since > _OPENED_S]:
        del groups[group]
