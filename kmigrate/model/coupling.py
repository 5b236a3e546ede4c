"""Finds the topics and groups that transactions couple; pure.

A transaction couples the topics that it writes, and the groups whose positions it commits, on a single cluster. If only
some of them were promoted, its producer could not go on. So topics and groups that transactional ids connect form a
unit, and are promoted and rolled back together. A topic or group that no transaction uses is a unit of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from kmigrate.model.records import TransactionRecord

__all__ = ["Coupling", "commits_in_transactions", "coupled_topics", "unit_of"]


class Coupling(Protocol):
    """Topics and groups that transactions couple, as a `TransactionRecord` names them."""

    @property
    def name(self) -> str: ...

    @property
    def topics(self) -> Sequence[str]: ...

    @property
    def groups(self) -> Sequence[str]: ...


def unit_of(
    couplings: Iterable[Coupling], topics: Collection[str] = (), groups: Collection[str] = ()
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the other topics and the other groups of a unit, each with the name of a coupling."""
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    unit = (set(topics), set(groups))
    left = [each for each in couplings if len(each.topics) + len(each.groups) > 1]

    def touches(coupling: Coupling) -> bool:
        return not (unit[0].isdisjoint(coupling.topics) and unit[1].isdisjoint(coupling.groups))

    while near := [each for each in left if touches(each)]:
        left = [each for each in left if not touches(each)]
        for coupling in near:
            for each, known, names in zip(found, unit, (coupling.topics, coupling.groups), strict=True):
                each.update({name: coupling.name for name in names if name not in known})
                known.update(names)
    return found


def commits_in_transactions(transactions: Iterable[TransactionRecord], group: str) -> bool:
    """Return whether a transactional id is known to commit the group's positions."""
    return any(group in each.groups for each in transactions)


def coupled_topics(transactions: Iterable[TransactionRecord], topics: Collection[str]) -> Mapping[str, str]:
    """Return the other topics in the unit of these topics, each with a transactional id that couples it."""
    return unit_of(transactions, topics)[0]
