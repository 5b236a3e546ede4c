"""The ranges that `verify` compares: for each partition the offsets that both clusters hold in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from kmigrate.cluster.client import EARLIEST, LATEST, ClusterClient, LogOffset
from kmigrate.errors import Failed, ParityMismatch, Refused, WaitTimedOut
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.records import TopicRecord, VerifiedRange
from kmigrate.model.words import advised
from kmigrate.net.clock import monotonic, sleep
from kmigrate.parity.plan import CLEANED, TopicRange
from kmigrate.protocol.codes import row
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions

__all__ = ["find_ranges"]

_LOOK_SECONDS = 0.2

Key = tuple[str, int]
Maps = Mapping[Key, OffsetMap]


async def find_ranges(
    connections: Connections,
    source: ClusterClient,
    records: Sequence[TopicRecord],
    verified: Mapping[Key, VerifiedRange],
    timeout: float,
    say: Callable[[str], None],
    *,
    reached: bool = False,
) -> list[TopicRange]:
    """Return the range to compare of each partition, once the target holds the range; `say` shows the wait.

    A range starts at the first offset that both sides have and no check verified. A range ends at the barrier or the
    source's last stable offset now. The whole log counts as new where a log was cut (ends below its verified range), or
    where the target has lost its beginning: nothing is deleted on the target while a topic is mirrored.

    With `reached` ranges end where the target is, and partitions without new records are left out. Otherwise raise for
    what ranges cannot express: a recreated topic, partitions not copied, target records behind the source's end.
    """
    target = connections.target
    names = [record.topic for record in records]
    await source.refresh(names)
    await target.refresh(names)
    partitions = {(record.topic, p): record for record in records for p in range(record.partitions)}
    copying = [r for r in records if r.phase is TopicPhase.MIRRORING and not reached]
    for record in copying:
        _refuse_changed_topic(record, source)
    # The target is read before the source, so that the order of reading never shows the target ahead.
    written = await _read(target, [(r.topic, p) for r in copying for p in range(r.partitions)], committed=True)
    stable = await _read(source, partitions, committed=True)
    ends = {
        key: record.barrier[key[1]].offset if record.promoted_ms and key[1] in record.barrier else stable[key].offset
        for key, record in partitions.items()
    }
    deadline = _Deadline(timeout, say)
    mapped = [record for record in records if record.mapped]
    maps = await (_maps(connections, mapped) if reached else _maps_up_to(connections, mapped, ends, deadline))
    for record in copying:
        _refuse_ahead(record, written, stable, maps)
    source_starts, target_starts = [await _read(client, partitions, at=EARLIEST) for client in (source, target)]
    kept = {key for key, record in partitions.items() if not record.at_target}
    starts: dict[Key, int] = {}
    for key, record in partitions.items():
        starts[key] = max(record.starts.get(key[1], 0), source_starts[key].offset)
        if key not in kept:
            starts[key] = max(starts[key], _on_source(target_starts, maps, key))
    cut = {key for key in kept if _begins_late(target_starts, maps, key, starts)}
    whole = {key: each for key, each in verified.items() if key not in cut}
    if reached:
        there = await _read(target, partitions, committed=True)
        now = {key: min(ends[key], _on_source(there, maps, key)) for key in partitions}
        new = [key for key in partitions if _anything_new(starts[key], now[key], ends[key], whole.get(key))]
        partitions, ends = {key: partitions[key] for key in new}, now
    ranges = [
        replace(
            _range(key, starts[key], max(starts[key], ends[key]), maps.get(key), whole.get(key)),
            kept=key in kept,
            cleaned_to=CLEANED if record.compacted else record.cleaned_to.get(key[1], 0),
        )
        for key, record in partitions.items()
    ]
    if not reached:
        filled = [each for each in ranges if each.offsets]
        await _until_passed(source, {each.key: each.end for each in filled}, deadline)
        await _until_passed(target, {each.key: each.at_target.end for each in filled}, deadline)
    return ranges


def _refuse_changed_topic(record: TopicRecord, source: ClusterClient) -> None:
    """Raise where the source's topic was recreated since the copy, or has partitions that were not copied."""
    info = source.metadata.topics.get(record.topic)
    if info is None:
        return
    if info.is_other_than(record.source_topic_id):
        raise Refused(
            "topic-recreated",
            f"{record.topic} on {source.settings.name} is another topic than the one mirrored",
            still_true="nothing was compared or changed",
            next_step="kmigrate status says how it is copied anew",
        )
    if len(info.partitions) > record.partitions:
        raise Refused(
            "partitions-not-mirrored",
            f"{record.topic} has {len(info.partitions)} partitions on {source.settings.name}, and {record.partitions} "
            "of it are mirrored",
            still_true="nothing was compared or changed",
            next_step="a running mirror creates and copies them: repeat it then",
        )


def _refuse_ahead(
    record: TopicRecord, written: Mapping[Key, LogOffset], stable: Mapping[Key, LogOffset], maps: Maps
) -> None:
    """Raise where the target holds records behind the source's end: no mirror has written these records."""
    for partition in range(record.partitions):
        key = record.topic, partition
        end = written[key].offset
        if key in maps:
            last = maps[key].to_source(end - 1)
            end = last.offset + 1 if last is not None and last.is_record else 0
        given_up = (loss.last + 1 for loss in record.losses.get(partition, ()))
        most = max(stable[key].offset, record.starts.get(partition, 0), *given_up)
        if end > most:
            raise ParityMismatch(
                "target-ahead",
                f"{record.topic}-{partition} goes on to offset {end:,} on the target, and the source ends at {most:,}",
                still_true="nothing was compared or changed",
                next_step="find who else writes to the target, or what the source has lost; name the other topics to "
                f"compare those: {advised('verify', record.link, 'TOPIC...')}",
            )


def _range(key: Key, start: int, end: int, made: OffsetMap | None, before: VerifiedRange | None) -> TopicRange:
    if before is None or not before.start <= start <= before.end <= end:
        return TopicRange(*key, start, end, made)
    return TopicRange(*key, before.end, end, made, start)


def _anything_new(start: int, now: int, end: int, before: VerifiedRange | None) -> bool:
    """Return whether both sides have records that no check verified; `end` is the source's own end.

    A verified range stays verified as long as the source has the range: a map may have forgotten holes at its end.
    """
    return start < now and (before is None or before.end < now or end < before.end)


class _Deadline:
    """The deadline of the target for all partitions together; `say` shows what the check waits for."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self._seconds, self._deadline, self._say = seconds, monotonic() + seconds, say

    async def wait(self, text: str) -> None:
        if monotonic() > self._deadline:
            raise WaitTimedOut(
                "not-caught-up",
                f"waited {self._seconds:g} s; {text}",
                still_true="nothing was compared or changed",
                next_step="kmigrate status, to see whether a mirror runs and what stops it",
            )
        self._say(f"waiting: {text}")
        await sleep(_LOOK_SECONDS)


async def _maps(connections: Connections, records: Sequence[TopicRecord]) -> dict[Key, OffsetMap]:
    """Return the offset maps of mapped topics, as far as the maps go now."""
    positions = Positions(connections.target, connections.log)
    return {(record.topic, p): made for record in records for p, made in (await positions.maps(record)).items()}


async def _maps_up_to(
    connections: Connections, records: Sequence[TopicRecord], ends: Mapping[Key, int], deadline: _Deadline
) -> dict[Key, OffsetMap]:
    """Return the offset maps of mapped topics, once the maps cover every offset below the ends."""
    found: dict[Key, OffsetMap] = {}
    for record in records:
        while True:
            maps = await _maps(connections, [record])
            behind = next((key for key, made in maps.items() if made.to_target(ends[key]) is None), None)
            if behind is None:
                found |= maps
                break
            topic, partition = behind
            await deadline.wait(f"{topic}-{partition} is mapped up to {maps[behind].covered:,} of {ends[behind]:,}")
    return found


def _on_source(starts: Mapping[Key, LogOffset], maps: Maps, key: Key) -> int:
    """Return the source offset at which the target's log begins."""
    start = starts[key].offset
    if key not in maps:
        return start
    place = maps[key].to_source(start)
    return maps[key].covered if place is None else place.offset


def _begins_late(starts: Mapping[Key, LogOffset], maps: Maps, key: Key, wanted: Mapping[Key, int]) -> bool:
    """Return whether the target's log begins behind the place of the first source offset to hold."""
    place = maps[key].to_target(wanted[key]) if key in maps else None
    first = wanted[key] if key not in maps else place.offset if place is not None else starts[key].offset
    return starts[key].offset > first


async def _read(
    client: ClusterClient, keys: Iterable[Key], *, at: int = LATEST, committed: bool = False
) -> dict[Key, LogOffset]:
    answers = await client.list_offsets(dict.fromkeys(keys, at), read_committed=committed)
    for (topic, partition), answer in answers.items():
        if answer.error:
            raise Failed(
                "offsets-unknown",
                f"cluster {client.settings.name} does not return the offsets of {topic}-{partition}: "
                f"{row(answer.error).name}",
                still_true="nothing was read or changed",
                next_step="repeat it when the partition has a leader",
            )
    return answers


async def _until_passed(client: ClusterClient, ends: Mapping[Key, int], deadline: _Deadline) -> None:
    """Wait until one cluster's last stable offsets have reached the ends: Spark reads committed records only."""
    left = dict(ends)
    while left:
        stable = await _read(client, left, committed=True)
        left = {key: end for key, end in left.items() if stable[key].offset < end}
        if left:
            (topic, partition), end = next(iter(left.items()))
            at = stable[topic, partition].offset
            await deadline.wait(f"{client.settings.name} at {at:,} of {end:,} on {topic}-{partition}")
