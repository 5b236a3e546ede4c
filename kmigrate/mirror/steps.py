"""From a fetched partition to what must happen on the target: appends, holes, or a reason to stop.

Pure. Nothing is ever skipped in silence: each source offset from the read position on becomes part of an
append (a record that readers see) or of a hole (an offset that no reader sees: control records, aborted data,
small compaction gaps), and what can be neither ends the reading with a named problem.

Aborted data (W9, A11): an answer may list *later* transactions of the same producer, so an entry counts only
from its first offset to that producer's next control batch; the list is sorted first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kmigrate.errors import ProtocolViolation
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.records.batch import LOG_APPEND_TIME, Batch, check_crc, walk

__all__ = ["Append", "Hole", "Reading", "Step", "read_steps"]


@dataclass(frozen=True, slots=True)
class Append:
    """One batch for offsets start … end − 1, its bytes as the source sent them."""

    start: int
    end: int
    view: memoryview
    max_timestamp: int


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
    inside: Append | None = None
    """The data batch that the first wanted offset lies inside of, where that is the problem."""
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
        reading.problem = (
            f"large-gap: the source has no offsets {at} to {batch.base_offset - 1} (compaction); "
            f"gaps of more than {hole_limit} are not filled"
        )
        return
    if not check_crc(batch.view):
        reading.problem = f"corrupt-source-batch: the batch at offset {batch.base_offset} does not fit its CRC"
        return
    if batch.is_control or is_aborted:
        if not batch.is_control:
            _note_direct(reading, batch)
        reading.hole(at, batch.next_offset)
    else:
        reading.problem = _unfit(batch)
        if reading.problem:
            return
        append = Append(batch.base_offset, batch.next_offset, batch.view, batch.max_timestamp)
        if batch.base_offset < at:
            reading.problem = f"starts-inside-batch: offset {at} lies inside the batch at {batch.base_offset}"
            reading.inside = append
            return
        if batch.base_offset > at:
            reading.hole(at, batch.base_offset)
        _note_direct(reading, batch)
        reading.steps.append(append)
    reading.next_offset = batch.next_offset
    reading.leader_epoch = batch.leader_epoch


def _unfit(batch: Batch) -> str:
    """Why a data batch cannot be appended as it is, or ''."""
    if batch.count != batch.last_offset_delta + 1:
        return (
            f"thinned-batch: the batch at offset {batch.base_offset} holds {batch.count} records for "
            f"{batch.last_offset_delta + 1} offsets (compaction), which no broker accepts (A3)"
        )
    if batch.attributes & LOG_APPEND_TIME:
        return (
            f"log-append-time: the batch at offset {batch.base_offset} carries broker times, "
            "which a copy would lose (A7)"
        )
    return ""


def _note_direct(reading: Reading, batch: Batch) -> None:
    if batch.producer_id < DIRECT_LIMIT:
        reading.direct = (batch.producer_id, batch.base_offset)
