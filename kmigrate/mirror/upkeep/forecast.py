"""Forecast of a partition's copy before anything is written: identical or mapped offsets, holes, bytes.

A short log's batch headers are read to the end, for exact figures. A long log is read in a few stretches: its holes are
"at least" the holes seen, and its bytes are estimated from the stretches' bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.cluster.log_probes import has_wide_gap
from kmigrate.errors import Unreachable
from kmigrate.mirror.partition.steps import Append, Hole, read_steps
from kmigrate.mirror.partition.window import LONG
from kmigrate.model.link_settings import LinkSettings
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition

__all__ = ["Sample", "filling_s", "offsets_of", "sample", "why_mapped"]

_STRETCH = 1 << 20
_ANY_GAP = 1 << 62
_AT_ONCE = 16
"""Number of partitions that are probed for gaps at the same time."""
_MOST_PROBES = 2_000
"""Maximum number of probes for a topic not compacted now; each makes the source read from disk, perhaps last year's."""
_HOLE_S, _LONG_HOLE_S = 0.002, 0.001
"""Seconds of broker and mirror for a run of holes, singly and in a long window, beside round trips (`bench-holes`)."""
_HOLES_RATE = 2_000
"""Number of runs of holes per second that a broker and a mirror process fill, over many partitions together."""


async def why_mapped(
    source: ClusterClient, settings: LinkSettings, topic: str, starts: Mapping[int, int], *, compacted: bool
) -> str:
    """Return why `auto` cannot give identical offsets, or ''; gaps of former compaction count unless logs are long."""
    for partition, start in starts.items():
        if start > settings.align_limit:
            return f"partition {partition} begins at {start}; padding ends at {settings.align_limit}"
    ends = await offsets_of(source, topic, starts, LATEST)
    probes = sum(end - starts[partition] for partition, end in ends.items()) * 2 // settings.hole_limit
    if not compacted and probes > _MOST_PROBES:
        return ""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def is_wide(partition: int, end: int) -> bool:
        async with turns:
            return await has_wide_gap(source, topic, partition, starts[partition], end, settings.hole_limit)

    wide = await together(*(is_wide(partition, end) for partition, end in ends.items()))
    for partition, found in zip(ends, wide, strict=True):
        if found:
            return f"compaction left gaps in partition {partition} that are too wide to be filled"
    return ""


async def offsets_of(client: ClusterClient, topic: str, partitions: Iterable[int], wanted: int) -> dict[int, int]:
    """Return the offset of each partition at a timestamp, EARLIEST or LATEST; raise Unreachable if one is unknown."""
    found = await client.list_offsets({(topic, partition): wanted for partition in partitions})
    for (_, partition), answer in found.items():
        if answer.error:
            await client.refresh([topic])
            raise Unreachable("no-offsets", f"{topic}-{partition}: {row(answer.error).name}")
    return {partition: answer.offset for (_, partition), answer in found.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """Offsets that no reader sees, and the bytes of the others, for the whole range or for the part that was read."""

    holes: int
    exact: bool
    bytes: int
    """Bytes of the whole range; an estimate if `exact` is false."""
    runs: int
    """Number of runs of contiguous hole offsets, each filled at once; an estimate if `exact` is false."""


def filling_s(samples: Collection[Sample], round_trip_s: float, *, long: bool = False) -> float:
    """Return the seconds for a topic's holes: those of a partition in sequence, of different partitions in parallel.

    `long`: windows may have many holes (`partition/lane.py`, O).
    """
    longest = max((each.runs for each in samples), default=0)
    each_s = _LONG_HOLE_S + round_trip_s / LONG if long else _HOLE_S + round_trip_s
    return max(longest * each_s, sum(each.runs for each in samples) / _HOLES_RATE)


async def sample(
    source: ClusterClient, topic: str, partition: int, start: int, end: int, *, stretches: int = 10
) -> Sample:
    """Look at offsets start … end − 1: half of the stretches from the start on, the others spread over the range."""
    holes = weight = runs = seen = 0
    at = start
    near = (stretches + 1) // 2
    for number in range(1, stretches + 1):
        if at >= end:
            break
        found = await _stretch(source, topic, partition, at, end)
        holes, weight, seen = holes + found.holes, weight + found.bytes, seen + found.next_offset - at
        runs += found.runs
        if found.next_offset <= at:
            break
        at = found.next_offset
        if number >= near:
            at = max(at, start + (end - start) * (number - near + 1) // (stretches - near + 1))
    exact = seen >= end - start
    if not exact and seen:
        weight, runs = (each * (end - start) // seen for each in (weight, runs))
    return Sample(holes, exact, weight, runs)


class _Stretch(NamedTuple):
    next_offset: int
    holes: int
    bytes: int
    runs: int


async def _stretch(source: ClusterClient, topic: str, partition: int, at: int, end: int) -> _Stretch:
    node = source.leader(topic, partition)
    part = FetchPartition(topic, partition, at, _STRETCH)
    answer = await fetch_one(source, node, part, purpose="probe", read_committed=True)
    if answer.error:
        await source.refresh([topic])
        raise Unreachable("probe-refused", f"{topic}-{partition} at {at}: {row(answer.error).name}")
    reading = read_steps(answer.records, answer.aborted, read_at=at, leader_epoch=-1, hole_limit=_ANY_GAP)
    appends = [step for step in reading.steps if isinstance(step, Append) and step.start < end]
    reached = min(reading.next_offset, end)
    records = sum(min(step.end, end) - step.start for step in appends)
    runs = sum(isinstance(step, Hole) and step.start < end for step in reading.steps)
    return _Stretch(reached, reached - at - records, sum(len(step.view) for step in appends), runs)
