"""The steps on the target that follow from a fetched partition: appends, holes, or a reason to stop. Pure.

Nothing is skipped in silence. Each source offset from the read position on becomes part of an append (records that
readers see) or of a hole (control records, aborted data, and compaction gaps between batches and inside them). An
offset that can be neither ends the reading with a named problem.

A batch is sent unchanged if a broker accepts the batch so. `rewrite` converts batches with removed records, with broker
times, or of which only the end is wanted. `old_messages` converts magic 0 and 1; `merge` joins many small batches.

Aborted data (W9, A11): a response may list *later* transactions of the same producer. So an entry of the sorted list
counts only from its first offset to that producer's next control batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from kmigrate.errors import ProtocolViolation
from kmigrate.mirror.partition.reactions import Asked, Found, reaction_to
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.records.batch import CONTROL, Batch, check_crc, producer_epoch, row, walk
from kmigrate.records.merge import LARGEST_MERGED, Stretch, merge, pieces
from kmigrate.records.old_messages import OldMessages, is_old
from kmigrate.records.rewrite import Run, effort, needs_rewriting, rewrite, split_first

__all__ = [
    "Append",
    "DirectBatches",
    "Form",
    "Hole",
    "Producer",
    "Reading",
    "Step",
    "damaged",
    "kept_long",
    "read_steps",
    "split_append",
]

_LAST = (1 << 63) - 1
"""Largest possible offset."""
_BAD_BATCH = reaction_to(Asked.FETCH, Found.BAD_BATCH).ref
_MOST_SPLIT = 20_000
"""Most effort, as `records.rewrite` counts effort, for dividing a batch: some 40 ms, in which nothing else goes on."""
_WORTH_ITS_FRAME = 8
"""A part is copied if the part may wait for long and its response is larger by more than this factor."""


class Form(StrEnum):
    """The relation of a sent batch to the source's batches."""

    VERBATIM = "verbatim"
    """The source's own bytes, except for header fields."""
    REWRITTEN = "rewritten"
    MERGED = "merged"
    """Many small batches of the source, merged."""


@dataclass(slots=True, eq=False)
class Append:
    """A batch for offsets start … end − 1: the source's bytes, or a conversion of them; not frozen, as `Batch`."""

    start: int
    end: int
    view: memoryview
    max_timestamp: int
    form: Form = Form.VERBATIM
    sequence: int = -1
    """The sequence with which the batch is stamped; −1: not yet."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets start … end − 1 that exist in the source's log and that no committed reader ever sees."""

    start: int
    end: int


Step = Append | Hole


def split_append(step: Append) -> tuple[Append, Append] | None:
    """Return a batch's first record and its other records as two appends; None if the batch cannot be divided."""
    if step.end - step.start < 2 or not check_crc(step.view):  # a wrong CRC must stay wrong
        return None
    try:
        batch = next(walk(step.view))
        parts = split_first(batch) if effort(batch) <= _MOST_SPLIT else None
    except ProtocolViolation:
        return None
    if parts is None:
        return None
    at = step.start - batch.base_offset
    first, others = (Append(run.start + at, run.end + at, run.view, run.max_timestamp, Form.REWRITTEN) for run in parts)
    return first, others


Producer = tuple[int, int]
"""Producer id and epoch; (−1, −1) for a producer without an id."""


class DirectBatches(NamedTuple):
    """The batches of a producer in a fetch response."""

    records: int
    offset: int
    """Base offset of the newest batch."""


@dataclass(slots=True)
class Reading:
    """The content of a fetch response for one partition."""

    next_offset: int
    leader_epoch: int
    """Leader epoch of the newest batch read: last_fetched_epoch of the next fetch (W7)."""
    steps: list[Step] = field(default_factory=list)
    problem: str = ""
    compacted: bool = False
    """True if offsets without a record were seen that no transaction explains: a log cleaner works here."""
    direct: dict[Producer, DirectBatches] = field(default_factory=dict)
    """Batches below producer id 2^40, by producer id and epoch: no router has translated these ids.

    A routed transactional producer also has such an id, given by the source. The state log names its epochs.
    """
    direct_from: int = 0
    """Batches below this offset are too old to count for direct writers."""
    effort: int = 0
    """The effort of rewriting, as `records.rewrite` counts effort."""
    rest: Callable[[], Reading] | None = None
    """Reads on from `next_offset`, which takes longer than was allowed; a thread may call this, as nothing changes."""

    def note_direct(self, producer: Producer, records: int, offset: int) -> None:
        """Count a batch, unless a router has translated the producer id or the batch is older than the link."""
        if producer[0] >= DIRECT_LIMIT or offset < self.direct_from:
            return
        known = self.direct.get(producer)
        self.direct[producer] = DirectBatches(records + (known.records if known is not None else 0), offset)

    def hole(self, start: int, end: int) -> None:
        last = self.steps[-1] if self.steps else None
        if isinstance(last, Hole) and last.end == start:
            self.steps[-1] = Hole(last.start, end)
        else:
            self.steps.append(Hole(start, end))


class _Aborted:
    """The producers whose data is aborted at the present batch."""

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
    barrier: int | None = None,
    most: int | None = None,
    direct_from: int = 0,
) -> Reading:
    """Return the steps of a read_committed response from offset `read_at` on; no step crosses `barrier`.

    `most` ends reading before more effort or old messages (effort unknown); direct writers count from `direct_from`.
    """

    def rest(read_at: int, leader_epoch: int) -> Callable[[], Reading]:
        return partial(
            read_steps,
            kept_long(records),
            aborted,
            read_at=read_at,
            leader_epoch=leader_epoch,
            hole_limit=hole_limit,
            barrier=barrier,
            direct_from=direct_from,
        )

    if most is not None and is_old(records):
        return Reading(read_at, leader_epoch, rest=rest(read_at, leader_epoch))
    reading = Reading(read_at, leader_epoch, direct_from=direct_from)
    filter_ = _Aborted(aborted)
    taken = _take_row(reading, records, min((first for _, first in aborted), default=_LAST))
    is_whole, is_too_much = not len(records) or taken > 0, False
    try:
        for piece in pieces(records[taken:], reading.next_offset, barrier):
            is_whole = True
            if isinstance(piece, Stretch):
                _take_stretch(reading, piece, hole_limit)
            else:
                is_aborted = bool(aborted) and not isinstance(piece, OldMessages) and filter_.covers(piece)
                if piece.next_offset > reading.next_offset:
                    is_too_much = _take(reading, piece, is_aborted, hole_limit, most)
            if reading.problem or is_too_much:
                break
    except ProtocolViolation as broken:
        reading.problem = broken.summary
    if is_too_much:
        reading.rest = rest(reading.next_offset, reading.leader_epoch)
    elif not (is_whole or reading.problem):
        # Brokers return the first batch whole, however large: so the length in this batch's header is wrong.
        reading.problem = f"{_BAD_BATCH}: the batch at offset {read_at} says that it is longer than what there is"
    return reading


def kept_long(records: memoryview) -> memoryview:
    """Return the same bytes for long keeping: a small part is copied, because a view keeps its whole response."""
    if len(records) * _WORTH_ITS_FRAME < memoryview(records.obj).nbytes:
        return memoryview(bytearray(records))
    return records


def _reaches(reading: Reading, base_offset: int, hole_limit: int) -> bool:
    """Return whether reading may go on at this batch: there is no gap before the batch, or a gap that can be filled."""
    at = reading.next_offset
    if base_offset - at > hole_limit:
        ref = reaction_to(Asked.FETCH, Found.GAP).ref
        reading.problem = (
            f"{ref}: the source has no offsets {at} to {base_offset - 1} (compaction): {base_offset - at} in a row, "
            f"and hole_limit is {hole_limit}"
        )
        return False
    if base_offset > at:
        reading.compacted = True
    return True


def _take_row(reading: Reading, records: memoryview, until: int) -> int:
    """Read the leading batches that are sent unchanged, and control batches among them, up to `until`; return bytes."""
    found, taken = row(records, reading.next_offset, until, LARGEST_MERGED)
    steps, direct_from = reading.steps, reading.direct_from
    for start, end, newest, producer_id, attributes, _, view in found:
        if attributes & CONTROL:
            reading.hole(start, end)
            continue
        # The CRC is not checked here, since the batch keeps its CRC and the target's broker checks the CRC.
        steps.append(Append(start, end, view, newest))
        if producer_id < DIRECT_LIMIT and start >= direct_from:
            reading.note_direct((producer_id, producer_epoch(view)), end - start, start)
    if found:
        _, reading.next_offset, _, _, _, reading.leader_epoch, _ = found[-1]
    return taken


def _take_stretch(reading: Reading, stretch: Stretch, hole_limit: int) -> None:
    """Read plain small batches, merged; if a batch does not match its header, read the batches singly."""
    try:
        runs = merge(stretch)
    except ProtocolViolation:
        for batch in walk(stretch.view):
            if not reading.problem:
                _take(reading, batch, False, hole_limit, None)
        return
    if not _reaches(reading, stretch.base_offset, hole_limit):
        return
    heads = stretch.heads
    if heads["base_offset"][-1] >= reading.direct_from:
        for head in heads[(heads["producer_id"] < DIRECT_LIMIT) & (heads["base_offset"] >= reading.direct_from)]:
            producer = int(head["producer_id"]), int(head["producer_epoch"])
            reading.note_direct(producer, int(head["count"]), int(head["base_offset"]))
    end = stretch.next_offset
    _copy(reading, _converted(runs, Form.MERGED), reading.next_offset, end)
    reading.next_offset = end
    reading.leader_epoch = stretch.leader_epoch


def _take(reading: Reading, batch: Batch | OldMessages, is_aborted: bool, hole_limit: int, most: int | None) -> bool:
    """Read a batch; return True if the batch is left because more effort than `most` would be needed."""
    at, base, end = reading.next_offset, batch.base_offset, batch.next_offset
    if base > at and not _reaches(reading, base, hole_limit):
        return False
    if isinstance(batch, OldMessages):
        # Old messages belong to no producer (−1) and no leader epoch, so the next fetch names none (C3).
        reading.note_direct((-1, -1), end - base, base)
        _copy(reading, _converted(batch.runs(at)), at, end)
        reading.compacted = reading.compacted or batch.has_gaps
        reading.next_offset, reading.leader_epoch = end, -1
        return False
    is_control = bool(batch.attributes & CONTROL)
    unseen = is_control or is_aborted
    verbatim = base >= at and not (unseen or needs_rewriting(batch))
    if not (verbatim or unseen):
        taken = reading.effort + effort(batch)
        if most is not None and taken > most:
            return True
        reading.effort = taken
    if not verbatim and not check_crc(batch.view):
        reading.problem = damaged(base)
        return False
    if not is_control:
        reading.note_direct((batch.producer_id, batch.producer_epoch), batch.count, base)
    if unseen:
        reading.hole(at, end)
    elif verbatim:
        if base > at:
            reading.hole(at, base)
        reading.steps.append(Append(base, end, batch.view, batch.max_timestamp))
    else:
        _copy(reading, _converted(rewrite(batch, at)), at, end)
        reading.compacted = reading.compacted or batch.count != batch.last_offset_delta + 1
    reading.next_offset = end
    reading.leader_epoch = batch.leader_epoch
    return False


def _copy(reading: Reading, appends: list[Append], at: int, end: int) -> None:
    """Add the appends from `at` on, and holes for the missing offsets up to `end`."""
    for append in appends:
        if append.start > at:
            reading.hole(at, append.start)
        reading.steps.append(append)
        at = append.end
    if at < end:
        reading.hole(at, end)


def damaged(offset: int) -> str:
    """Return the problem text for a batch that does not fit its CRC."""
    return f"{_BAD_BATCH}: the batch at offset {offset} does not fit its CRC"


def _converted(runs: list[Run], form: Form = Form.REWRITTEN) -> list[Append]:
    return [Append(run.start, run.end, run.view, run.max_timestamp, form) for run in runs]
