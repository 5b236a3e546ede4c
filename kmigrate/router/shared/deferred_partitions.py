"""Partitions that enter a transaction at the target late: with their first batch, not when the client names them.

The end of a transaction writes a marker to every partition in the transaction. If a partition's log holds no record of
the producer yet, the marker leaves the last sequence −1. From then on the broker takes only sequence 0 (W4). A producer
that wrote there at the source goes on with its next sequence. After the promote, such a producer may abort a
transaction before its first batch. An example is a transaction whose offset commit is refused because its group has
just moved. The client would then get OUT_OF_ORDER_SEQUENCE_NUMBER, at which applications end. Lettered rules:

A  A partition is late under two conditions: a holder may have written to the partition at the source, and the target's
   log holds no records of the producer. The router does not name a late partition to the target's coordinator in
   AddPartitionsToTxn. The client is told that the partition is in. A marker is no record: the marker of the transaction
   before may be written only now, and does not say that the partition is in this transaction.
B  A transactional batch for a late partition waits until the partition is in. The connection that brings the batch adds
   the partition at its own broker. So the target judges whether this client may write there under this id. A broker
   judges that right first, and only then whether the broker is the coordinator. If the broker is not the coordinator,
   the router adds the partition over its own connections. Adding a partition twice does no harm. The first batch goes
   alone: if the first batch were refused with a second batch in flight, the second batch would be let in (W3).
C  If nothing else was in the transaction, the coordinator has heard of no transaction. An abort that the coordinator
   answers with INVALID_TXN_STATE has succeeded.
D  Nothing becomes late once the links are finished. A client may have been told before that a late partition is in.
   Such a client stays with the routers until that is true, or the transaction has ended. Elsewhere its batch would meet
   a coordinator that knows nothing of the partition. Every process learns from the others which clients they keep
   (`shared.client_handoff`, d). A process that died before its client wrote leaves nobody with that knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.model.routes import RoutingTable, Serve

__all__ = ["DeferredPartitions", "Holder", "Written"]

Written = tuple[str, int, int]
"""Topic, partition, producer id as the client knows it."""
Holder = tuple[str, int, int]
"""Transactional id, producer id and epoch as the client knows them."""
_MOST_WRITTEN = 100_000
"""Maximum entries of `DeferredPartitions.written`. Beyond that all entries are forgotten, and the target is asked
again."""


@dataclass(slots=True)
class DeferredPartitions:
    """The late partitions that one router knows."""

    written: set[Written] = field(default_factory=set)
    """Partitions of the target that hold records of a producer: never late again for that producer."""
    owed: dict[str, tuple[object, set[tuple[str, int]]]] = field(default_factory=dict)
    """Late partitions that a client believes to be in, by transactional id, with the connection that said so."""

    def holds(self, written: Written) -> None:
        """Note that the target's partition holds records of the producer."""
        if len(self.written) >= _MOST_WRITTEN:
            self.written.clear()
        self.written.add(written)

    def owe(self, name: str, teller: object, partitions: Iterable[tuple[str, int]]) -> None:
        """Note that a client is told that late partitions are in."""
        _, before = self.owed.get(name, (None, set()))
        self.owed[name] = (teller, before.union(partitions))

    def entered(self, name: str, topic: str, partition: int) -> None:
        """Note that a late partition is in."""
        _, left = self.owed.get(name, (None, set()))
        left.discard((topic, partition))
        if not left:
            self.owed.pop(name, None)

    def over(self, name: str) -> None:
        """Note that the id's transaction has ended."""
        self.owed.pop(name, None)

    def owes(self, teller: object) -> bool:
        return any(each is teller for each, _ in self.owed.values())

    def left(self, teller: object) -> None:
        """Forget what a closed connection has told its client."""
        for name in [name for name, (each, _) in self.owed.items() if each is teller]:
            del self.owed[name]

    @staticmethod
    def carried_over(table: RoutingTable, holder: Holder, topic: str) -> bool:
        """Return whether a holder may have written a topic at its source before the topic's promote (A)."""
        name, producer_id, epoch = holder
        route = table.topics.get(topic)
        if route is None or route.serve is not Serve.LOCAL:
            return False
        known = table.transactions.get(name, {}).get(route.link)
        return known is not None and (known.producer_id, known.epoch) == (producer_id, epoch) and topic in known.topics

    def may_be(self, table: RoutingTable, holder: Holder, topic: str, partition: int) -> bool:
        """Return whether a partition is late, unless the target says that the partition holds records of the producer.

        A partition that the source never had is not late. A client may name any partition, a million at once, and the
        target would be asked about each of them.
        """
        if (topic, partition, holder[1]) in self.written or not self.carried_over(table, holder, topic):
            return False
        return 0 <= partition < table.topics[topic].partitions
