"""Partitions that enter a transaction at the target late: with their first batch, and not when they are named.

The end of a transaction writes a marker to every partition that is in it. On a partition whose log holds nothing of the
producer yet, that marker leaves the last sequence −1, and from then on only sequence 0 is taken (W4). A producer that
wrote there at the source goes on with its next sequence. So a transaction of it that is aborted before its first batch
after the promote, as the one whose positions are refused because its group has just moved, would cost the client
OUT_OF_ORDER_SEQUENCE_NUMBER, at which applications end. Lettered rules:

A  A partition that a holder may have written at the source, and of whose producer the target's log holds no records, is
   not told to the target's coordinator by AddPartitionsToTxn; the client is told that it is in. A marker is no record:
   that of the transaction before may be written only now, and does not say that the partition is in this one.
B  A transactional batch for such a partition waits until the partition is in. The connection that brings the batch
   says so to its own broker, so that the target judges whether this client may write there, under this id. A broker
   judges that first, and only then whether it is the coordinator: to one that calls itself none the router has it
   said by its own connections. To say it twice is no harm.
   The first batch goes alone: were it refused with a second one in flight, that one would be let in (W3).
C  Where nothing else was in it the coordinator has heard of no transaction: an abort that it calls INVALID_TXN_STATE
   has succeeded.
D  Nothing becomes late once the links are finished. A client that was told before that a late partition is in stays
   with the routers until it is, or its transaction has ended: past them its batch would meet a coordinator that knows
   nothing of it. Every process knows from the others whom they keep (`leaving`, d), but not what one has told that
   died before its client wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.model.routes import RoutingTable, Serve

__all__ = ["Holder", "Late", "Written"]

Written = tuple[str, int, int]
"""Topic, partition, producer id as the client knows it."""
Holder = tuple[str, int, int]
"""Transactional id, producer id and epoch as the client knows them."""
_MOST_WRITTEN = 100_000
"""Beyond that all are forgotten, and the target is asked again."""


@dataclass(slots=True)
class Late:
    """What one router knows of them."""

    written: set[Written] = field(default_factory=set)
    """Of which producers the target's partitions hold records: these are never late again."""
    owed: dict[str, tuple[object, set[tuple[str, int]]]] = field(default_factory=dict)
    """By transactional id what its client was told of late partitions, by whom, that is not so yet."""

    def holds(self, written: Written) -> None:
        """The target's partition holds records of the producer."""
        if len(self.written) >= _MOST_WRITTEN:
            self.written.clear()
        self.written.add(written)

    def owe(self, name: str, teller: object, partitions: Iterable[tuple[str, int]]) -> None:
        """A client is told that late partitions are in."""
        _, before = self.owed.get(name, (None, set()))
        self.owed[name] = (teller, before.union(partitions))

    def entered(self, name: str, topic: str, partition: int) -> None:
        """A late partition is in."""
        _, left = self.owed.get(name, (None, set()))
        left.discard((topic, partition))
        if not left:
            self.owed.pop(name, None)

    def over(self, name: str) -> None:
        """The id's transaction has ended."""
        self.owed.pop(name, None)

    def owes(self, teller: object) -> bool:
        return any(each is teller for each, _ in self.owed.values())

    def left(self, teller: object) -> None:
        """The connection that has told it is gone."""
        for name in [name for name, (each, _) in self.owed.items() if each is teller]:
            del self.owed[name]

    @staticmethod
    def carried_over(table: RoutingTable, holder: Holder, topic: str) -> bool:
        """Whether a holder may have written a topic at its source before its promote (A)."""
        name, producer_id, epoch = holder
        route = table.topics.get(topic)
        if route is None or route.serve is not Serve.LOCAL:
            return False
        known = table.transactions.get(name, {}).get(route.link)
        return known is not None and (known.producer_id, known.epoch) == (producer_id, epoch) and topic in known.topics

    def may_be(self, table: RoutingTable, holder: Holder, topic: str, partition: int) -> bool:
        """Whether a partition is late unless the target says that it holds records of the producer.

        Not one that the source never had: a client may name any, a million at once, and each would be asked about.
        """
        if (topic, partition, holder[1]) in self.written or not self.carried_over(table, holder, topic):
            return False
        return 0 <= partition < table.topics[topic].partitions
