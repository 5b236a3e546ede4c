"""Counts how far a group is behind, and names the partitions whose lag is unknown.

A partition without a committed position, or with a position beyond the log's end, has no lag: `auto.offset.reset`
decides where the consumer begins there. Such a partition is named apart, and never counted as a lag of 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset

__all__ = ["UNKNOWN", "GroupLag", "group_lag"]

_Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of one group."""

    records: int = -1
    """Records between committed positions and log ends; −1 where no partition's lag is known."""
    unplaced: tuple[_Partition, ...] = ()
    """Partitions with records and without a committed position."""
    beyond: tuple[_Partition, ...] = ()
    """Partitions with a committed position beyond the log's end."""


UNKNOWN = GroupLag()


def group_lag(
    positions: Mapping[_Partition, CommittedOffset],
    partitions: Collection[_Partition],
    starts: Mapping[_Partition, LogOffset],
    ends: Mapping[_Partition, LogOffset],
) -> GroupLag:
    """Return the lag over all partitions of the topics that the group reads; unknown where one log is unknown."""
    if any(ends[key].error or ends[key].offset < 0 for key in partitions):
        return UNKNOWN
    empty = {key for key in partitions if key in starts and 0 <= ends[key].offset <= starts[key].offset}
    unplaced = tuple(sorted(key for key in partitions if key not in positions and key not in empty))
    placed = {key: ends[key].offset - positions[key].offset for key in partitions if key in positions}
    beyond = tuple(sorted(key for key, behind in placed.items() if behind < 0))
    known = [behind for behind in placed.values() if behind >= 0]
    nothing_there = not unplaced and not beyond and bool(partitions)
    return GroupLag(sum(known) if known or nothing_there else -1, unplaced, beyond)
