"""Transactions that routed producers have open. At a source they are forwards that are in flight until they end.

An open transaction counts at each topic that its id writes as one forward that is not resolved (`forwards`), so a
fence is complete only when all of them have ended: also at those that it has not reached yet, and may need before it
can end. It is entered before its AddPartitionsToTxn leaves, and ends when the source has answered its EndTxn, or an
InitProducerId that ended it, or says that it is not open any more.

Of one at the target the coordinator there is the judge. That it is open matters only to what else its client would
write, so it is known for as long as a connection is there that has heard of its transactional id.

Anybody may name an id, and only its cluster knows the holder: what a connection has asked for, and its cluster has not
granted yet, counts at fences, and else is open to that connection alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from kmigrate.model.records import TransactionRecord
from kmigrate.router.forwards import Forwards

__all__ = ["AtTarget", "Begun", "Entry"]

_OVERTAKEN_S = 900.0
"""No transaction lasts longer, by brokers' default, and no application of Kafka's works as long on what it has read."""


@dataclass(slots=True, eq=False)
class Entry:
    """One open transaction: its holder's epoch as the client knows it, what it may write, what is asked."""

    epoch: int = -1
    keys: set[str] = field(default_factory=set)
    """Of topics, at which it counts."""
    groups: set[str] = field(default_factory=set)
    """Whose positions it may commit also while they are frozen: it was said to be open before they were."""
    asking: list[object] = field(default_factory=list)
    """Who has asked what its cluster has not answered: while there are any, what the cluster says may be old."""
    asked: int = 0
    """Requests to its cluster so far."""
    known: bool = False
    """Whether its cluster has said that it is open: else it may never have begun."""

    def ask(self, who: object) -> None:
        self.asking.append(who)
        self.asked += 1

    def answered(self, who: object, *, begun: bool) -> bool:
        """One of them is answered; whether it never began: clients may ask for several partitions at once."""
        self.asking.remove(who)
        self.known = self.known or begun
        return not (self.known or self.asking)

    def is_open(self, who: object) -> bool:
        """Whether it is, as a connection has to see it: by its cluster's word, or because it has asked itself."""
        return self.known or who in self.asking


@dataclass(slots=True)
class AtTarget:
    """Transactional ids that have a transaction open at the target, as all connections of one router know together."""

    open: dict[str, Entry] = field(default_factory=dict)
    overtaken: dict[str, float] = field(default_factory=dict)
    """Those that commit positions of a group, since when it has opened: what their next transaction carries may have
    been read before."""
    _heard: Counter[str] = field(default_factory=Counter)
    """By how many connections each id was heard."""

    def hear(self, name: str) -> None:
        self._heard[name] += 1

    def opened(self, groups: Set[str], known: Iterable[Mapping[str, TransactionRecord]], now: float) -> None:
        """Groups that followed are the target's now; `known`: what the state log has of each transactional id."""
        self.overtaken = {name: since for name, since in self.overtaken.items() if now - since < _OVERTAKEN_S}
        if groups:
            records = (record for each in known for record in each.values())
            self.overtaken |= {r.name: now for r in records if not groups.isdisjoint(r.groups)}

    def overtake(self, name: str, now: float) -> None:
        """An id's transaction waits for its group to open."""
        self.overtaken[name] = now

    def over(self, name: str) -> None:
        """Its transaction is: what the next one carries was read since."""
        self.overtaken.pop(name, None)

    def overtakes(self, name: str, now: float) -> bool:
        """Whether what an id commits now may have been read before its group opened: who is told so reads anew.

        Said once: another router may hear of the end of that transaction, and of the next one's beginning.
        """
        since = self.overtaken.pop(name, None)
        return since is not None and now - since < _OVERTAKEN_S

    def forget(self, name: str, who: object) -> None:
        """A connection is gone, or knows no more of an id: the last one takes along what was known.

        What it has asked for is told to nobody any more; who comes after it asks what is open.
        """
        self._heard[name] -= 1
        if not self._heard[name]:
            del self._heard[name]
            self.open.pop(name, None)
        elif (entry := self.open.get(name)) is not None:
            entry.asking = [each for each in entry.asking if each is not who]
            if not (entry.known or entry.asking):
                del self.open[name]


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

    def is_open(self, link: str, name: str, who: object) -> bool:
        """Whether it is at a link's source, as a connection sees it."""
        entry = self.entries.get((link, name))
        return entry is not None and entry.is_open(who)

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

    def where(self, name: str, who: object) -> str | None:
        """The link at whose source a transactional id has one open, as a connection sees it; None for no link."""
        return next((link for link, each in self.entries if each == name and self.is_open(link, name, who)), None)

    def end(self, link: str, name: str) -> set[str]:
        """The transaction is over; the keys at which it counted, to be resolved."""
        entry = self.entries.pop((link, name), None)
        return set() if entry is None else entry.keys

    def at_any(self, keys: Collection[str]) -> Iterator[tuple[str, str, Entry]]:
        """Open transactions that touch any of the topic keys."""
        for (link, name), entry in self.entries.items():
            if not entry.keys.isdisjoint(keys):
                yield link, name, entry
