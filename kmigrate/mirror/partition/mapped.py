"""A lane with target offsets of its own: offsets without records are left out, and the map relates both logs.

Source offsets still lead: `position`, barrier and steps are source offsets. Added to the invariants of `Lane`:

I  A batch is sent only once its run is stored (`MapLedger`): every record on the target is in the map.
J  A hole is skipped, not filled: the position moves over a hole when everything before the hole is acknowledged.
K  After a stop the position is the source end of what the map shows on the target, never more; a gap behind is read
   again. A recovering lane reads nothing, because newly planned batches would be taken for batches on the target.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from kmigrate.errors import Diverged
from kmigrate.mirror.partition.direct_writers import DirectSeen
from kmigrate.mirror.partition.lane import Lane, Sent
from kmigrate.mirror.partition.steps import Append, Hole, Reading, Step
from kmigrate.mirror.partition.transitions import LaneEvent, LaneState
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.offset_map_ledger import MapLedger
from kmigrate.protocol.hot import FetchedPartition

__all__ = ["MappedLane"]

_ANY_GAP = 1 << 62


class MappedLane(Lane):
    """The copy of a partition to offsets of its own, from `target_start` on."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        producer_id: int,
        epoch: int,
        log_start: int,
        target_start: int,
        target_topic_id: str,
        term: int = 1,
        live_from: int = -1,
        direct: DirectSeen | None = None,
    ) -> None:
        super().__init__(
            topic,
            partition,
            producer_id=producer_id,
            epoch=epoch,
            hole_limit=_ANY_GAP,
            log_start=log_start,
            live_from=live_from,
            direct=direct,
        )
        self.target_start = target_start
        self.target_topic_id = target_topic_id
        self.term = term
        """Term of the lease under which this lane writes its map; under another term the lane is created anew."""
        self.ledger: MapLedger | None = None
        self.target_position = -1
        """Next offset of the target, which moves together with `position`: everything below is acknowledged."""
        self._passed: deque[Hole] = deque()
        """Holes behind batches in flight."""

    def fill_holes_of(self, most: int) -> None:
        """Ignore the limit: a mapped lane passes over holes of any size."""

    @property
    def careful(self) -> bool:
        return True

    def retire(self) -> None:
        """Stop the lane: its owner has the lease, and a process without the lease has nothing to hand over in order."""
        super().retire()
        self.stop("another process holds the lease")

    # reading

    @property
    def reads(self) -> bool:
        return self.state is not LaneState.LOST and super().reads

    def take(
        self, asked: int, answer: FetchedPartition, now_ms: int, seen_ms: int | None = None, *, most: int | None = None
    ) -> int:
        if self.state is LaneState.LOST:  # the fetch was sent before the lane was lost
            return 0
        effort = super().take(asked, answer, now_ms, seen_ms, most=most)
        self._pass_holes()
        return effort

    def _queue_reading(self, reading: Reading, asked: int, size: int, now_ms: int, seen_ms: int | None) -> None:
        if self.state is not LaneState.LOST:
            super()._queue_reading(reading, asked, size, now_ms, seen_ms)
            self._pass_holes()

    def _push(self, step: Step) -> None:
        super()._push(step)
        if isinstance(step, Append) and self.ledger is not None and not self.stopped:
            self.ledger.plan(step.start, self._planned_end, step.end - step.start)

    @property
    def _known_ledger(self) -> MapLedger:
        if self.ledger is None:
            raise RuntimeError(f"the map of {self.topic}-{self.partition} is used before its first recovery")
        return self.ledger

    @property
    def _planned_end(self) -> int:
        return max(self.target_start, self._known_ledger.map.target_end)

    def _pass_holes(self) -> None:
        """Skip the holes at the head of the queue, as far as the barrier allows."""
        target = self.target
        while self.state in (LaneState.PRIMING, LaneState.PIPING) and target.queue:
            hole = target.queue[0]
            if not isinstance(hole, Hole):
                return
            end = hole.end if self.barrier is None else min(hole.end, self.barrier)
            if end <= target.next:
                return
            target.trim_head(end)
            self._passed.append(Hole(target.next, end))
            target.next = end
            if not target.sent:
                self._arrive(target.position)
                self._end_if_done()

    # writing

    def send_next(self, connection: object, in_flight: int) -> Sent | None:
        self._pass_holes()
        head = self.target.queue[0] if self.target.queue else None
        if self.ledger is None or not isinstance(head, Append) or not self.ledger.is_stored(head.start):
            return None
        return super().send_next(connection, in_flight)

    def answered(self, step: Append, error: int, base_offset: int, *, repeated: bool = False) -> bool:
        copied = super().answered(step, error, base_offset, repeated=repeated)
        self._pass_holes()
        return copied

    def expected(self, step: Append) -> int:
        found = self.ledger.map.to_target(step.start) if self.ledger is not None else None
        return found.offset if found is not None and found.is_record else -1

    def _arrive(self, position: int) -> None:
        super()._arrive(position)
        while self._passed and self._passed[0].start == self.target.position:
            self.target.position = self._passed.popleft().end
        if self.ledger is not None:
            self.target_position = self._target_of(self.target.position)

    def _target_of(self, position: int) -> int:
        found = self._known_ledger.map.to_target(position)
        return found.offset if found is not None else self._planned_end

    # the map

    def target_offset_of(self, offset: int) -> int:
        """Return the target offset of the first record from a source offset on; −1 before its acknowledgement."""
        known = self.ledger is not None and 0 <= offset < self.target.position
        target_offset = self._target_of(offset) if known else -1
        return target_offset if target_offset < self.target_position else -1

    @property
    def wants_more(self) -> bool:
        return True

    @property
    def map_due(self) -> bool:
        """True if runs must be stored now."""
        ready = self.state in (LaneState.PRIMING, LaneState.PIPING) and not self.busy
        return ready and self.ledger is not None and self.ledger.dirty

    def hole_due(self) -> Hole | None:
        return None

    def begin_map(self, ledger: MapLedger) -> None:
        """Write the map into this ledger from now on."""
        self.ledger = ledger

    def map_stored(self, token: int) -> None:
        """Note that the runs up to a token of the ledger are stored."""
        self._known_ledger.written(token)
        self.report.trouble = ""

    def stands_at(self, target_end: int, others: OffsetMap) -> None:
        """Bring the map to the target's end with earlier runs (`others`); raise Diverged for records nobody planned."""
        ledger = self._known_ledger
        if target_end > self._planned_end:
            ledger.cut(max(self.target_position, self.target_start))
            ledger.adopt(others)
        if target_end > self._planned_end:
            raise Diverged(
                "diverged",
                f"{self.topic}-{self.partition} ends at {target_end} on the target, beyond every batch that was "
                f"planned (up to {self._planned_end})",
                still_true="no later record was copied; the source is untouched",
                next_step="find who writes to this topic on the target; see docs/mirror.md",
            )
        ledger.cut(target_end)

    def recovered(self, position: int, sequence: int, data_end: int, epoch: int = -1) -> None:
        """Continue after the tail was read and the map was brought to the tail: read the source from the map's end."""
        if self.state is not LaneState.LOST:
            return
        ledger = self._known_ledger
        ledger.cut(max(self.target_start, position))
        self._after_cut(ledger.map.source_end)
        if self.stopped:
            return
        self._passed.clear()
        begin = max(self.log_start, ledger.map.source_end)
        self.report.trouble = self._lost_offsets(begin) if position < self.target_position else ""
        self.report.unserved = ""
        self.report.blocked_by("")
        self.target_position = position
        self.target.begin_at(begin, sequence, epoch)
        self.source.read_at = begin
        self._advance(LaneEvent.RECOVERED)

    def _read_again(self, offset: int) -> None:
        super()._read_again(offset)
        if self.ledger is not None:
            self.ledger.cut(max(self.target_start, self._target_of(offset)))

    @property
    def at_barrier(self) -> int:
        """The barrier, but only if the map puts the barrier at the end of the acknowledged target log; else −1."""
        barrier = super().at_barrier
        return barrier if barrier >= 0 and self._target_of(barrier) == self.target_position else -1

    def _progress(self) -> dict[str, Any]:
        runs = len(self.ledger.map) if self.ledger is not None else 0
        return {**super()._progress(), "target_position": self.target_position, "runs": runs}
