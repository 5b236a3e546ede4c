"""The visible batches of a read_committed response, each ready to be appended to another log. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kmigrate.model.ids import SEQUENCES
from kmigrate.records.batch import DELETE_HORIZON, TRANSACTIONAL, Batch, stamp
from kmigrate.records.old_messages import OldMessages, walk_all
from kmigrate.records.rewrite import needs_rewriting, rewrite

__all__ = ["LateBatch", "late_batches"]


@dataclass(frozen=True, slots=True)
class LateBatch:
    """Consecutive records without a gap, as a batch."""

    start: int
    end: int
    producer: tuple[int, int]
    """Producer id and epoch."""
    view: memoryview

    @property
    def records(self) -> int:
        return self.end - self.start

    def stamp(self, producer_id: int, sequence: int) -> None:
        """Give the batch a producer id with epoch 0, and a sequence that wraps as brokers wrap sequences."""
        clear = TRANSACTIONAL | DELETE_HORIZON
        stamp(self.view, producer_id=producer_id, epoch=0, sequence=sequence % SEQUENCES, clear=clear)


def late_batches(records: memoryview, aborted: Sequence[tuple[int, int]], read_at: int) -> tuple[list[LateBatch], int]:
    """Return the visible batches from offset `read_at` on, and the offset to read next.

    `aborted` lists producer ids and first offsets; an entry counts up to the producer's next control batch (W9).
    """
    waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
    active: set[int] = set()
    found: list[LateBatch] = []
    for batch in walk_all(records):
        if isinstance(batch, Batch):
            while waiting and waiting[-1][0] <= batch.last_offset:
                active.add(waiting.pop()[1])
            if batch.is_control:
                active.discard(batch.producer_id)
        if batch.next_offset <= read_at:
            continue
        if isinstance(batch, OldMessages) or not _unseen(batch, active):
            found += _appendable(batch, read_at)
        read_at = batch.next_offset
    return found, read_at


def _unseen(batch: Batch, active: set[int]) -> bool:
    return batch.is_control or (batch.is_transactional and batch.producer_id in active)


def _appendable(batch: Batch | OldMessages, read_at: int) -> Iterator[LateBatch]:
    if isinstance(batch, OldMessages):
        runs, producer = batch.runs(read_at), (-1, -1)
    else:
        producer = batch.producer_id, batch.producer_epoch
        if batch.base_offset >= read_at and not needs_rewriting(batch):
            yield LateBatch(batch.base_offset, batch.next_offset, producer, memoryview(bytearray(batch.view)))
            return
        runs = rewrite(batch, max(read_at, batch.base_offset))
    for run in runs:
        yield LateBatch(run.start, run.end, producer, run.view)
