"""Open transactions of routed producers. A transaction at a source is a forward in flight until it ends.

An open transaction counts as an unresolved forward (`forwards`) at each topic that its id writes, also at topics that
it may still need. So a fence is complete only when all these transactions have ended. A transaction is entered before
the first AddPartitionsToTxn leaves. The entry ends when the source has answered its EndTxn, or an InitProducerId that
ended the transaction, or reports the transaction as not open.

For a transaction at the target, the coordinator there is the judge; the transaction matters only for the other writes
of its client. So the router remembers it as long as a connection exists that has named the transactional id.

Any client may name an id, and only the id's cluster knows the producer. A transaction that a connection has asked for
and the cluster has not granted yet counts at fences; otherwise it is open to that connection alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kmigrate.model.records import TransactionRecord
from kmigrate.router.shared.followers import MovedGroups
from kmigrate.router.shared.forwards import InFlightForwards

__all__ = ["OpenTransaction", "SourceTransactions", "TargetTransactions"]

_OVERTAKEN_S = 900.0
"""Brokers' default limit of a transaction; no Kafka application works that long on what it has read."""


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """An open transaction: the producer's epoch as the client has it, topics and groups, and requests in flight."""

    epoch: int = -1
    keys: set[str] = field(default_factory=set)
    """Keys of the topics at which the transaction counts."""
    groups: set[str] = field(default_factory=set)
    """Groups for which the transaction commits.

    At a source, only groups for which the transaction may commit behind a freeze: the transaction was open before.
    """
    asking: list[object] = field(default_factory=list)
    """Connections with a request that the cluster has not answered; meanwhile the cluster's reports may be old."""
    asked: int = 0
    """Number of requests to the cluster so far."""
    known: bool = False
    """True if the cluster has reported the transaction as open; else the transaction may never have begun."""

    def ask(self, connection: object) -> None:
        self.asking.append(connection)
        self.asked += 1

    def answered(self, connection: object, *, known: bool) -> bool:
        """Note one of perhaps several answers; return whether the transaction, open if `known`, never began."""
        self.asking.remove(connection)
        self.known = self.known or known
        return not (self.known or self.asking)

    def is_open(self, connection: object) -> bool:
        """Return whether the cluster reported the transaction as open, or this connection has a request in flight."""
        return self.known or connection in self.asking


_NONE = OpenTransaction()
"""Stands for an id that has no transaction open; never changed."""


@dataclass(slots=True)
class TargetTransactions:
    """Transactional ids with a transaction open at the target, as all connections of one router know together."""

    open: dict[str, OpenTransaction] = field(default_factory=dict)
    overtaken: dict[str, float] = field(default_factory=dict)
    """Ids that commit a group's offsets, with the time of its opening: the next transaction's input may be older."""
    taken_back: dict[str, float] = field(default_factory=dict)
    """Ids that commit a group's offsets, with the time at which a rollback opened the group at the source."""
    _heard: Counter[str] = field(default_factory=Counter)
    """Number of connections that have heard of each id."""

    def hear(self, name: str) -> None:
        self._heard[name] += 1

    def forget(self, name: str, connection: object) -> None:
        """Drop a connection's knowledge of an id and its answers; the last drops all, later ones ask the clusters."""
        self._heard[name] -= 1
        entry = self.open.get(name)
        if entry is not None:
            entry.asking = [each for each in entry.asking if each is not connection]
        if not self._heard[name]:
            del self._heard[name]
            self.open.pop(name, None)
        elif entry is not None and not (entry.known or entry.asking):
            del self.open[name]

    def groups_moved(self, moved: MovedGroups, known: Iterable[Mapping[str, TransactionRecord]], now: float) -> None:
        """Note that groups belong to another cluster now; `known`: the log's records of each transactional id."""
        self.overtaken, self.taken_back = _recent(self.overtaken, now), _recent(self.taken_back, now)
        if any(moved):
            records = [record for each in known for record in each.values() if record.groups]
            for names, groups in ((self.overtaken, moved.to_target), (self.taken_back, moved.to_source)):
                names |= {r.name: now for r in records if not groups.isdisjoint(r.groups)}

    def overtakes(self, name: str, now: float, *, back: bool = False) -> bool:
        """Return whether an id's input may have been read before its group opened, so that the client reads anew.

        `back`: the group has opened at the source. True is returned once: only another router may know the end of that
        transaction and the begin of the next.
        """
        since = (self.taken_back if back else self.overtaken).pop(name, None)
        return since is not None and now - since < _OVERTAKEN_S

    def reads_anew(self, name: str) -> None:
        """Note that the next transaction of an id reads its input after the opening of the id's groups."""
        self.overtaken.pop(name, None)
        self.taken_back.pop(name, None)


def _recent(names: Mapping[str, float], now: float) -> dict[str, float]:
    return {name: since for name, since in names.items() if now - since < _OVERTAKEN_S}


@dataclass(slots=True)
class SourceTransactions:
    """The transactions that one router knows to be open at sources, by link and transactional id."""

    forwards: InFlightForwards
    entries: dict[tuple[str, str], OpenTransaction] = field(default_factory=dict)

    def enter(
        self, link: str, name: str, epoch: int, keys: Collection[str], groups: Collection[str] = ()
    ) -> OpenTransaction:
        entry = self.entries.setdefault((link, name), OpenTransaction(epoch))
        entry.epoch = max(entry.epoch, epoch)
        entry.groups.update(groups)
        for key in set(keys) - entry.keys:
            entry.keys.add(key)
            self.forwards.opened(key)
        return entry

    def is_open(self, link: str, name: str, connection: object) -> bool:
        """Return whether a connection sees a transaction of the id as open at a link's source."""
        return self.entries.get((link, name), _NONE).is_open(connection)

    def covers(self, link: str, name: str, key: str) -> bool:
        """Return whether an open transaction already counts at a topic, so that a fence there waits for it."""
        return key in self.entries.get((link, name), _NONE).keys

    def may_commit(self, link: str, name: str, group: str) -> bool:
        """Return whether an open transaction was reported as a transaction of the group before the group was frozen."""
        return group in self.entries.get((link, name), _NONE).groups

    def where(self, name: str, connection: object) -> str | None:
        """Return the link at whose source a connection sees a transaction of the id as open; None for no link."""
        links = (link for (link, each), entry in self.entries.items() if each == name and entry.is_open(connection))
        return next(links, None)

    def any_at(self, key: str) -> bool:
        """Return whether a transaction is open that may write the topic."""
        return any(key in entry.keys for entry in self.entries.values())

    def end(self, link: str, name: str) -> set[str]:
        """Forget a transaction that is over; return the topic keys at which it counted, to be resolved."""
        return self.entries.pop((link, name), _NONE).keys
