"""Partitions of groups that follow whose committed offset a client has asked for and was not told.

A client that takes such an answer for "there is no committed offset" reads from an end of the log. Its next commit lies
below the committed offset. No answer of this router is known to have that effect. If an answer has, the commit is
refused (`groups.handler`, rule G), so that the group keeps the offset. A partition is marked when an answer to
OffsetFetch leaves the committed offset out. The mark ends when any client of the group is told the offset, after ten
minutes, and with the group's promote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["Partition", "PendingPositions"]

Partition = tuple[str, int]
_FORGOTTEN_S = 600.0
"""Twice Java's default of `max.poll.interval.ms`: a consumer commits received records within that time."""
_MOST = 100_000
"""Maximum marks of a router; beyond that the oldest marks are dropped."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The time and the connection of the last answer without the committed offset."""

    at: float
    connection: int


@dataclass(slots=True)
class PendingPositions:
    """The marks of all client connections of a router."""

    refused: int = 0
    """Number of refused commits."""
    _marks: dict[tuple[str, Partition], _Mark] = field(default_factory=dict)
    """Marks by group and partition, the newest last."""

    def left_out(self, group: str, partitions: Iterable[Partition], connection: int, now: float) -> None:
        """Mark partitions after an answer that leaves out their committed offset."""
        for partition in partitions:
            self._marks.pop((group, partition), None)
            self._marks[group, partition] = _Mark(now, connection)
        while len(self._marks) > _MOST:
            del self._marks[next(iter(self._marks))]

    def clear(self, group: str, partitions: Iterable[Partition]) -> None:
        """Remove the marks of partitions after a client of the group is told their committed offset."""
        if self._marks:
            for partition in partitions:
                self._marks.pop((group, partition), None)

    def marked(
        self, group: str, partitions: Iterable[Partition], connection: int, now: float, *, of_member: bool
    ) -> set[Partition]:
        """Return the partitions that bear a mark; a commit of no member heeds only marks of its own connection."""
        if not self._marks:
            return set()
        found = {each: self._marks.get((group, each)) for each in partitions}
        return {
            each
            for each, mark in found.items()
            if mark is not None and now - mark.at <= _FORGOTTEN_S and (of_member or mark.connection == connection)
        }

    def keep(self, groups: Collection[str]) -> None:
        """Drop the marks of all other groups."""
        if self._marks:
            self._marks = {key: mark for key, mark in self._marks.items() if key[0] in groups}
