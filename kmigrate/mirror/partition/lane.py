"""One mirrored partition as a state machine: what may be sent now, and what each answer means. Pure.

    LOST ──recovered──▶ PRIMING ──ack──▶ PIPING ◀──▶ FILLING        any ──stop──▶ STOPPED (by name, see `reactions`)
      ▲___________________│________________│____________│
            error, unknown outcome, 45: once nothing is unanswered, the target's tail is read again

Invariants:
A  `position` is only what the target has acknowledged or what its own tail showed. No position is counted from the
   source.
B  Position and sequence come together, from the tail or from consecutive acknowledgements (W2).
C  The first batch after LOST, and on a new connection, goes alone (W3). A hole in between changes nothing in the
   broker's state of our producer id, so after the hole the batches go on as before.
D  A hole is filled with nothing in flight. Data waits until the log end is known to be the hole's end (W5). The log
   end is looked up before a hole, too. This look-up is left out only if two conditions hold. First, the answer that
   has just come gave the log end. No unclean election fits between that answer and the hole, because an election takes
   longer. Second, a marker of the present term stands on the log (`marked_under`). From then on the broker refuses the
   markers of an older owner. Once a newer owner has written a marker, the broker refuses ours (52, V3). If one of two
   owners fills by transactions, only the warrant separates them. Appends of other copiers stop before the hole, as
   ours do.
E  An acknowledged base offset other than the expected offset stops the lane (A14).
F  Nothing at or beyond the barrier is ever sent.
G  On a compacted partition, two reads of the source may disagree on what is a hole. A copier that was stopped for long
   may then append a record where the log's owner has made a hole, one offset too late. So such a lane sends one batch
   at a time, and only while its process surely owns the partition. If the stored append was not the lane's own, the
   target's last batch is compared with the source (`doubtful`) before anything else is believed.
H  Records that the source has lost (W7) are dropped if they were only read, and reported if the target holds them.
   Over offsets that were deleted unread a hole is made only if a person has accepted exactly that loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from kmigrate.mirror.partition.direct_writers import READ_PAUSE_MS, DirectSeen
from kmigrate.mirror.partition.reactions import (
    Action,
    Asked,
    Found,
    Reaction,
    cause,
    pause_s,
    reaction_to,
    remedy_of,
    told,
)
from kmigrate.mirror.partition.steps import Append, Hole, Reading, Step, damaged, kept_long, read_steps
from kmigrate.mirror.partition.tally import Tally
from kmigrate.model.presences import PartitionProgress
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchedPartition
from kmigrate.records.batch import DELETE_HORIZON, TRANSACTIONAL, check_crc, next_sequence, stamp

__all__ = ["Key", "Lane", "LaneState", "Sent"]

Key = tuple[str, int]
"""Topic and partition."""


class LaneState(Enum):
    LOST = "lost"
    PRIMING = "priming"
    PIPING = "piping"
    FILLING = "filling"
    STOPPED = "stopped"


_LOST, _PIPING, _STOPPED = LaneState.LOST, LaneState.PIPING, LaneState.STOPPED
_WRITES = (LaneState.PIPING, LaneState.PRIMING)
"""The states in which batches may be sent.

The members are bound to names once. Every batch needs several of them, and each enum look-up costs as much as a call.
"""
_SETTLE_S = 0.1
"""Seconds of rest before the log end is believed, if late appends are refused and only the next append is accepted."""
_SETTLE_TORN_S = 1.0
"""The same for a log to which markers may still be written: brokers never refuse a marker for its offset (W5)."""
_CLEARED = TRANSACTIONAL | DELETE_HORIZON


class Sent(NamedTuple):
    """An append in flight, for which the broker owes an answer."""

    lane: Lane
    step: Append


class Lane:
    """The copy of one partition; owned by one copier, and touched by its tasks between awaits only."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        producer_id: int,
        epoch: int,
        hole_limit: int,
        log_start: int = 0,
        live_from: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.log_start = log_start
        self.state = LaneState.LOST
        self.position = -1
        self.read_at = -1
        self.leader_epoch = -1
        self.source_end = -1
        self.stable_end = -1
        self.barrier: int | None = None
        self.promoting = False
        """True during a promote: the link's throttle does not delay the lane."""
        self.urgent = False
        """True while writers wait behind a fence: progress must be reported at once."""
        self.problem = ""
        self.lost_range = (-1, -1)
        """First and last source offset that the problem concerns."""
        self.recorded = False
        """True once the state log holds this stop; when the log no longer does, a person has resumed the partition."""
        self.retired = False
        """True if another process shall copy this partition: nothing more is sent, and requests in flight are finished.
        """
        self.trouble = ""
        """The trouble that is being retried now; cleared by the next success."""
        self.target_loss = ""
        """The target's last loss of stored offsets; the text stays, because consumers there may have noticed."""
        self.reading_trouble = ""
        """The present trouble of reading; cleared by the next success."""
        self.paused = False
        self.disk_low = ""
        """The lack of room on the target that stops reading, or ''; a partition behind a fence is read all the same."""
        self.losses: tuple[AcceptedLoss, ...] = ()
        self.unfilled_at = -1
        """Offset at which a fetch response was empty although the stable end is beyond.

        Other partitions may have filled that response.
        """
        self._bare_at = -1
        """Offset at which a fetch of this partition alone had such an empty response."""
        self.looking = False
        """True while a task checks what became of the topic or of the offset to read: nothing is read meanwhile."""
        self.rest: Callable[[], Reading] | None = None
        """The rest of a fetch response, from `read_at` on, that a thread reads: nothing else is read meanwhile."""
        self.layout_trouble: dict[Asked, str] = {}
        """Trouble that the last metadata of each cluster has shown."""
        self.read_after = 0.0
        """Time from which the source may be asked again after an error, on the monotonic clock."""
        self._unserved = ""
        """The reason why the target's leader had no connection when a batch was due."""
        self.failures = 0
        """Number of consecutive refusals of appends or holes; `write_pause_s` follows from this number."""
        self._read_failures = 0
        self._slowed: dict[Asked, str] = {}
        self._cut: int | None = None
        self.unknown = False
        """True after a write with unknown outcome: the tail must settle before the lane believes the tail."""
        self.compacted = False
        """True if a log cleaner works on the source partition."""
        self.doubtful = True
        """True if a `compacted` lane must compare the target's last batch: another process may have written that batch.
        """
        self.busy = False
        """True while a task recovers this lane or fills its hole."""
        self.marked_under = 0
        """The term under which the last hole was filled since the tail was read; 0 if there was none (D)."""
        self.queued_bytes = 0
        self.tally = Tally()
        self._producer_id = producer_id
        self._epoch = epoch
        self._hole_limit = hole_limit
        self._sequence = 0
        """Sequence of the next append, if nothing goes wrong before."""
        self._queued_sequence = 0
        """Sequence of the next batch to queue.

        A batch is stamped as it is read, while its header is in the processor's cache.
        """
        self._next = -1
        self._queue: deque[Step] = deque()
        self._sent: deque[Append] = deque()
        self._failed: list[Append] = []
        self._connection: object = None
        self._behind_hole = LaneState.PRIMING
        """The state after the hole is filled (C)."""
        self._hole = (0, 0)
        """The newest contiguous offsets without a record on the source that are filled."""
        self._marking = False
        """True while markers are in flight, or may still arrive."""
        self.direct = DirectSeen()
        self.live_from = live_from
        """The source's log end when the link began to mirror this partition; −1: set by the first fetch response."""
        self._there_before = -1
        """The source's log end in the first fetch response: the write times of the batches below are unknown."""
        self._said: tuple[dict[str, Any], PartitionProgress] | None = None

    # reading from the source

    @property
    def stopped(self) -> bool:
        return self.state is _STOPPED

    @property
    def reads(self) -> bool:
        """True if this lane has a position to read from, and nothing holds its reading back."""
        held = self.paused or self.looking or self.rest is not None or self._cut is not None
        held = held or (bool(self.disk_low) and not self.urgent)
        return self.state is not _STOPPED and self.read_at >= 0 and not held

    def take(
        self, asked: int, answer: FetchedPartition, now_ms: int, seen_ms: int | None = None, *, most: int | None = None
    ) -> int:
        """Queue the batches of a read_committed response to a fetch at `asked`; ignore an outdated response.

        `seen_ms` is the present time on the clock that this process's presences use. Batches that need more rewriting
        effort than `most` are left as `rest`. Return the effort that the other batches took.
        """
        if not self._listens(asked):
            return 0
        self._read_failures = 0
        self.reading_trouble = ""
        if now_ms - self.tally.heard_ms > READ_PAUSE_MS:
            self.direct.paused(now_ms if seen_ms is None else seen_ms)
        self.ends_at(answer.high_watermark, now_ms)
        self.stable_end = answer.last_stable_offset
        if self._there_before < 0:
            self._there_before = answer.high_watermark
            self.live_from = answer.high_watermark if self.live_from < 0 else self.live_from
        if not len(answer.records):
            return 0
        records = answer.records
        if self.state is not _PIPING:
            records = kept_long(records)
        reading = read_steps(
            records,
            answer.aborted,
            read_at=asked,
            leader_epoch=self.leader_epoch,
            hole_limit=self._hole_limit,
            barrier=self.barrier,
            most=most,
            direct_from=self.live_from,
        )
        self._go_on(reading, asked, len(records), now_ms, seen_ms)
        self.rest = reading.rest if self._listens(reading.next_offset) else None
        return reading.effort

    def take_rest(self, rest: Callable[[], Reading], asked: int, reading: Reading, now_ms: int, seen_ms: int) -> None:
        """Queue the batches that `rest` has read from `asked` on, unless they are outdated by now."""
        if self.rest is not rest:
            return
        self.rest = None
        if self._listens(asked):
            self._go_on(reading, asked, 0, now_ms, seen_ms)

    def _listens(self, asked: int) -> bool:
        """Return whether batches that were read from an offset on come next."""
        return self.state is not _STOPPED and self._cut is None and asked == self.read_at

    def _go_on(self, reading: Reading, asked: int, size: int, now_ms: int, seen_ms: int | None) -> None:
        for step in reading.steps:
            self._push(step)
        if self.stopped:
            return
        self.tally.read(reading.steps, size, reading.next_offset - asked, now_ms)
        self.read_at = reading.next_offset
        self.leader_epoch = reading.leader_epoch
        if reading.compacted:
            self.beware_of_cleaner()
        if reading.direct:
            seen_ms = now_ms if seen_ms is None else seen_ms
            if asked < self._there_before:
                self.direct.paused(seen_ms + 1)
            self.direct.note(reading.direct, seen_ms)
        if reading.problem:
            self._push_end(reading.problem)

    def beware_of_cleaner(self) -> None:
        """Note that a log cleaner works on the source partition from now on (G)."""
        if not self.compacted:
            self.compacted = True
            if self.state is not LaneState.LOST:
                self._lose("a log cleaner works on the source")

    def ends_at(self, source_end: int, now_ms: int) -> None:
        """Note the source's log end."""
        self.tally.stands_at(self.position, self.source_end)
        self.tally.heard_ms = now_ms
        self.source_end = source_end

    def _push(self, step: Step) -> None:
        if step.start < self.position:
            if isinstance(step, Append):
                self.stop(
                    f"diverged: the target holds a control record at or after offset {step.start}, "
                    "where the source holds a record"
                )
                return
            if step.end <= self.position:
                return
            step = Hole(self.position, step.end)
        queue = self._queue
        if not queue:
            self._queued_sequence = self._sequence
        if isinstance(step, Append):
            self.queued_bytes += len(step.view)
            self._stamp(step, self._queued_sequence)
            self._queued_sequence = next_sequence(step.sequence, step.end - step.start)
        elif queue and isinstance(last := queue[-1], Hole) and last.end == step.start:
            queue[-1] = Hole(last.start, step.end)
            return
        queue.append(step)

    def _stamp(self, step: Append, sequence: int) -> None:
        stamp(step.view, producer_id=self._producer_id, epoch=self._epoch, sequence=sequence, clear=_CLEARED)
        step.sequence = sequence

    def slow(self, asked: Asked, node: int, throttle_ms: int) -> None:
        """Note that a broker asks for pauses because the quota is used up, or no longer asks."""
        ref = reaction_to(asked, Found.THROTTLED).ref
        self._slowed[asked] = f"{ref}: broker {node} asks for rests of {throttle_ms} ms" if throttle_ms else ""

    @property
    def in_flight(self) -> int:
        """Number of batches in flight to the target."""
        return len(self._sent)

    @property
    def at_rest(self) -> bool:
        """True if the lane is stopped with nothing in flight, so that another lane may take its place."""
        return self.stopped and not self.busy and not self._sent

    @property
    def torn(self) -> bool:
        """True if the writes in flight would do harm behind those of another process that began now.

        These writes are markers, or, on a compacted partition, appends (G).
        """
        late = bool(self._sent) or (self.unknown and not self.stopped)
        return self._marking or (self.compacted and late)

    @property
    def settle_s(self) -> float:
        """The seconds for which the target's log must be at rest before its end is believed."""
        if self.torn:
            return _SETTLE_TORN_S
        return _SETTLE_S if self.unknown else 0.0

    def unsettle(self) -> None:
        """Note that another lane's writes to this partition may still come, even markers: the tail must rest first."""
        self.unknown = self._marking = True

    def retire(self) -> None:
        """Release the partition, so that another process can take it."""
        self.retired = self.paused = True

    @property
    def released(self) -> bool:
        """True if the lane is retired, with nothing in flight and no unknown outcome: another process may begin."""
        return self.retired and not self.busy and not self._sent and (self.stopped or not self.unknown)

    def read_failed(self, trouble: str, now: float, *, named: bool) -> None:
        """Note that the source did not deliver this partition's records; only this partition waits for its next try."""
        self._read_failures += 1
        self.reading_trouble = trouble
        self.read_after = now + pause_s(self._read_failures, named=named)

    @property
    def may_be_bare(self) -> bool:
        """True if only a fetch of this partition alone can show whether the source has a batch at the read position."""
        return self.reads and self.unfilled_at == self.read_at != self._bare_at

    def bare(self, asked: int) -> None:
        """Note that a fetch of this partition alone found no batch from `asked` on, although the stable end is beyond.

        The lane does not skip these offsets, because a wrong empty response would lead past records. The next record
        that is written there ends this state.
        """
        self._bare_at = asked

    def deleted(self, asked: int, start: int) -> None:
        """Handle a source log start beyond the offset to read: make a hole if that loss is accepted (H)."""
        if self.stopped or asked != self.read_at:
            return
        at = max(asked, self.position)  # from `asked` to `position` the target has its holes already
        if at >= start:
            self.read_at = at
            return
        accepted = next((loss for loss in self.losses if loss.covers(at, at)), None)
        if accepted is None:
            self._push_end(
                f"{_why(Found.RANGE_DELETED)}: offsets {at} to {start - 1} were deleted on the source "
                "before they were copied",
                (at, start - 1),
            )
            return
        self.read_at = min(start, accepted.last + 1)
        self._push(Hole(at, self.read_at))

    def let_go(self) -> int:
        """Drop queued batches that cannot be written now, to make room for others; return the bytes that this frees.

        The dropped batches are read again later.
        """
        size = self.queued_bytes
        if not size or self._sent:
            return 0
        trouble = self._unserved or self.layout_trouble.get(Asked.PRODUCE, "")
        if trouble and self.state in _WRITES:
            self._lose(trouble)  # otherwise the batches would be read again at once, and wait again
        if self.state is _LOST:
            self._failed = []
            self._queue.clear()
            self.queued_bytes, self.read_at = 0, -1  # reading resumes at the target's position, once that is known
        elif self.paused and self.state in _WRITES:
            self._read_again(self._next)
        return size - self.queued_bytes

    def unserved(self, why: str) -> None:
        """Note that the partition's leader has no connection; with nothing in flight, nothing else reports this."""
        self._unserved = why

    def cut(self, end: int) -> None:
        """Handle a source log that was cut to `end` (W7).

        Everything that was read is forgotten. The target's tail shows what the target holds.
        """
        if self.stopped:
            return
        self._cut = end if self._cut is None else min(self._cut, end)
        self._hole = (0, 0)
        self.rest = None
        self._queue.clear()
        self._lose(f"the source was cut to offset {end}")

    def _push_end(self, problem: str, lost: tuple[int, int] = (-1, -1)) -> None:
        """Stop reading; batches that were read before the problem are still copied."""
        self.problem = problem
        self.lost_range = lost
        self.read_at = -1
        if not self._queue and not self._sent:
            self.stop(problem, lost)

    # writing to the target

    @property
    def careful(self) -> bool:
        """True if another copier's append may differ from ours: then only the owner writes, and compares."""
        return self.compacted

    def expected(self, step: Append) -> int:
        """Return the offset that the target must give this batch."""
        return step.start

    def _arrive(self, position: int) -> None:
        self.position = position

    def send_next(self, connection: object, in_flight: int) -> Sent | None:
        """Return the next append, stamped and counted as sent, or None if nothing may be sent now."""
        if connection is not self._connection:
            if self._sent:
                return None
            self._connection = connection
            self._behind_hole = LaneState.PRIMING
            if self.state is LaneState.PIPING:
                self.state = LaneState.PRIMING
        state, queue, sent = self.state, self._queue, self._sent
        limit = in_flight if state is _PIPING else 1
        if self.paused or state not in _WRITES or len(sent) >= limit or not queue:
            return None
        step = queue[0]
        if not isinstance(step, Append):
            return None
        if self.barrier is not None and step.end > self.barrier:
            if step.start < self.barrier:
                self._read_again(self._next)  # merged before the barrier was known
            return None
        self._unserved = ""
        if step.start != self._next:
            self.stop(f"diverged: the next batch is for offset {step.start}, the target stands at {self._next}")
            return None
        queue.popleft()
        sequence = self._sequence
        if step.sequence != sequence:  # the batch was queued when another sequence was expected
            self._stamp(step, sequence)
        self._sequence = next_sequence(sequence, step.end - step.start)
        self._next = step.end
        sent.append(step)
        return Sent(self, step)

    @property
    def queued(self) -> bool:
        """True if batches or holes that were read wait to be written."""
        return bool(self._queue)

    @property
    def head(self) -> Append | None:
        """The next append; None if a hole or nothing comes next."""
        return self._queue[0] if self._queue and isinstance(self._queue[0], Append) else None

    def answered(self, step: Append, error: int, base_offset: int, *, repeated: bool = False) -> bool:
        """Handle the broker's answer to an append; answers come in the order of sending.

        `repeated`: the broker already held that batch. Return whether the append is copied now.
        """
        self._settle(step)
        state = self.state
        if state is _STOPPED:
            return False
        if error:
            self._failed.append(step)
            self._refused(step, error)
        elif base_offset != self.expected(step):
            self.stop(
                f"{reaction_to(Asked.PRODUCE, Found.OTHER_OFFSET).ref}: the batch for offset {step.start} was stored "
                f"or found at {base_offset} on the target"
            )
        elif repeated and self.careful:
            self._failed.append(step)
            self._lose("another copier was faster")
        elif state not in _WRITES:
            self._failed.append(step)  # stored, but after a failure: the tail decides
        else:
            self.state = _PIPING
            self._arrive(step.end)
            self.queued_bytes -= len(step.view)
            self.trouble = ""
            self.failures = 0
            self._end_if_done()
            return True
        return False

    def _settle(self, step: Append) -> None:
        if self._sent and self._sent[0] is step:
            self._sent.popleft()
        else:
            self._sent.remove(step)

    def _refused(self, step: Append, error: int) -> None:
        reaction = reaction_to(Asked.PRODUCE, error)
        text = told(reaction, error, f"offset {step.start} was refused")
        if reaction.action is Action.STOP:
            broken = error == Code.CORRUPT_MESSAGE and not check_crc(step.view)
            self.stop(damaged(step.start) if broken else text)
            return
        self.tally.retried(Asked.PRODUCE, cause(reaction, error))
        self.unknown = self.unknown or reaction.action is Action.SETTLE
        if self.state is not LaneState.LOST:
            self._count(reaction)
            self._lose(text)

    def _count(self, reaction: Reaction) -> None:
        """Count a refusal with a name, which a person must mend: each failed try lengthens the next pause."""
        if reaction.ref:
            self.failures += 1

    @property
    def write_pause_s(self) -> float:
        """The pause before the tail is read for another try."""
        return pause_s(self.failures, named=True)

    def unanswered(self, step: Append, why: str) -> None:
        """Handle an append without an answer: whether the append was stored is unknown."""
        self._settle(step)
        if self.state is LaneState.STOPPED:
            return
        self._failed.append(step)
        self.tally.retried(Asked.PRODUCE, Found.NO_ANSWER)
        self.unknown = self.unknown or reaction_to(Asked.PRODUCE, Found.NO_ANSWER).action is Action.SETTLE
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.state is LaneState.STOPPED:
            return
        self.state = LaneState.LOST
        self.doubtful = True
        self.marked_under = 0
        self.trouble = why

    # recovery

    @property
    def wants_more(self) -> bool:
        """True if the lane may need more than reads and writes; `must_recover` and `hole_due` give details."""
        queue = self._queue
        return self.state is not _PIPING or bool(queue and isinstance(queue[0], Hole))

    @property
    def must_recover(self) -> bool:
        return self.state is _LOST and not self._sent and not self.busy

    def recovered(self, position: int, sequence: int, data_end: int) -> None:
        """Handle the target's tail: continue with the known batches, or read the source again.

        Offsets from `data_end` to `position` hold control records on the target. If the source held a record at such an
        offset, then a marker too many was written, and everything behind would shift. So the lane goes through the
        source's offsets from `data_end` on, and a record among these offsets stops the lane. Exception: on a compacted
        partition, this lane itself has read that these offsets hold no record. Then the lane continues at `position`: a
        replica of the source that still holds a record there is only cleaned less far.
        """
        if self.state is not LaneState.LOST:
            return
        if self._cut is not None:
            self._after_cut(position)
            if self.stopped:
                return
        if self.compacted and self._hole[0] <= data_end and position <= self._known_hole_end:
            data_end = position
        known: list[Step] = sorted(self._failed, key=lambda step: step.start)
        known += self._queue
        self._failed = []
        self._queue = deque()
        self.queued_bytes = 0
        self.trouble = self._held_to(position)
        self.position = self._next = position
        self._sequence = sequence
        self.unknown = self.doubtful = self._marking = False
        self._unserved = ""
        self.state = LaneState.PRIMING
        known = [step for step in known if step.end > data_end]
        if known and known[0].start == data_end:
            for step in known:
                self._push(step)
        elif known or self.read_at != position or self.problem:
            self._read_again(data_end)  # or another copier merged small batches in other places

    @property
    def _known_hole_end(self) -> int:
        """The end of the newest filled hole, including a directly following hole that waits to be filled."""
        end, following = self._hole[1], self._queue[0] if self._queue and not self._failed else None
        return following.end if isinstance(following, Hole) and following.start == end else end

    def _held_to(self, end: int) -> str:
        """Return a text about the offsets that a target log with this end has lost; '' if nothing is lost."""
        if end >= self.position:
            return ""
        self.tally.lost_offsets += self.position - end
        self.target_loss = (
            f"{reaction_to(Asked.PRODUCE, Found.CUT).ref}: {self.topic}-{self.partition}: offsets {end} to "
            f"{self.position - 1} were on the target and are gone: copied again"
        )
        return self.target_loss

    def _read_again(self, offset: int) -> None:
        self._queue.clear()
        self.queued_bytes = sum(len(step.view) for step in self._sent)
        self.read_at = offset
        self.problem = ""
        self.lost_range = (-1, -1)

    def _after_cut(self, position: int) -> None:
        """Continue if the target holds nothing that the source lost; otherwise stop and report the loss (H)."""
        end = self._cut
        self._cut = None
        self._failed = []
        self.read_at, self.leader_epoch = -1, -1
        assert end is not None
        if position <= end:
            return
        if any(loss.covers(end, position - 1) for loss in self.losses):
            self.reading_trouble = f"{_why(Found.CUT)}: waits until the source, which ends at {end}, reaches {position}"
            return
        self.stop(
            f"{_why(Found.CUT)}: the source was cut to offset {end} (an unclean leader election); offsets {end} to "
            f"{position - 1} are on the target as they were before",
            (end, position - 1),
        )

    # holes

    def hole_due(self) -> Hole | None:
        """Return the hole to fill now, clipped at the barrier; None if there is none."""
        if self._sent or self.paused or self.busy or not self._queue:
            return None
        if self.state not in _WRITES:
            return None
        step = self._queue[0]
        if not isinstance(step, Hole):
            return None
        end = step.end if self.barrier is None else min(step.end, self.barrier)
        return Hole(self.position, end) if end > self.position else None

    def fill(self) -> None:
        self._behind_hole = self.state
        self.state = LaneState.FILLING
        self._marking = True

    def filled(self, end: int, term: int) -> None:
        """Note the target's log end after filling under `term`: the whole hole or its first part is filled."""
        step = self._queue[0]
        assert isinstance(step, Hole)
        if end >= step.end:
            self._queue.popleft()
        else:
            self._queue[0] = Hole(end, step.end)
        self.tally.hole_offsets += end - self.position
        self._hole = (self._hole[0] if self._hole[1] == self.position else self.position), end
        self.position = self._next = end
        self.state = self._behind_hole
        self._marking = False
        self.marked_under = term
        self.trouble = ""
        self.failures = 0
        self._end_if_done()

    def fill_refused(self, hole: Hole, error: int) -> None:
        """Handle the broker's error for a hole; only the log end shows how many of its markers were written."""
        reaction = reaction_to(Asked.MARKERS, error)
        text = told(reaction, error, f"the hole at offset {hole.start} was refused")
        if reaction.action is Action.STOP:
            self.stop(text)
            return
        self.tally.retried(Asked.MARKERS, cause(reaction, error))
        self._count(reaction)
        self.fill_failed(text, unknown=reaction.action is Action.SETTLE)

    def fill_failed(self, why: str, *, unknown: bool) -> None:
        self._marking = unknown
        self.unknown = self.unknown or unknown
        self._lose(why)

    # ends

    def _end_if_done(self) -> None:
        if self.problem and not self._queue and not self._sent:
            self.stop(self.problem, self.lost_range)

    def stop(self, problem: str, lost: tuple[int, int] = (-1, -1)) -> None:
        """Stand still until a person resumes the partition; the first problem is the reported problem."""
        if self.state is not LaneState.STOPPED:
            self.problem = problem
            self.lost_range = lost
            self.state = LaneState.STOPPED
            self._queue.clear()
            self.queued_bytes = 0
            self.rest = None
            self.tally.count()

    def record(self, now_ms: int) -> PartitionStop:
        """Return this stop as the state log keeps it."""
        ref, _, what = self.problem.partition(": ")
        return PartitionStop(ref, what, remedy_of(self.problem), *self.lost_range, at_ms=now_ms)

    def _troubles(self) -> str:
        bare = ""
        if self._bare_at == self.read_at < self.stable_end:
            bare = (
                f"{_why(Found.NO_BATCH)}: the source has no batch from offset {self.read_at} to its end "
                f"{self.stable_end}; a record that is written there lets the copy go on (KAFKA-17076)"
            )
        low, slowed = self.disk_low, self._slowed.values()
        known = (low, *self.layout_trouble.values(), self.trouble, self.reading_trouble, bare, *slowed)
        return "; ".join(dict.fromkeys(trouble for trouble in known if trouble))

    @property
    def at_barrier(self) -> int:
        """The barrier, once the target holds everything below the barrier and nothing beyond; else −1."""
        reached = self.barrier is not None and self.position == self.barrier and not self._sent
        settled = self.state not in (LaneState.LOST, LaneState.STOPPED)
        return self.position if reached and settled else -1

    def progress(self) -> PartitionProgress:
        """Return this lane's progress for the presence log; the same object as before while nothing changes."""
        words = self._words()
        if self._said is None or self._said[0] != words:
            self._said = words, PartitionProgress(**words)
        return self._said[1]

    def _words(self) -> dict[str, Any]:
        """Return the fields of the lane's progress."""
        problem = self.problem
        if not problem and self.barrier is not None and max(self.position, self._next) > self.barrier:
            problem = f"beyond-barrier: the copy stands at {self.position}, beyond the barrier {self.barrier}"
        return {
            "position": self.position,
            "source_end": self.source_end,
            "stable_end": self.stable_end,
            "problem": problem,
            "at_barrier": self.at_barrier,
            **self._newest_direct(),
            "trouble": "" if self.stopped else self._troubles(),
            "pace": self.tally.pace(self.position, self.source_end),
        }

    def _newest_direct(self) -> dict[str, int]:
        if self.direct.newest is None:
            return {}
        (producer_id, epoch), offset, seen_ms = self.direct.newest
        return {"direct_id": producer_id, "direct_epoch": epoch, "direct_offset": offset, "direct_ms": seen_ms}


def _why(found: Found) -> str:
    return reaction_to(Asked.FETCH, found).ref
