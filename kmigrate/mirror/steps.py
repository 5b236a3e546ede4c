"""From a fetched partition to what must happen on the target: appends, holes, or a reason to stop.

Pure. Nothing is ever skipped in silence: each source offset from the read position on becomes part of an
append (a record that readers see) or of a hole (an offset that no reader sees: control records, aborted data,
compaction gaps between batches and inside them), and what can be neither ends the reading with a named problem.

A batch goes as it is wherever a broker takes it so; one that is thinned, carries broker times or is wanted from
its inside only goes as the batches that `rewrite` makes of it.

Aborted data (W9, A11): an answer may list *later* transactions of the same producer, so an entry counts only
from its first offset to that producer's next control batch; the list is sorted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kmigrate.errors import ProtocolViolation
from kmigrate.mirror.reactions import Asked, Found, reaction_to
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.records.batch import Batch, check_crc, walk
from kmigrate.records.rewrite import needs_rewriting, rewrite

__all__ = ["Append", "Form", "Hole", "Reading", "Step", "read_steps"]


class Form(StrEnum):
    """How a batch came to be what is sent."""

    VERBATIM = "verbatim"
    """The source's own bytes, but for header fields."""
    REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class Append:
    """One batch for offsets start … end − 1: the source's bytes, or what was made of them."""

    start: int
    end: int
    view: memoryview
    max_timestamp: int
    form: Form = Form.VERBATIM


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets start … end − 1 that exist in the source's log and that no committed reader ever sees."""

    start: int
    end: int


Step = Append | Hole


@dataclass(slots=True)
class Reading:
    """What one answer held for one partition."""

    next_offset: int
    leader_epoch: int
    """Leader epoch of the newest batch read: last_fetched_epoch of the next fetch (W7)."""
    steps: list[Step] = field(default_factory=list)
    problem: str = ""
    compacted: bool = False
    """Offsets without a record were seen that no transaction explains: a log cleaner works on this partition."""
    direct: tuple[int, int] | None = None
    """(producer id, offset) of the newest batch that came through no router."""

    def hole(self, start: int, end: int) -> None:
        last = self.steps[-1] if self.steps else None
        if isinstance(last, Hole) and last.end == start:
            self.steps[-1] = Hole(last.start, end)
        else:
            self.steps.append(Hole(start, end))


class _Aborted:
    """Which producers' data is aborted at the batch being looked at."""

    def __init__(self, listed: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(((first, producer) for producer, first in listed), reverse=True)
        self._active: set[int] = set()

    def covers(self, batch: Batch) -> bool:
        while self._waiting and self._waiting[-1][0] <= batch.last_offset:
            self._active.add(self._waiting.pop()[1])
        if batch.is_control:
            self._active.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._active


def read_steps(
    records: memoryview,
    aborted: Sequence[tuple[int, int]],
    *,
    read_at: int,
    leader_epoch: int,
    hole_limit: int,
) -> Reading:
    """The steps of a read_committed answer from offset `read_at` on."""
    reading = Reading(read_at, leader_epoch)
    filter_ = _Aborted(aborted)
    try:
        for batch in walk(records):
            is_aborted = filter_.covers(batch)
            if batch.next_offset <= reading.next_offset:
                continue
            _take(reading, batch, is_aborted, hole_limit)
            if reading.problem:
                break
    except ProtocolViolation as broken:
        reading.problem = f"{broken.ref}: {broken.what}"
    return reading


def _take(reading: Reading, batch: Batch, is_aborted: bool, hole_limit: int) -> None:
    at = reading.next_offset
    if batch.base_offset - at > hole_limit:
        ref = reaction_to(Asked.FETCH, Found.GAP).ref
        reading.problem = (
            f"{ref}: the source has no offsets {at} to {batch.base_offset - 1} (compaction); "
            f"gaps of more than {hole_limit} are not filled"
        )
        return
    if batch.base_offset > at:
        reading.compacted = True
    if not check_crc(batch.view):
        ref = reaction_to(Asked.FETCH, Found.BAD_BATCH).ref
        reading.problem = f"{ref}: the batch at offset {batch.base_offset} does not fit its CRC"
        return
    if batch.is_control or is_aborted:
        if not batch.is_control:
            _note_direct(reading, batch)
        reading.hole(at, batch.next_offset)
    else:
        _note_direct(reading, batch)
        for append in _appends(batch, at):
            if append.start > at:
                reading.hole(at, append.start)
            reading.steps.append(append)
            at = append.end
        if at < batch.next_offset:
            reading.hole(at, batch.next_offset)
        reading.compacted = reading.compacted or batch.count != batch.last_offset_delta + 1
    reading.next_offset = batch.next_offset
    reading.leader_epoch = batch.leader_epoch


def _appends(batch: Batch, start: int) -> list[Append]:
    """What a data batch is appended as, from `start` on."""
    if batch.base_offset >= start and not needs_rewriting(batch):
        return [Append(batch.base_offset, batch.next_offset, batch.view, batch.max_timestamp)]
    return [Append(run.start, run.end, run.view, run.max_timestamp, Form.REWRITTEN) for run in rewrite(batch, start)]


def _note_direct(reading: Reading, batch: Batch) -> None:
    if batch.producer_id < DIRECT_LIMIT:
        reading.direct = (batch.producer_id, batch.base_offset)
