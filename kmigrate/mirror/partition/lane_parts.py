"""The parts of a lane: source cursor, target log and report; every other class only reads them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kmigrate.mirror.partition.reactions import Asked, remedy_of
from kmigrate.mirror.partition.steps import Append, Hole, Reading, Step
from kmigrate.model.presences import PartitionProgress
from kmigrate.model.stops import PartitionStop
from kmigrate.records.batch import DELETE_HORIZON, TRANSACTIONAL, next_sequence, stamp

__all__ = ["LaneReport", "SourceCursor", "TargetLog"]

_CLEARED = TRANSACTIONAL | DELETE_HORIZON
_NO_RANGE = (-1, -1)
_FRESH_S = 3.0
"""Seconds for which a log end counts as just seen; an unclean leader election takes longer."""
_HIGHEST_EPOCH = 32_000
"""Highest producer epoch that an owner raises; Kafka's epochs end at 32,767."""


@dataclass(slots=True, eq=False)
class SourceCursor:
    """The offset to read next on the source, and the causes that hold the reading back."""

    live_from: int = -1
    """The source's log end when the link began to mirror this partition; −1: set by the first fetch response."""
    read_at: int = -1
    leader_epoch: int = -1
    log_end: int = -1
    stable_end: int = -1
    first_end: int = -1
    """The source's log end in the first fetch response: the write times of the batches below are unknown."""
    cut_to: int | None = None
    """End of the log after the source was cut (W7), until the target's tail shows what the target holds."""
    looking: bool = False
    """True while a task checks what became of the topic or of the offset to read: nothing is read meanwhile."""
    rest: Callable[[], Reading] | None = None
    """The rest of a fetch response, from `read_at` on, that a thread reads: nothing else is read meanwhile."""
    retry_at: float = 0.0
    """Time from which the source may be asked again after an error, on the monotonic clock."""
    failures: int = 0
    trouble: str = ""
    """The present trouble of reading; cleared by the next success."""
    unfilled_at: int = -1
    """Offset of an empty response below the stable end; other partitions may have filled the response."""
    empty_at: int = -1
    """Offset at which a fetch of this partition alone had such an empty response."""


@dataclass(slots=True, eq=False)
class TargetLog:
    """The target's log as a lane knows the log, with the batches and holes that are on their way there."""

    producer_id: int
    epoch: int
    position: int = -1
    """The offset up to which the target has acknowledged everything (A)."""
    next: int = -1
    """The offset of the next append, behind all appends in flight."""
    sequence: int = 0
    """Sequence of the next append, if nothing goes wrong before."""
    queued_sequence: int = 0
    """Sequence of the next batch to queue; a batch is stamped as it is read, with its header in the cache."""
    queue: deque[Step] = field(default_factory=deque)
    sent: deque[Append] = field(default_factory=deque)
    """Batches in flight, in the order of sending."""
    failed: list[Step] = field(default_factory=list)
    """Batches that were not acknowledged, and the holes of their windows: the tail decides what the target has."""
    queued_bytes: int = 0
    """Bytes read and not yet acknowledged."""
    connection: object = None
    unknown: bool = False
    """True after a write with unknown outcome: the tail must settle before the lane believes the tail."""
    doubtful: bool = True
    """True if a `compacted` lane must compare the target's last batch: another process may have written that batch."""
    failures: int = 0
    """Number of consecutive refusals of appends or holes."""
    marking: bool = False
    """True while markers are in flight, or may still arrive."""
    marked_under: int = 0
    """The term under which the last hole was filled since the tail was read; 0 if there was none (D)."""
    raised: tuple[int, int] = (0, -1)
    """The term, and the producer epoch of the markers under that term, which only this owner's markers have (L)."""
    first_epoch: int = -1
    """The link's own epoch; a higher epoch on the log shows that a window of an owner may still come (M)."""
    fresh: bool = False
    """True from a look at the tail until a divided append or a marker."""
    undivided: bool = False
    """True if all batches since the tail was read may have been sent by an earlier owner, too (M)."""
    rested: bool = False
    """True if the log was at rest when the tail was read."""
    seen_at: float = 0.0
    """Time on the monotonic clock of the last look at the log end, or of the last marker that raised the epoch."""
    windows: bool = False
    """True while a batch and the hole behind the batch go out together (L)."""
    newest_hole: tuple[int, int] = (0, 0)
    """The newest contiguous offsets without a record on the source that are filled."""

    def __post_init__(self) -> None:
        self.first_epoch = self.epoch

    @property
    def head(self) -> Append | None:
        """The next append; None if a hole or nothing comes next."""
        return self.queue[0] if self.queue and isinstance(self.queue[0], Append) else None

    def push(self, step: Step) -> None:
        """Queue a step, stamped with the sequence that it will have if nothing goes wrong before."""
        queue = self.queue
        if not queue:
            self.queued_sequence = self.sequence
        if isinstance(step, Append):
            self.queued_bytes += len(step.view)
            self.stamp(step, self.queued_sequence)
            self.queued_sequence = next_sequence(step.sequence, step.end - step.start)
        elif queue and isinstance(last := queue[-1], Hole) and last.end == step.start:
            queue[-1] = Hole(last.start, step.end)
            return
        queue.append(step)

    def stamp(self, step: Append, sequence: int) -> None:
        stamp(step.view, producer_id=self.producer_id, epoch=self.epoch, sequence=sequence, clear=_CLEARED)
        step.sequence = sequence

    def begin_marking(self, term: int) -> int:
        """Return the producer epoch for markers of an owner under a term: higher than any earlier owner's (L)."""
        self.marking = True
        if self.raised[0] == term and self.raised[1] >= self.epoch:
            return self.raised[1]
        if self.epoch < _HIGHEST_EPOCH:
            self.raised = term, self.epoch + 1
            return self.epoch + 1
        return self.epoch

    def distrust_epoch(self) -> None:
        """Raise the epoch with the next marker even under the same term: batches of this epoch may still come (O)."""
        self.raised = 0, -1

    def raise_epoch(self, epoch: int) -> None:
        """Begin anew at sequence 0 behind a marker with a higher epoch (M2), also for all queued batches."""
        if epoch <= self.epoch:
            return
        self.epoch, self.sequence = epoch, 0
        sequence = 0
        for step in self.queue:
            if isinstance(step, Append):
                self.stamp(step, sequence)
                sequence = next_sequence(sequence, step.end - step.start)
        self.queued_sequence = sequence

    def needs_look(self, now: float) -> bool:
        """Return whether the log end must be seen anew before the next append (N)."""
        first_of_epoch = self.sequence == 0 and self.epoch > self.first_epoch
        return first_of_epoch and not self.sent and now - self.seen_at > _FRESH_S

    def fenced_under(self, term: int) -> bool:
        """Return whether all data of earlier owners is refused: a marker of this term has raised the epoch (L)."""
        return self.marked_under == term and self.raised == (term, self.epoch)

    def settle(self, step: Append) -> None:
        """Take an answered append out of the appends in flight."""
        if self.sent and self.sent[0] is step:
            self.sent.popleft()
        else:
            self.sent.remove(step)

    def divide_head(self, first: Append, others: Append) -> None:
        """Put two batches in place of the batch at the head of the queue."""
        if (whole := self.head) is not None:
            self.queued_bytes += len(first.view) + len(others.view) - len(whole.view)
            self.queue.popleft()
            self.queue.extendleft((others, first))

    def pass_hole(self) -> None:
        """Take the hole at the head of the queue out: the hole is on its way, and more follows behind it."""
        self.next = self.queue.popleft().end

    def trim_head(self, end: int) -> None:
        """Shorten the hole at the head of the queue to the offsets from `end` on, or remove the hole."""
        if end >= self.queue[0].end:
            self.queue.popleft()
        else:
            self.queue[0] = Hole(end, self.queue[0].end)

    def filled(self, end: int, term: int) -> None:
        """Move the position over the filled part of the hole at the head of the queue."""
        self.trim_head(end)
        begin, before = self.newest_hole
        self.newest_hole = (begin if before == self.position else self.position), end
        self.position = self.next = end
        self.marking = self.fresh = self.undivided = False
        self.marked_under = term

    @property
    def known_hole_end(self) -> int:
        """The end of the newest filled hole, including a directly following hole that waits to be filled."""
        end, following = self.newest_hole[1], self.queue[0] if self.queue and not self.failed else None
        return following.end if isinstance(following, Hole) and following.start == end else end

    def drop_queue(self) -> None:
        """Forget the queued steps; batches in flight still count."""
        self.queue.clear()
        self.queued_bytes = sum(len(step.view) for step in self.sent)

    @property
    def expects_late_window(self) -> bool:
        """True if a window of another owner may still come before the first marker, and would not be refused (M)."""
        return self.undivided or (self.fresh and self.epoch > self.first_epoch and not self.rested)

    def begin_at(self, position: int, sequence: int, epoch: int, *, rested: bool = False) -> None:
        """Begin anew at the log end that the tail has shown: nothing is queued, failed or unknown."""
        self.epoch = max(self.first_epoch, epoch)
        self.fresh = True
        self.undivided = False
        self.rested = rested
        self.failed = []
        self.queue.clear()
        self.queued_bytes = 0
        self.position = self.next = position
        self.sequence = sequence
        self.unknown = self.doubtful = self.marking = False


@dataclass(slots=True, eq=False)
class LaneReport:
    """The stop and the troubles of a lane, as status and the presence log show them."""

    problem: str = ""
    lost_range: tuple[int, int] = _NO_RANGE
    """First and last source offset that the problem concerns."""
    recorded: bool = False
    """True once the state log holds this stop; when the log no longer does, a person has resumed the partition."""
    trouble: str = ""
    """The trouble that is being retried now; cleared by the next success."""
    target_loss: str = ""
    """The target's last loss of stored offsets; the text stays, because consumers there may have noticed."""
    metadata_trouble: dict[Asked, str] = field(default_factory=dict)
    """Trouble that the last metadata of each cluster has shown."""
    throttled: dict[Asked, str] = field(default_factory=dict)
    """Pauses that a broker asks for, because the quota is used up."""
    unserved: str = ""
    """The reason why the target's leader had no connection when a batch was due."""
    _last: tuple[dict[str, Any], PartitionProgress] | None = None

    def blocked_by(self, problem: str, lost: tuple[int, int] = _NO_RANGE) -> None:
        """Set the problem; '' if there is none."""
        self.problem, self.lost_range = problem, lost

    def stop_record(self, now_ms: int) -> PartitionStop:
        """Return this stop as the state log keeps it."""
        ref, _, what = self.problem.partition(": ")
        return PartitionStop(ref, what, remedy_of(self.problem), *self.lost_range, at_ms=now_ms)

    def progress(self, fields: dict[str, Any]) -> PartitionProgress:
        """Return these facts for the presence log; the same object as before while nothing changes."""
        if self._last is None or self._last[0] != fields:
            self._last = fields, PartitionProgress(**fields)
        return self._last[1]
