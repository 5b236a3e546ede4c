"""The order in which groups read and commit: what may go back, and what may not.

A *possession* is a process's ownership of a partition, from an `assign` line to the next `assign` or `revoke` line. The
rules, each of which docs/history.md explains:

G1  Within a possession offsets grow. A repeated record is a rewind; a late record, behind a higher offset, is
    nonmonotonic.
G2  The first read of a possession is not below the group's committed position. A process without any `assign` or
    `revoke` line for the partition does not begin below the group's last read.
G3  A commit is not below a commit that was acknowledged before the lower commit was asked for.
G4  A `reset` line gives the group a position, and ends G1 to G3 for what came before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kmigrate.sandbox.history import Event, Slot
from kmigrate.sandbox.ledger import place_of

__all__ = ["REBALANCE_ERRORS", "GroupOrder", "Note"]

REBALANCE_ERRORS: Final = frozenset(
    {
        "REBALANCE_IN_PROGRESS",
        "ILLEGAL_GENERATION",
        "UNKNOWN_MEMBER_ID",
        "_NO_OFFSET",
        "_STATE",
        "_ASSIGNMENT_LOST",
        "CommitFailedError",
        "CommitFailedException",
        "RebalanceInProgressException",
        "IllegalGenerationError",
        "IllegalStateError",
        "RebalanceInProgressError",
        "UnknownMemberIdError",
    }
)
"""Errors of commits that a rebalance overtook: the coordinator refused the commit, and the next owner reads again."""

Note = Callable[[str, str], None]
"""A function that takes the name of an anomaly and a description."""
_Place = tuple[str, Slot]
"""A group or a process, and a partition."""


@dataclass
class _Possession:
    """The reads of a process from a partition since the last rebalance."""

    group: str
    floor: int = -1
    """The group's committed position when the possession began; -1: not known."""
    since: str = ""
    """The reason for the floor, as text."""
    position: int = -1
    """The offset behind the last read; -1: nothing was read."""
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Stretches that were read: the first offsets, ascending, and the offsets behind the last ones."""

    def holds(self, offset: int) -> bool:
        at = bisect_right(self.starts, offset) - 1
        return at >= 0 and offset < self.ends[at]

    def add(self, first: int, after: int) -> None:
        if self.ends and first == self.ends[-1]:
            self.ends[-1] = after
            return
        at = bisect_right(self.starts, first)
        self.starts.insert(at, first)
        self.ends.insert(at, after)


class _Commit(NamedTuple):
    process: str
    position: int


@dataclass
class _Committed:
    """The state of a group's committed position in a partition, as far as the history tells."""

    position: int = -1
    acked_at: int = -1
    """The m of the acknowledgement."""
    asked: dict[_Commit, list[int]] = field(default_factory=dict)
    """The m of each commit that was asked for and not answered."""
    in_doubt: list[_Commit] = field(default_factory=list)
    """Commits that may still be carried out: without an answer, or with an unclear answer, since the last rebalance."""

    @property
    def floor(self) -> int:
        """The lowest position that the coordinator may tell a member that asks now; -1: not known."""
        return min([self.position, *(commit.position for commit in self.in_doubt)])

    def ask(self, commit: _Commit, m: int) -> None:
        self.asked.setdefault(commit, []).append(m)
        self.in_doubt.append(commit)

    def answered(self, commit: _Commit) -> int | None:
        """Return the monotonic time (`m`) of the oldest request for such a commit; None if no request is known."""
        times = self.asked.get(commit)
        if not times:
            return None
        asked = times.pop(0)
        if not times:
            del self.asked[commit]
        return asked

    def settled(self, commit: _Commit) -> None:
        if commit in self.in_doubt:
            self.in_doubt.remove(commit)


class GroupOrder:
    """The order of each member's reads and each group's commits, with a note for everything that goes back."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._possessions: dict[_Place, _Possession] = {}
        self._committed: defaultdict[_Place, _Committed] = defaultdict(_Committed)
        self._read: dict[_Place, tuple[int, str]] = {}
        """The offset behind the last read of each group, and the process that read."""

    def assign(self, event: Event, slot: Slot) -> None:
        committed = self._committed[event.group, slot]
        reason = f"{event.group} had committed {committed.position}"
        self._possessions[event.process, slot] = _Possession(event.group, committed.floor, reason)
        committed.in_doubt.clear()  # the coordinator refuses commits of an earlier generation

    def revoke(self, event: Event, slot: Slot) -> None:
        self._possessions[event.process, slot] = _Possession(event.group)

    def poll(self, event: Event, slot: Slot) -> None:
        after = event.offset + len(event.values)
        possession = self._possessions.get((event.process, slot))
        if possession is None:  # the history has no line of a rebalance
            position, reader = self._read.get((event.group, slot), (-1, ""))
            reason = f"{reader} had read up to {position}, and no line assigns the partition anew"
            possession = _Possession(event.group, position, reason)
            self._possessions[event.process, slot] = possession
        self._judge_read(event, slot, possession)
        possession.add(event.offset, after)
        possession.position = after
        self._read[event.group, slot] = (after, event.process)

    def _judge_read(self, event: Event, slot: Slot, possession: _Possession) -> None:
        who = f"{event.process} of {event.group} read {place_of(slot, event.offset)}"
        if possession.position < 0:
            if event.offset < possession.floor:
                self._note("rewinds", f"{who} first; {possession.since}")
        elif event.offset < possession.position:
            if possession.holds(event.offset):
                self._note("rewinds", f"{who} again behind {possession.position - 1}, with no rebalance between")
            else:
                self._note("nonmonotonic", f"{who} behind {possession.position - 1}")

    def commit(self, event: Event, slot: Slot, position: int) -> None:
        if position < 0:  # a client library's sign for no position
            return
        committed, commit = self._committed[event.group, slot], _Commit(event.process, position)
        if event.type == "invoke":
            committed.ask(commit, event.m)
            return
        asked = committed.answered(commit)
        if event.type == "ok":
            if position < committed.position and (asked is None or asked > committed.acked_at):
                what = f"{event.process} of {event.group} committed {place_of(slot, position)}"
                self._note("commits_back", f"{what} after {committed.position} was acknowledged")
            committed.position, committed.acked_at = position, event.m
            committed.settled(commit)
        elif event.error in REBALANCE_ERRORS:
            committed.settled(commit)

    def reset(self, event: Event, slot: Slot, position: int) -> None:
        """Take a group's new position that somebody set on purpose."""
        self._committed[event.group, slot] = _Committed(position, event.m)
        self._read.pop((event.group, slot), None)
        for place, possession in self._possessions.items():
            if place[1] == slot and possession.group == event.group:
                self._possessions[place] = _Possession(event.group)
