"""Topics that are coupled because transactions write to them together: they are promoted together.

A transaction lives on one cluster. Were only one of its topics promoted, its producer could not go on. A unit is
what is connected by transactional ids; a topic that is in no transaction is its own unit. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kmigrate.model.records import TransactionRecord

__all__ = ["coupled_topics"]


def coupled_topics(transactions: Iterable[TransactionRecord], topics: Collection[str]) -> Mapping[str, str]:
    """The other topics of these topics' unit, each with a transactional id that couples it."""
    found: dict[str, str] = {}
    left, unit = [t for t in transactions if len(t.topics) > 1], set(topics)
    while near := [t for t in left if not unit.isdisjoint(t.topics)]:
        for transaction in near:
            found.update({topic: transaction.name for topic in transaction.topics if topic not in unit})
            unit.update(transaction.topics)
            left.remove(transaction)
    return found
