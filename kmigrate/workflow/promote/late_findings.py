"""Names what the source of a promoted topic took at or beyond the barrier: for `status`, `verify` and `link finish`.

The watch (`promote.late_writes`) keeps the figures in the state log. These commands also read what the watch has not
read: where no controller runs late offsets are named, and no marker is reported as a missing record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.errors import KmigrateError, Unreachable
from kmigrate.model.records import LateWrites, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.tasks import together
from kmigrate.protocol.codes import row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.late import LateBatch, late_batches

__all__ = ["LateFound", "copied_by", "find_late", "late_of", "promoted", "read_late", "reads_of_late", "with_unread"]

_MOST_PARTITIONS = 50
_MOST_READS = 4
"""Responses that are read for a partition; the watch reads the rest."""
_READ_BYTES = 4 << 20
_MOST_NAMED = 20
"""Maximum number of producers that are named for a partition."""


@dataclass(frozen=True, slots=True)
class LateFound:
    """The late writes of one partition."""

    topic: str
    partition: int
    writes: LateWrites
    copied_by: int = -1
    """Producer id of the former copy from the target, whose records are not late; −1: there was no such copy."""

    @property
    def missing(self) -> bool:
        """True if the target may lack a record."""
        return self.writes.lost > 0 or self.writes.unread > 0

    def as_json(self) -> dict[str, Any]:
        writes = asdict(self.writes)
        del writes["read_to"], writes["handled_to"]
        rest = {"unread": self.writes.unread, "missing": self.missing}
        return {"topic": self.topic, "partition": self.partition} | writes | rest

    @property
    def text(self) -> str:
        writes = self.writes
        ids = ", ".join(str(producer) for producer, _ in writes.producers if producer >= 0)
        who = f" by producer id {ids}" if ids else ""
        last = writes.end - 1
        offsets = f"offset {last:,}" if last == writes.start else f"offsets {writes.start:,} to {last:,}"
        known = f"{writes.records:,} record{'' if writes.records == 1 else 's'}"
        if writes.unread:
            known += f", {writes.unread:,} offsets not read yet"
        elif not writes.records:
            known = "no record that a reader sees: transaction markers, or aborted records"
        done = f", {writes.handled:,} of them on the target" if writes.handled else ""
        return f"{self.topic}-{self.partition}: the source took {offsets} after the flip{who} ({known}{done})"


def promoted(records: Iterable[TopicRecord]) -> list[TopicRecord]:
    return [record for record in records if record.at_target and record.barrier and not record.copied_back]


def late_of(state: State, record: TopicRecord, ends: Mapping[int, int]) -> tuple[LateFound, ...]:
    """Return the late offsets of a topic, by the state log and by the source's log ends where these are known."""
    known = state.late(record.link, record.topic)
    found: list[LateFound] = []
    for partition, start in sorted(record.late_starts.items()) if promoted([record]) else ():
        begun = LateWrites(start, start, 0, start, 0, 0)
        writes = known.partitions.get(partition, begun) if known is not None else begun
        writes = replace(writes, end=max(writes.end, ends.get(partition, -1)))
        if writes.end > start:
            found.append(LateFound(record.topic, partition, writes, copied_by(record)))
    return tuple(found)


def copied_by(record: TopicRecord) -> int:
    """Return the producer id under which the mirror copied the topic from the target to the source; −1 for none."""
    copy = record.way_back.copy if record.way_back is not None else None
    return copy.data_id if copy is not None else -1


async def with_unread(source: ClusterClient, found: Sequence[LateFound]) -> tuple[LateFound, ...]:
    """Read offsets that the watch has not read, as far as a few answers reach; the rest stays unread."""
    unread = [each for each in found if each.writes.unread][:_MOST_PARTITIONS]
    read = dict(zip(unread, await together(*(_read(source, each) for each in unread)), strict=True))
    return tuple(read.get(each, each) for each in found)


async def _read(source: ClusterClient, found: LateFound) -> LateFound:
    with suppress(KmigrateError):
        key = found.topic, found.partition
        async for writes in reads_of_late(source, *key, found.writes, _MOST_READS, copied_by=found.copied_by):
            found = replace(found, writes=writes)
    return found


async def find_late(
    state: State, source: ClusterClient, records: Sequence[TopicRecord]
) -> tuple[tuple[LateFound, ...], str]:
    """Return the late offsets of promoted topics, and why the source could not be asked, or ''."""
    records = promoted(records)
    ends: dict[str, dict[int, int]] = {}
    why = ""
    try:
        keys = [(record.topic, partition) for record in records for partition in record.barrier]
        if keys:
            await source.refresh([record.topic for record in records])
        for (topic, partition), end in (await source.log_ends(keys)).items() if keys else ():
            if not end.error:
                ends.setdefault(topic, {})[partition] = end.offset
    except KmigrateError as error:
        why = error.what
    found = tuple(late for record in records for late in late_of(state, record, ends.get(record.topic, {})))
    return (await with_unread(source, found) if not why else found), why


async def read_late(
    source: ClusterClient, topic: str, partition: int, offset: int, *, copied_by: int = -1
) -> tuple[list[LateBatch], int]:
    """Return batches without markers and aborted data, up to an open transaction; and the offset reached.

    Batches of producer id `copied_by` are left out: the mirror has copied these batches from the target.
    """
    part = FetchPartition(topic, partition, offset, _READ_BYTES)
    answer = await fetch_one(source, source.leader(topic, partition), part, purpose="late", read_committed=True)
    if answer.error:
        await source.refresh([topic])
        starts = await source.list_offsets({(topic, partition): EARLIEST})
        begins = starts[topic, partition]
        if not begins.error and begins.offset > offset:
            return [], begins.offset  # deleted by now: named, and nothing is left to be read
        raise Unreachable("late-unread", f"{topic}-{partition} at {offset}: {row(answer.error).name}")
    batches, read_to = late_batches(answer.records, answer.aborted, offset)
    return [batch for batch in batches if copied_by < 0 or batch.producer[0] != copied_by], read_to


async def reads_of_late(
    source: ClusterClient, topic: str, partition: int, known: LateWrites, most: int, *, copied_by: int = -1
) -> AsyncIterator[LateWrites]:
    """Yield late writes after each response, until all is read or an open transaction holds the rest back."""
    for _ in range(most):
        if known.unread <= 0:
            return
        batches, read_to = await read_late(source, topic, partition, known.read_to, copied_by=copied_by)
        if read_to <= known.read_to:
            return
        known = replace(
            known,
            end=max(known.end, read_to),
            read_to=read_to,
            records=known.records + sum(batch.records for batch in batches),
            producers=tuple(dict.fromkeys([*known.producers, *(batch.producer for batch in batches)]))[:_MOST_NAMED],
        )
        yield known
