"""Merges the marks of producers at a barrier: several witnesses report marks, and the newest of each producer counts.

A mark says that the source stores this sequence of a producer id and epoch. None of the witnesses is enough: a router
(acknowledged sequences) forgets when it dies, the source broker (DescribeProducers) by the records' time (V6), and only
the end of the source's log is read. Sequences run in a ring: only marks of about the same time can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmigrate.model.ids import SEQUENCES
from kmigrate.model.records import BarrierRecord, ProducerMark

__all__ = ["barrier_chunks", "merge_marks", "newest", "sequence_after"]

_CHUNK = 5_000
"""Maximum number of producers in a record: about 200 kB of JSON, well below max.message.bytes."""


def sequence_after(one: int, other: int) -> bool:
    """Return whether sequence `one` comes after `other`, modulo 2^31: the shorter way round decides."""
    return 0 < (one - other) % SEQUENCES < SEQUENCES // 2


def newest(known: ProducerMark | None, mark: ProducerMark) -> ProducerMark:
    """Return the later of two marks of the same producer id."""
    if (
        known is None
        or mark.epoch > known.epoch
        or (mark.epoch == known.epoch and sequence_after(mark.last_sequence, known.last_sequence))
    ):
        return mark
    return known


def merge_marks(marks: Iterable[ProducerMark]) -> tuple[ProducerMark, ...]:
    """Return the newest mark of each producer id, ordered by producer id."""
    found: dict[int, ProducerMark] = {}
    for mark in marks:
        found[mark.producer_id] = newest(found.get(mark.producer_id), mark)
    return tuple(found[i] for i in sorted(found))


def barrier_chunks(
    link: str, topic: str, fence_epoch: int, producers: Mapping[int, tuple[ProducerMark, ...]], *, back: bool = False
) -> list[BarrierRecord]:
    """Return the records that hold a topic's marks, each small enough for a single batch; `back`: of a rollback."""
    chunks: list[BarrierRecord] = []
    current: dict[int, tuple[ProducerMark, ...]] = {}
    room = _CHUNK

    def close() -> None:
        nonlocal current, room
        if current:
            chunks.append(BarrierRecord(link, topic, len(chunks), fence_epoch, current, back))
        current, room = {}, _CHUNK

    for partition, marks in sorted(producers.items()):
        left = marks
        while left:
            current[partition] = left[:room]
            room -= len(left[:room])
            left = left[len(current[partition]) :]
            if room == 0:
                close()
    close()
    return chunks
