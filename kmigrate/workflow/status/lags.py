"""Measures how far copies and groups are behind, and what copies that have begun have still to copy.

A copy's lag is counted in records by both logs' ends, and in bytes and seconds by the mirror's last report. A dead
mirror's report counts: `fresh_ms` is a moment, so the seconds go on growing. A report counts only where the target
holds its records. Without a report in the last minute, or of a new mirror's first batch, kmigrate reads the next batch
on the source.

In a group, a partition without a committed position, or with a position beyond the log's end, has no lag and is named
apart, never counted as 0: `auto.offset.reset` decides where the consumer begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.committed_offsets import CommittedOffset
from kmigrate.cluster.log_probes import look_ahead
from kmigrate.model.lag import UNPACED, Lag, Pace, lag_of
from kmigrate.model.lifecycle import COPIED, NOT_COPIED_YET
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import TopicRecord
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions

__all__ = [
    "UNKNOWN",
    "GroupLag",
    "Offsets",
    "copied_up_to",
    "group_lag",
    "lags_of",
    "lost_beginning",
    "padding_left",
    "way_back_seconds",
]

Key = tuple[str, int]
"""A topic and a partition."""
Offsets = Mapping[Key, LogOffset]


async def lags_of(
    records: Iterable[TopicRecord],
    source_ends: Offsets,
    target_ends: Offsets,
    reports: Collection[MirrorPresence],
    source: ClusterClient | None,
) -> dict[Key, Lag]:
    """Return the lag of every partition of one link's topics; `source` is None where the source does not answer.

    The target has all up to its log end (identical offsets), or up to the position that the mirror reports (mapped).
    """
    behind: dict[Key, int] = {}
    paces: dict[Key, Pace] = {}
    unheard: dict[Key, int] = {}
    for record in records:
        of_topic = [each.topics.get(record.topic, {}) for each in reports if each.link == record.link]
        for partition in range(record.partitions):
            key = (record.topic, partition)
            progress = [topic[partition] for topic in of_topic if partition in topic]
            copied_to = target_ends[key].offset
            if record.mapped:
                copied_to = max((each.position for each in progress), default=-1)
            behind[key] = _behind(record, source_ends[key].offset, copied_to)
            known = [each.pace for each in progress if each.position <= copied_to]
            paces[key] = max(known, key=lambda pace: pace.fresh_ms, default=UNPACED)
            if behind[key] > 0 and not paces[key].fresh_ms and record.phase not in NOT_COPIED_YET:
                unheard[key] = copied_to
    if source is not None and unheard:
        paces |= await look_ahead(source, unheard)
    now = now_ms()
    return {key: lag_of(missing, paces[key], now) for key, missing in behind.items()}


def _behind(record: TopicRecord, source_end: int, target_end: int) -> int:
    if record.at_target:
        return 0
    # unknown, too, if the copy holds records that the source does not hold
    unknown = source_end < 0 or target_end < 0 or target_end > source_end
    return -1 if unknown else source_end - target_end


def way_back_seconds(progress: Mapping[int, PartitionProgress], behind: int) -> float:
    """Return the age of the oldest record that a copy back lacks, by its owners' reports; −1 where unknown."""
    if behind <= 0 or not progress:
        return 0.0 if behind == 0 else -1.0
    now = now_ms()
    lags = [lag_of(max(0, each.source_end - each.position), each.pace, now) for each in progress.values()]
    return max(each.seconds for each in lags)


def lost_beginning(record: TopicRecord, key: Key, on_target: Offsets, on_source: Offsets) -> str:
    """Describe records that are gone at the beginning of a copy and still on the source; '' for none.

    Only identical offsets are judged. A mirrored topic loses only what the source has lost: somebody deleted all else.
    """
    start, there, here = record.starts.get(key[1], 0), on_target[key].offset, on_source[key].offset
    first = max(start, here)
    if record.mapped or record.phase not in COPIED or here < 0 or there <= first:
        return ""
    return f"copy-cut: offsets {first} to {there - 1} are gone on the target, where somebody deletes records"


async def copied_up_to(connections: Connections, record: TopicRecord) -> dict[int, int]:
    """Return the source offset from which each partition is still to be copied; its start where no copy has begun.

    With mapped offsets the offset map gives the offset. Raises Unreachable where the target does not tell its ends.
    """
    found = dict(record.starts)
    if record.phase not in NOT_COPIED_YET:
        for partition, made in (await Positions(connections.target, connections.log).maps(record)).items():
            found[partition] = max(found.get(partition, 0), made.covered)
    return found


async def padding_left(connections: Connections, record: TopicRecord) -> int:
    """Count the filler offsets that the target lacks below a topic's starts; all of them where no topic exists yet."""
    if record.mapped or record.phase not in NOT_COPIED_YET:
        return 0
    ends = await connections.target.log_ends((record.topic, partition) for partition in record.starts)
    return sum(max(0, record.starts[partition] - max(0, end.offset)) for (_, partition), end in ends.items())


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of one group."""

    records: int = -1
    """Records between committed positions and log ends; −1 where no partition's lag is known."""
    unplaced: tuple[Key, ...] = ()
    """Partitions with records and without a committed position."""
    beyond_end: tuple[Key, ...] = ()
    """Partitions with a committed position beyond the log's end."""


UNKNOWN = GroupLag()


def group_lag(
    positions: Mapping[Key, CommittedOffset],
    partitions: Collection[Key],
    starts: Mapping[Key, LogOffset],
    ends: Mapping[Key, LogOffset],
) -> GroupLag:
    """Return the lag over all partitions of the topics that the group reads; unknown where one log is unknown."""
    if any(ends[key].error or ends[key].offset < 0 for key in partitions):
        return UNKNOWN
    empty = {key for key in partitions if key in starts and 0 <= ends[key].offset <= starts[key].offset}
    unplaced = tuple(sorted(key for key in partitions if key not in positions and key not in empty))
    placed = {key: ends[key].offset - positions[key].offset for key in partitions if key in positions}
    beyond_end = tuple(sorted(key for key, behind in placed.items() if behind < 0))
    known = [behind for behind in placed.values() if behind >= 0]
    nothing_there = not unplaced and not beyond_end and bool(partitions)
    return GroupLag(sum(known) if known or nothing_there else -1, unplaced, beyond_end)
