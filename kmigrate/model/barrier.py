"""What is known of producers at a barrier: marks from several witnesses, merged to the newest of each.

A mark says: of this producer id, in this epoch, this sequence is stored on the source. Witnesses are the routers
(what they saw acknowledged), the source broker (DescribeProducers) and the end of the source's log. A broker forgets a
producer by its records' own timestamps (V6), a router forgets when it dies, and of the log only the end is looked at:
none is enough alone. Sequences run in a ring, so only marks of about the same time can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kmigrate.model.ids import SEQUENCES
from kmigrate.model.records import BarrierRecord, ProducerMark

__all__ = ["barrier_chunks", "merge_marks", "newest", "sequence_after"]

_CHUNK = 5_000
"""Producers in one record: about 200 kB of JSON, well below max.message.bytes."""


def sequence_after(one: int, other: int) -> bool:
    """Whether sequence `one` comes after `other`, modulo 2^31: the shorter way round decides."""
    return 0 < (one - other) % SEQUENCES < SEQUENCES // 2


def newest(known: ProducerMark | None, mark: ProducerMark) -> ProducerMark:
    """The later of two marks of one producer id."""
    if (
        known is None
        or mark.epoch > known.epoch
        or (mark.epoch == known.epoch and sequence_after(mark.last_sequence, known.last_sequence))
    ):
        return mark
    return known


def merge_marks(marks: Iterable[ProducerMark]) -> tuple[ProducerMark, ...]:
    """The newest mark of each producer id, in order of ids."""
    found: dict[int, ProducerMark] = {}
    for mark in marks:
        found[mark.producer_id] = newest(found.get(mark.producer_id), mark)
    return tuple(found[i] for i in sorted(found))


def barrier_chunks(
    link: str, topic: str, fence_epoch: int, producers: Mapping[int, tuple[ProducerMark, ...]]
) -> list[BarrierRecord]:
    """The records that hold a topic's marks, each small enough for one batch."""
    chunks: list[BarrierRecord] = []
    current: dict[int, tuple[ProducerMark, ...]] = {}
    room = _CHUNK

    def close() -> None:
        nonlocal current, room
        if current:
            chunks.append(BarrierRecord(link, topic, len(chunks), fence_epoch, current))
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
