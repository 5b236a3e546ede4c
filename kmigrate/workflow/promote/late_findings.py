"""Names what the source of a promoted topic took at or beyond the barrier: for `status`, `verify` and `link finish`.

The watch (`promote.late_writes`) keeps the figures in the state log. These commands also look at the source, so that
late offsets are named where no controller runs. They read what the watch has not read yet: a late transaction marker
holds no record, so no marker is reported as a missing record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import TopicRecord
from kmigrate.model.state import State
from kmigrate.net.tasks import together
from kmigrate.workflow.promote.late_batches import read_late

__all__ = ["LateFound", "find_late", "late_of", "promoted", "with_unread"]

_MOST_PARTITIONS = 50
_MOST_READS = 4
"""Responses that are read for a partition; the watch reads the rest."""
_MOST_NAMED = 20
"""Maximum number of producers that are named for a partition."""


@dataclass(frozen=True, slots=True)
class LateFound:
    """Late offsets of a partition: all from `start` up to, and without, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    """Records in these offsets that readers see, as far as the offsets are read."""
    handled: int
    """Records in these offsets that were copied or quarantined."""
    unread: int
    """Offsets that nobody has read yet, or that belong to an open transaction."""
    producers: tuple[tuple[int, int], ...] = ()
    """Producer ids and epochs, the first few."""
    first_ms: int = 0
    last_ms: int = 0

    @property
    def missing(self) -> bool:
        """True if the target may lack a record."""
        return self.records > self.handled or self.unread > 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "missing": self.missing}

    @property
    def text(self) -> str:
        ids = ", ".join(str(producer) for producer, _ in self.producers if producer >= 0)
        who = f" by producer id {ids}" if ids else ""
        last = self.end - 1
        offsets = f"offset {self.start:,}" if last == self.start else f"offsets {self.start:,} to {last:,}"
        count = f"{self.records:,} record{'' if self.records == 1 else 's'}"
        if not self.records and not self.unread:
            count = "no record that a reader sees: transaction markers, or aborted records"
        known = f"{count}, {self.unread:,} offsets not read yet" if self.unread else count
        done = f", {self.handled:,} of them on the target" if self.handled else ""
        return f"{self.topic}-{self.partition}: the source took {offsets} after the flip{who} ({known}{done})"


def promoted(records: Iterable[TopicRecord]) -> list[TopicRecord]:
    """Return the records of promoted topics."""
    return [record for record in records if record.phase is TopicPhase.PROMOTED and record.barrier]


def late_of(state: State, record: TopicRecord, ends: Mapping[int, int]) -> tuple[LateFound, ...]:
    """Return the late offsets of a topic, by the state log and by the source's log ends where these are known."""
    known = state.late(record.link, record.topic)
    found: list[LateFound] = []
    for partition, barrier in sorted(record.barrier.items()) if promoted([record]) else ():
        late = known.partitions.get(partition) if known is not None else None
        end = max(late.end if late is not None else barrier.offset, ends.get(partition, -1))
        if end <= barrier.offset:
            continue
        if late is None:
            unread = end - barrier.offset
            found.append(LateFound(record.topic, partition, barrier.offset, end, 0, 0, unread))
        else:
            found.append(
                LateFound(
                    record.topic,
                    partition,
                    late.start,
                    end,
                    late.records,
                    late.handled,
                    end - late.read_to,
                    late.producers,
                    late.first_ms,
                    late.last_ms,
                )
            )
    return tuple(found)


async def with_unread(source: ClusterClient, found: Sequence[LateFound]) -> tuple[LateFound, ...]:
    """Read offsets that the watch has not read yet, as far as a few answers of the source reach.

    Offsets that cannot be read now, or that an open transaction holds back, stay unread.
    """
    left = [each for each in found if each.unread][:_MOST_PARTITIONS]
    read = dict(zip(left, await together(*(_read(source, each) for each in left)), strict=True)) if left else {}
    return tuple(read.get(each, each) for each in found)


async def _read(source: ClusterClient, found: LateFound) -> LateFound:
    with suppress(KmigrateError):
        for _ in range(_MOST_READS):
            at = found.end - found.unread
            batches, read_to = await read_late(source, found.topic, found.partition, at)
            if read_to <= at:
                break
            end = max(found.end, read_to)
            producers = tuple(dict.fromkeys([*found.producers, *(batch.producer for batch in batches)]))[:_MOST_NAMED]
            records = found.records + sum(batch.records for batch in batches)
            found = replace(found, end=end, records=records, unread=end - read_to, producers=producers)
            if not found.unread:
                break
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
