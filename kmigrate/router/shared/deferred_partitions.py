"""Partitions that enter a transaction at the target with their first batch, not when the client names them.

The end of a transaction writes a marker to every partition in the transaction. If the log holds no record of the
producer yet, the marker leaves the last sequence −1. From then on the broker takes only sequence 0 (W4). A producer
that wrote there at the source goes on with its next sequence. If such a producer aborts after the promote before its
first batch, the client would get OUT_OF_ORDER_SEQUENCE_NUMBER, at which applications end. One cause of such an abort is
an offset commit that is refused because its group has just moved. Lettered rules:

A  A partition is deferred if a producer may have written there at the source, and the target's log holds no records of
   the producer. The router promises the client that the partition is in, but does not name the partition in
   AddPartitionsToTxn to the target's coordinator. A marker is no record: the marker may be that of the transaction
   before, written only now.
B  A transactional batch for a deferred partition waits until the partition is in. The connection that brings the batch
   adds the partition at its own broker. So the target judges whether this client may write there under this id. A
   broker judges that right first, and then whether the broker is the coordinator. If not, the router adds the partition
   over its own connections; adding a partition twice does no harm. The first batch goes alone: if it were refused with
   a second batch in flight, the second batch would be let in (W3).
C  If nothing else was in the transaction, the coordinator knows of no transaction. An abort that the coordinator
   answers with INVALID_TXN_STATE has succeeded.
D  No partition is deferred any more once the links are finished. A client with an earlier promise stays with the
   routers until the partition is in, or the transaction has ended: elsewhere the coordinator knows nothing of the
   partition. Every process learns from the others which clients they keep (`shared.client_handoff`, d). A process that
   died before its client wrote leaves nobody with that knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kmigrate.model.routes import RoutingTable

__all__ = ["DeferredPartitions", "ProducerIdentity"]

ProducerIdentity = tuple[str, int, int]
"""Transactional id, producer id and epoch as the client knows them."""
_MOST_WRITTEN = 100_000
"""Maximum entries of `DeferredPartitions.written`; beyond that all are forgotten, and the target is asked again."""


@dataclass(slots=True)
class DeferredPartitions:
    """The deferred partitions that one router knows."""

    written: set[tuple[str, int, int]] = field(default_factory=set)
    """Topic, partition and producer id where the target holds records of the producer: never deferred again."""
    promised: dict[str, tuple[object, set[tuple[str, int]]]] = field(default_factory=dict)
    """Deferred partitions that a client believes to be in, by transactional id, with the connection of the promise."""

    def has_records(self, topic: str, partition: int, producer_id: int) -> None:
        """Note that the target's partition holds records of the producer."""
        if len(self.written) >= _MOST_WRITTEN:
            self.written.clear()
        self.written.add((topic, partition, producer_id))

    def promise(self, name: str, connection: object, partitions: Iterable[tuple[str, int]]) -> None:
        """Note that a client hears that deferred partitions are in."""
        _, before = self.promised.get(name, (None, set()))
        self.promised[name] = (connection, before.union(partitions))

    def entered(self, name: str, topic: str, partition: int) -> None:
        """Note that a deferred partition is in."""
        _, left = self.promised.get(name, (None, set()))
        left.discard((topic, partition))
        if not left:
            self.over(name)

    def over(self, name: str) -> None:
        """Note that the id's transaction has ended."""
        self.promised.pop(name, None)

    def has_promised(self, connection: object) -> bool:
        return any(each is connection for each, _ in self.promised.values())

    def forget(self, connection: object) -> None:
        """Forget the promises to the client of a closed connection."""
        self.promised = {name: each for name, each in self.promised.items() if each[0] is not connection}

    @staticmethod
    def carried_over(table: RoutingTable, producer: ProducerIdentity, topic: str) -> bool:
        """Return whether a producer may have written a topic at its source before the topic's promote (A)."""
        name, producer_id, epoch = producer
        route = table.topics.get(topic)
        if route is None or not route.at_target:
            return False
        known = table.transactions.get(name, {}).get(route.link)
        if known is None or not known.at_source:
            return False
        return (known.producer_id, known.epoch) == (producer_id, epoch) and topic in known.topics

    def may_be(self, table: RoutingTable, producer: ProducerIdentity, topic: str, partition: int) -> bool:
        """Return whether a partition is deferred if the target holds no records of the producer there.

        False if the source never had it: a client may name a million at once, and the target would be asked about each.
        """
        if (topic, partition, producer[1]) in self.written or not self.carried_over(table, producer, topic):
            return False
        return 0 <= partition < table.topics[topic].partitions
