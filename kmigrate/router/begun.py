"""Transactions that routed producers have open. At a source they are forwards that are in flight until they end.

An open transaction counts at each topic that its id writes as one forward that is not resolved (`forwards`), so a
fence is complete only when all of them have ended: also at those that it has not reached yet, and may need before it
can end. It is entered before its AddPartitionsToTxn leaves, and ends when the source has answered its EndTxn, or an
InitProducerId that ended it, or says that it is not open any more.

Of one at the target the coordinator there is the judge. That it is open matters only to what else its client would
write, so it is known for as long as a connection is there that has heard of its transactional id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kmigrate.router.forwards import Forwards

__all__ = ["AtTarget", "Begun", "Entry"]


@dataclass(slots=True, eq=False)
class Entry:
    """One open transaction: its holder's epoch as the client knows it, what it may write, what is asked."""

    epoch: int = -1
    keys: set[str] = field(default_factory=set)
    """Of topics, at which it counts."""
    groups: set[str] = field(default_factory=set)
    """Whose positions it may commit also while they are frozen: it was said to be open before they were."""
    asking: int = 0
    """Requests to its cluster on their way: while there are any, what the cluster says is open may be old."""
    asked: int = 0
    """Requests to its cluster so far."""
    known: bool = False
    """Whether its cluster has said that it is open: else it may never have begun."""

    def ask(self) -> None:
        self.asking += 1
        self.asked += 1

    def answered(self, begun: bool) -> bool:
        """One of them is answered; whether it never began: clients may ask for several partitions at once."""
        self.asking -= 1
        self.known = self.known or begun
        return not (self.known or self.asking)


@dataclass(slots=True)
class AtTarget:
    """Transactional ids that have a transaction open at the target, as all connections of one router know together."""

    open: dict[str, Entry] = field(default_factory=dict)
    _heard: Counter[str] = field(default_factory=Counter)
    """By how many connections each id was heard."""

    def hear(self, name: str) -> None:
        self._heard[name] += 1

    def forget(self, name: str) -> None:
        """A connection is gone, or knows no more of an id: the last one takes along what was known."""
        self._heard[name] -= 1
        if not self._heard[name]:
            del self._heard[name]
            self.open.pop(name, None)


@dataclass(slots=True)
class Begun:
    """One router's open transactions, by link and transactional id."""

    forwards: Forwards
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def enter(self, link: str, name: str, epoch: int, keys: Collection[str], groups: Collection[str] = ()) -> Entry:
        entry = self.entries.setdefault((link, name), Entry(epoch))
        entry.epoch = max(entry.epoch, epoch)
        entry.groups.update(groups)
        for key in set(keys) - entry.keys:
            entry.keys.add(key)
            self.forwards.enter(key)
        return entry

    def is_open(self, link: str, name: str) -> bool:
        return (link, name) in self.entries

    def covers(self, link: str, name: str, key: str) -> bool:
        """Whether an open transaction counts at a topic already, so that a fence there waits for it."""
        entry = self.entries.get((link, name))
        return entry is not None and key in entry.keys

    def may_commit(self, link: str, name: str, group: str) -> bool:
        """Whether an open transaction was said to be one of a group's before that was frozen."""
        entry = self.entries.get((link, name))
        return entry is not None and group in entry.groups

    def any_at(self, key: str) -> bool:
        """Whether a transaction is open that may write the topic."""
        return next(self.at_any({key}), None) is not None

    def where(self, name: str) -> str | None:
        """The link at whose source a transactional id has a transaction open, None for no link."""
        return next((link for link, each in self.entries if each == name), None)

    def end(self, link: str, name: str) -> set[str]:
        """The transaction is over; the keys at which it counted, to be resolved."""
        entry = self.entries.pop((link, name), None)
        return set() if entry is None else entry.keys

    def at_any(self, keys: Collection[str]) -> Iterator[tuple[str, str, Entry]]:
        """Open transactions that touch any of the topic keys."""
        for (link, name), entry in self.entries.items():
            if not entry.keys.isdisjoint(keys):
                yield link, name, entry
