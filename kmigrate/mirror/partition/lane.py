"""One mirrored partition as a state machine: what may be sent now, and what each answer means. Pure.

A lane consists of a cursor in the source's log, the target's log and a report (`lane_parts`). Invariants:

A  `position` is only what the target has acknowledged or what its own tail showed, never counted from the source.
B  Position and sequence come together, from the tail or from consecutive acknowledgements (W2).
C  The first batch after LOST, and on a new connection, goes alone (W3). A hole in between changes nothing in the
   broker's state of our producer id, so after the hole the batches go on as before.
D  A hole is filled with nothing in flight. Data waits until the log end is known to be the hole's end (W5). The log
   end is looked up before a hole, too, unless two conditions hold. First, the answer that has just come gave the log
   end: an unclean election takes too long to fit in between. Second, a marker of the present term stands on the log
   (`marked_under`): the broker then refuses an older owner's markers. Once a newer owner has written a marker, the
   broker refuses ours (52, V3). If one of two owners fills by transactions, only the owner term separates them.
   Appends of other copiers stop before the hole, as ours do.
E  An acknowledged base offset other than the expected offset stops the lane (A14).
F  Nothing at or beyond the barrier is ever sent.
G  On a compacted partition, two reads of the source may disagree on what is a hole. A copier that was stopped for long
   may then append a record where the owner has made a hole, one offset too late. So such a lane sends one batch at a
   time, and only while its process surely owns the partition. If the stored append was not the lane's own, the
   target's last batch is compared with the source (`doubtful`) before anything else is believed.
L  A window is batches with acks=0, and behind them, on the same connection, the markers of the hole that follows. A
   broker that refuses a batch closes the connection, and never reads what is behind. So a window needs no answer in
   between. A window is sent only if nothing else is in flight, and if a marker of the present term has raised the
   producer epoch: brokers then refuse all data of earlier owners. Behind a raised epoch the sequences begin at 0.
O  A long window has several holes. Its data is conditional on the data before, not on the markers before. So a long
   window is sent only while the topic's `min.insync.replicas` is 1: there brokers refuse no marker behind data that
   they have accepted (P4). After a long window of unknown outcome the owner's next marker raises the epoch anew,
   because later batches of the window may still come. The newest records on the target are then compared with the
   source before the position is believed.
M  A window of an earlier owner may come late, while its batches are the last that the log has of us: a repeat is no
   error (P5), and the markers would be one too many. So on a log with a raised epoch, the first batch that can be
   divided sends its first record alone, because then the late batch is a gap. If no batch before the first marker can
   be divided, or there is none, the log must be at rest before the marker.
N  Sequence 0 of a raised epoch is accepted behind whatever the log holds: after an unclean election, that has lost the
   marker, the batch would take another offset. So this batch is sent only right after a look at the log end.
H  Records that the source has lost (W7) are dropped if they were only read, and reported if the target holds them.
   Over offsets that were deleted unread a hole is made only if a person has accepted exactly that loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kmigrate.mirror.partition.direct_writers import READ_PAUSE_MS, DirectSeen
from kmigrate.mirror.partition.lane_parts import LaneReport, SourceCursor, TargetLog
from kmigrate.mirror.partition.reactions import Action, Asked, Found, Reaction, pause_s, reaction_to
from kmigrate.mirror.partition.steps import (
    Append,
    Hole,
    Reading,
    Step,
    damaged,
    kept_long,
    read_steps,
    split_append,
)
from kmigrate.mirror.partition.tally import Tally
from kmigrate.mirror.partition.transitions import LaneEvent, LaneState, next_state
from kmigrate.mirror.partition.window import Part, Window, parts_of
from kmigrate.model.presences import PartitionProgress
from kmigrate.model.stops import AcceptedLoss
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchedPartition
from kmigrate.records.batch import check_crc, next_sequence

__all__ = ["Key", "Lane", "Sent"]

Key = tuple[str, int]
"""Topic and partition."""

_LOST, _PIPING, _STOPPED = LaneState.LOST, LaneState.PIPING, LaneState.STOPPED
_WRITES = (LaneState.PIPING, LaneState.PRIMING)
"""States in which batches may be sent; bound once, since an enum look-up for each batch costs as much as a call."""
_SETTLE_S = 0.1
"""Seconds of rest before the log end is believed, if late appends are refused and only the next append is accepted."""
_SETTLE_MARKERS_S = 1.0
"""The same for a log to which markers may still be written: brokers never refuse a marker for its offset (W5)."""


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
        since: int = 0,
        live_from: int = -1,
        direct: DirectSeen | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key = (topic, partition)
        self.log_start = log_start
        self.since = since
        """Offset of the written log below which others have written, too."""
        self.state = LaneState.LOST
        self.source = SourceCursor(live_from)
        self.target = TargetLog(producer_id, epoch)
        self.report = LaneReport()
        self.tally = Tally()
        self.direct = direct if direct is not None else DirectSeen()
        self.barrier: int | None = None
        self.promoting = False
        """True during a promote: the link's throttle does not delay the lane."""
        self.urgent = False
        """True while writers wait behind a fence: progress must be reported at once."""
        self.paused = False
        self.losses: tuple[AcceptedLoss, ...] = ()
        self.disk_low = ""
        """The lack of room on the target that stops reading, or ''; a partition behind a fence is read all the same."""
        self.retired = False
        """True if another process shall copy this partition: nothing more is sent, and requests in flight end."""
        self.compacted = False
        """True if a log cleaner works on the source partition."""
        self.busy = False
        """True while a task recovers this lane, stores its map or fills its hole."""
        self._hole_limit = hole_limit

    def _advance(self, event: LaneEvent) -> None:
        self.state = next_state(self.state, event)

    # the assignment

    def assign(
        self,
        *,
        barrier: int | None = None,
        promoting: bool = False,
        urgent: bool = False,
        paused: bool = False,
        losses: tuple[AcceptedLoss, ...] = (),
    ) -> None:
        """Take over what the state log says of this partition; the partition is this process's own."""
        self.retired = False
        self.barrier, self.promoting, self.urgent, self.paused, self.losses = barrier, promoting, urgent, paused, losses

    def fill_holes_of(self, most: int) -> None:
        """Fill holes of at most so many offsets from now on; a larger hole stops the lane."""
        self._hole_limit = most

    def wait_for_room(self, why: str) -> None:
        """Read nothing while the target lacks room; '' lets the lane continue."""
        self.disk_low = why

    def metadata_seen(self, asked: Asked, trouble: str) -> None:
        """Note the trouble that a cluster's metadata shows; '' if there is none."""
        self.report.metadata_trouble[asked] = trouble

    def begin_work(self) -> None:
        """Note that a task works on this lane until `end_work`."""
        self.busy = True

    def end_work(self) -> None:
        self.busy = False

    # reading from the source

    @property
    def stopped(self) -> bool:
        return self.state is _STOPPED

    @property
    def reads(self) -> bool:
        """True if this lane has a position to read from, and nothing holds its reading back."""
        source = self.source
        held = self.paused or source.looking or source.rest is not None or source.cut_to is not None
        held = held or (bool(self.disk_low) and not self.urgent)
        return self.state is not _STOPPED and source.read_at >= 0 and not held

    def take(
        self, asked: int, answer: FetchedPartition, now_ms: int, seen_ms: int | None = None, *, most: int | None = None
    ) -> int:
        """Queue a read_committed response to a fetch at `asked`, unless outdated; return the effort that this took.

        Batches of more effort than `most` are left as `rest`; `seen_ms` is the present time on the presences' clock.
        """
        if not self._is_next(asked):
            return 0
        source = self.source
        source.failures = 0
        source.trouble = ""
        if now_ms - self.tally.heard_ms > READ_PAUSE_MS:
            self.direct.paused(now_ms if seen_ms is None else seen_ms)
        self.ends_at(answer.high_watermark, now_ms)
        source.stable_end = answer.last_stable_offset
        if source.first_end < 0:
            source.first_end = answer.high_watermark
            source.live_from = answer.high_watermark if source.live_from < 0 else source.live_from
        if not len(answer.records):
            return 0
        records = answer.records
        if self.state is not _PIPING:
            records = kept_long(records)
        reading = read_steps(
            records,
            answer.aborted,
            read_at=asked,
            leader_epoch=source.leader_epoch,
            hole_limit=self._hole_limit,
            barrier=self.barrier,
            most=most,
            direct_from=source.live_from,
        )
        self._queue_reading(reading, asked, len(records), now_ms, seen_ms)
        source.rest = reading.rest if self._is_next(reading.next_offset) else None
        return reading.effort

    def take_rest(self, rest: Callable[[], Reading], asked: int, reading: Reading, now_ms: int, seen_ms: int) -> None:
        """Queue the batches that `rest` has read from `asked` on, unless they are outdated by now."""
        if self.source.rest is not rest:
            return
        self.source.rest = None
        if self._is_next(asked):
            self._queue_reading(reading, asked, 0, now_ms, seen_ms)

    def _is_next(self, asked: int) -> bool:
        """Return whether batches that were read from an offset on come next."""
        return self.state is not _STOPPED and self.source.cut_to is None and asked == self.source.read_at

    def _queue_reading(self, reading: Reading, asked: int, size: int, now_ms: int, seen_ms: int | None) -> None:
        for step in reading.steps:
            self._push(step)
        if self.stopped:
            return
        source = self.source
        self.tally.read(reading.steps, size, reading.next_offset - asked, now_ms)
        source.read_at = reading.next_offset
        source.leader_epoch = reading.leader_epoch
        if reading.compacted:
            self.beware_of_cleaner()
        if reading.direct:
            seen_ms = now_ms if seen_ms is None else seen_ms
            if asked < source.first_end:
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
        self.tally.stands_at(self.target.position, self.source.log_end)
        self.tally.heard_ms = now_ms
        self.source.log_end = source_end

    def _push(self, step: Step) -> None:
        position = self.target.position
        if step.start < position:
            if isinstance(step, Append):
                self.stop(
                    f"diverged: the target holds a control record at or after offset {step.start}, "
                    "where the source holds a record"
                )
                return
            if step.end <= position:
                return
            step = Hole(position, step.end)
        self.target.push(step)

    def slow(self, asked: Asked, node: int, throttle_ms: int) -> None:
        """Note that a broker asks for pauses because the quota is used up, or no longer asks."""
        ref = reaction_to(asked, Found.THROTTLED).ref
        self.report.throttled[asked] = f"{ref}: broker {node} asks for rests of {throttle_ms} ms" if throttle_ms else ""

    @property
    def at_rest(self) -> bool:
        """True if the lane is stopped with nothing in flight, so that another lane may take its place."""
        return self.stopped and not self.busy and not self.target.sent

    @property
    def has_late_writes(self) -> bool:
        """True if the writes in flight (markers, or appends to a compacted partition, G) would harm a new owner."""
        late = bool(self.target.sent) or (self.target.unknown and not self.stopped)
        return self.target.marking or (self.compacted and late)

    @property
    def settle_s(self) -> float:
        """The seconds for which the target's log must be at rest before its end is believed."""
        if self.has_late_writes:
            return _SETTLE_MARKERS_S
        return _SETTLE_S if self.target.unknown else 0.0

    def unsettle(self) -> None:
        """Note that another lane's writes to this partition may still come, even markers: the tail must rest first."""
        self.target.unknown = self.target.marking = True

    def retire(self) -> None:
        """Release the partition, so that another process can take it."""
        self.retired = self.paused = True

    @property
    def released(self) -> bool:
        """True if the lane is retired, with nothing in flight and no unknown outcome: another process may begin."""
        return self.retired and not self.busy and not self.target.sent and (self.stopped or not self.target.unknown)

    def read_failed(self, trouble: str, now: float, *, named: bool) -> None:
        """Note that the source did not deliver this partition's records; only this partition waits for its next try."""
        source = self.source
        source.failures += 1
        source.trouble = trouble
        source.retry_at = now + pause_s(source.failures, named=named)

    def heard(self, asked: int, now_ms: int, *, throttled: bool) -> None:
        """Note that the source has answered a fetch at `asked`; the response may leave this partition out."""
        source = self.source
        if not source.trouble:
            self.tally.heard_ms = now_ms
        if source.read_at < source.stable_end and source.read_at == asked and not throttled:
            source.unfilled_at = asked

    def begin_look(self) -> None:
        """Read nothing until `looked`."""
        self.source.looking = True

    def looked(self, trouble: str = "") -> None:
        """Read on after a look at the topic and its offsets; `trouble`: the failure of the look."""
        self.source.looking = False
        self.source.trouble = trouble or self.source.trouble

    @property
    def may_lack_batches(self) -> bool:
        """True if only a fetch of this partition alone can show whether the source has a batch at the read position."""
        return self.reads and self.source.unfilled_at == self.source.read_at != self.source.empty_at

    def no_batch(self, asked: int) -> None:
        """Note that a fetch of this partition alone found no batch from `asked` on, although the stable end is beyond.

        The lane skips nothing, because a wrong empty response would lead past records; the next record ends this state.
        """
        self.source.empty_at = asked

    def deleted(self, asked: int, start: int) -> None:
        """Handle a source log start beyond the offset to read: make a hole if that loss is accepted (H)."""
        if self.stopped or asked != self.source.read_at:
            return
        at = max(asked, self.target.position)  # from `asked` to `position` the target has its holes already
        if at >= start:
            self.source.read_at = at
            return
        accepted = next((loss for loss in self.losses if loss.covers(at, at)), None)
        if accepted is None:
            self._push_end(
                f"{_why(Found.RANGE_DELETED)}: offsets {at} to {start - 1} were deleted on the source "
                "before they were copied",
                (at, start - 1),
            )
            return
        self.source.read_at = min(start, accepted.last + 1)
        self._push(Hole(at, self.source.read_at))

    def drop_waiting(self) -> int:
        """Drop queued batches that cannot be written now and are read again later; return the bytes that this frees."""
        target = self.target
        size = target.queued_bytes
        if not size or target.sent:
            return 0
        trouble = self.report.unserved or self.report.metadata_trouble.get(Asked.PRODUCE, "")
        if trouble and self.state in _WRITES:
            self._lose(trouble)  # otherwise the batches would be read again at once, and wait again
        if self.state is _LOST:
            target.failed = []
            target.drop_queue()
            self.source.read_at = -1  # reading resumes at the target's position, once that is known
        elif self.paused and self.state in _WRITES:
            self._read_again(target.next)
        return size - target.queued_bytes

    def unserved(self, why: str) -> None:
        """Note that the partition's leader has no connection; with nothing in flight, nothing else reports this."""
        self.report.unserved = why

    def cut(self, end: int) -> None:
        """Forget what was read of a source that was cut to `end` (W7); the tail shows what the target holds."""
        if self.stopped:
            return
        source = self.source
        source.cut_to = end if source.cut_to is None else min(source.cut_to, end)
        source.rest = None
        self.target.newest_hole = (0, 0)
        self.target.queue.clear()
        self._lose(f"the source was cut to offset {end}")

    def _push_end(self, problem: str, lost: tuple[int, int] = (-1, -1)) -> None:
        """Stop reading; batches that were read before the problem are still copied."""
        self.report.blocked_by(problem, lost)
        self.source.read_at = -1
        if not self.target.queue and not self.target.sent:
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
        self.target.position = position

    def send_next(self, connection: object, in_flight: int) -> Sent | None:
        """Return the next append, stamped and counted as sent, or None if nothing may be sent now."""
        target = self.target
        queue, sent = target.queue, target.sent
        if connection is not target.connection:
            if sent:
                return None
            target.connection = connection
            self._advance(LaneEvent.RECONNECTED)
        state = self.state
        limit = in_flight if state is _PIPING else 1
        if self.paused or state not in _WRITES or len(sent) >= limit or not queue:
            return None
        step = queue[0]
        if not isinstance(step, Append):
            return None
        if self.barrier is not None and step.end > self.barrier:
            if step.start < self.barrier:
                self._read_again(target.next)  # merged before the barrier was known
            return None
        self.report.unserved = ""
        if step.start != target.next:
            self.stop(f"diverged: the next batch is for offset {step.start}, the target stands at {target.next}")
            return None
        if target.fresh:
            step = self._first_append(step)
        self._send(step)
        return Sent(self, step)

    def _send(self, step: Append) -> None:
        """Count the batch at the head of the queue as sent, stamped with the next sequence."""
        target = self.target
        target.queue.popleft()
        sequence = target.sequence
        if step.sequence != sequence:  # the batch was queued when another sequence was expected
            target.stamp(step, sequence)
        target.sequence = next_sequence(sequence, step.end - step.start)
        target.next = step.end
        target.sent.append(step)

    def _first_append(self, step: Append) -> Append:
        """Return an append right behind the tail: only its first record, if a late window is possible (M)."""
        target = self.target
        if target.epoch == target.first_epoch or self.careful:
            target.fresh = False
            return step
        parts = split_append(step)
        target.undivided = parts is None
        if parts is None:
            return step
        target.fresh = False
        target.divide_head(*parts)
        return parts[0]

    def answered(self, step: Append, error: int, base_offset: int, *, repeated: bool = False) -> bool:
        """Handle a broker's answer in sending order (`repeated`: already held); return whether the append is copied."""
        target = self.target
        target.settle(step)
        state = self.state
        if state is _STOPPED:
            return False
        if error:
            target.failed.append(step)
            self._refused(step, error)
        elif base_offset != self.expected(step):
            self.stop(
                f"{reaction_to(Asked.PRODUCE, Found.OTHER_OFFSET).ref}: the batch for offset {step.start} was stored "
                f"or found at {base_offset} on the target"
            )
        elif repeated and self.careful:
            target.failed.append(step)
            self._lose("another copier was faster")
        elif state not in _WRITES:
            target.failed.append(step)  # stored, but after a failure: the tail decides
        else:
            if state is not _PIPING:
                self._advance(LaneEvent.ACKNOWLEDGED)
            self._arrive(step.end)
            target.queued_bytes -= len(step.view)
            target.failures = 0
            self.report.trouble = ""
            self._end_if_done()
            return True
        return False

    def _refused(self, step: Append, error: int) -> None:
        reaction = reaction_to(Asked.PRODUCE, error)
        text = reaction.text(error, f"offset {step.start} was refused")
        if reaction.action is Action.STOP:
            broken = error == Code.CORRUPT_MESSAGE and not check_crc(step.view)
            self.stop(damaged(step.start) if broken else text)
            return
        self.tally.retried(Asked.PRODUCE, reaction.cause(error))
        self.target.unknown = self.target.unknown or reaction.action is Action.SETTLE
        if self.state is not LaneState.LOST:
            self._count(reaction)
            self._lose(text)

    def _count(self, reaction: Reaction) -> None:
        """Count a refusal with a name, which a person must mend: each failed try lengthens the next pause."""
        if reaction.ref:
            self.target.failures += 1

    @property
    def write_pause_s(self) -> float:
        """The pause before the tail is read for another try."""
        return pause_s(self.target.failures, named=True)

    def unanswered(self, step: Append, why: str) -> None:
        """Handle an append without an answer: whether the append was stored is unknown."""
        self.target.settle(step)
        if self.state is LaneState.STOPPED:
            return
        self.target.failed.append(step)
        self.tally.retried(Asked.PRODUCE, Found.NO_ANSWER)
        self.target.unknown = self.target.unknown or reaction_to(Asked.PRODUCE, Found.NO_ANSWER).action is Action.SETTLE
        self._lose(why)

    def _lose(self, why: str) -> None:
        if self.state is LaneState.STOPPED:
            return
        self._advance(LaneEvent.LOST)
        self.target.doubtful = True
        self.target.marked_under = 0
        self.target.windows = False
        self.report.trouble = why

    # recovery

    @property
    def wants_more(self) -> bool:
        """True if the lane may need more than reads and writes; `must_recover` and `hole_due` give details."""
        queue = self.target.queue
        hole_next = bool(queue and isinstance(queue[0], Hole))
        return self.state is not _PIPING or hole_next or (self.target.windows and self.holds_back)

    @property
    def must_recover(self) -> bool:
        return self.state is _LOST and not self.target.sent and not self.busy

    def recovery_failed(self, why: str) -> None:
        """Note why the position is still unknown, or why the lane's map is not stored."""
        self.report.trouble = why

    def recovered(self, position: int, sequence: int, data_end: int, epoch: int = -1) -> None:
        """Handle the target's tail: continue with the known batches, or read the source again.

        Offsets from `data_end` to `position` hold control records on the target. A source record there means a marker
        too many, which would shift everything behind. So the lane reads the source from `data_end` on, and such a
        record stops the lane. If this lane of a compacted partition has itself read that no record is there, the lane
        continues at `position`: a source replica that still holds a record there is only cleaned less far.
        """
        if self.state is not LaneState.LOST:
            return
        self._after_cut(position)
        if self.stopped:
            return
        target = self.target
        if self.compacted and target.newest_hole[0] <= data_end and position <= target.known_hole_end:
            data_end = position
        known: list[Step] = sorted(target.failed, key=lambda step: step.start)
        known += target.queue
        self.report.trouble = self._lost_offsets(position)
        self.report.unserved = ""
        target.begin_at(position, sequence, epoch, rested=self.settle_s == _SETTLE_MARKERS_S)
        self._advance(LaneEvent.RECOVERED)
        known = [step for step in known if step.end > data_end]
        if known and known[0].start == data_end:
            for step in known:
                self._push(step)
        elif known or self.source.read_at != position or self.report.problem:
            self._read_again(data_end)  # or another copier merged small batches in other places

    def _lost_offsets(self, end: int) -> str:
        """Return a text about the offsets that a target log with this end has lost; '' if nothing is lost."""
        if end >= self.target.position:
            return ""
        self.tally.lost_offsets += self.target.position - end
        self.report.target_loss = (
            f"{reaction_to(Asked.PRODUCE, Found.CUT).ref}: {self.topic}-{self.partition}: offsets {end} to "
            f"{self.target.position - 1} were on the target and are gone: copied again"
        )
        return self.report.target_loss

    def _read_again(self, offset: int) -> None:
        self.target.drop_queue()
        self.source.read_at = offset
        self.report.blocked_by("")

    def _after_cut(self, position: int) -> None:
        """After a cut of the source, continue if the target holds nothing that the source lost; else stop (H)."""
        source, end = self.source, self.source.cut_to
        if end is None:
            return
        source.cut_to = None
        source.read_at = source.leader_epoch = -1
        self.target.failed = []
        if position <= end:
            return
        if any(loss.covers(end, position - 1) for loss in self.losses):
            source.trouble = f"{_why(Found.CUT)}: waits until the source, which ends at {end}, reaches {position}"
            return
        self.stop(
            f"{_why(Found.CUT)}: the source was cut to offset {end} (an unclean leader election); offsets {end} to "
            f"{position - 1} are on the target as they were before",
            (end, position - 1),
        )

    def saw_end(self, now: float) -> None:
        """Note that the position was the log end just now."""
        self.target.seen_at = now

    @property
    def rests(self) -> bool:
        """True if nothing is being written, so that the written log must end at the position."""
        return self.state in _WRITES and not self.target.sent and not self.busy

    def suspect(self, end: int) -> None:
        """Look at the tail: the written log ends beyond the position, although the lane rests."""
        self._lose(f"the written log ends at {end}, beyond the position {self.target.position}")

    def look_again(self, now: float) -> bool:
        """Return whether the lane was just given up, because the log end must be seen before the next append (N)."""
        if self.state not in _WRITES or not self.target.needs_look(now):
            return False
        self._lose("the log end is looked up before the first batch of a producer epoch")
        return True

    # holes

    def hole_due(self) -> Hole | None:
        """Return the hole to fill now, clipped at the barrier; None if there is none."""
        if self.target.sent or self.paused or self.busy or not self.target.queue:
            return None
        if self.state not in _WRITES:
            return None
        step = self.target.queue[0]
        if not isinstance(step, Hole):
            return None
        end = step.end if self.barrier is None else min(step.end, self.barrier)
        return Hole(self.target.position, end) if end > self.target.position else None

    def fill(self) -> None:
        self._advance(LaneEvent.HOLE_BEGUN)
        self.target.marking = True

    def begin_marking(self, term: int) -> int:
        """Return the producer epoch of the markers for the hole that is being filled."""
        return self.target.begin_marking(term)

    @property
    def first_marker_settle_s(self) -> float:
        """The seconds for which the log must be at rest before the markers of the hole at the position (M)."""
        return _SETTLE_MARKERS_S if self.target.expects_late_window else 0.0

    # windows

    def allow_windows(self, term: int) -> None:
        """Send windows from now on, if the brokers refuse the data of all earlier owners (L)."""
        self.target.windows = self.target.fenced_under(term) and not self.compacted

    def forbid_windows(self) -> None:
        """Send a batch alone until the next hole is filled."""
        self.target.windows = False

    @property
    def holds_back(self) -> bool:
        """True if the next batches wait, because the batches and the hole behind them go out together (L)."""
        return bool(self._next_parts())

    def _next_parts(self, holes: int = 1, goes_alone: Callable[[Append], bool] = lambda _: False) -> tuple[Part, ...]:
        """Return the parts of the window at the head of the queue; empty if there must be no window."""
        target = self.target
        if not target.windows or self.compacted or self.state is LaneState.PRIMING:
            return ()
        return parts_of(target.queue, target.next, holes=holes, barrier=self.barrier, goes_alone=goes_alone)

    @property
    def window_due(self) -> bool:
        """True if a window may be sent now."""
        return self.state is _PIPING and not (self.target.sent or self.paused or self.busy) and self.holds_back

    def begin_window(
        self, term: int, *, holes: int = 1, goes_alone: Callable[[Append], bool] = lambda _: False
    ) -> Window | None:
        """Return the window to send now, counted as sent; None if none may be sent under this term any more."""
        may = self.window_due and self.target.fenced_under(term)
        parts = self._next_parts(holes, goes_alone) if may else ()
        if not parts:
            return None
        self.fill()
        for part in parts:
            if part is not parts[0]:
                self.target.pass_hole()
            for append in part.appends:
                self._send(append)
        return Window(parts, self.begin_marking(term))

    def window_stored(self, window: Window, term: int) -> bool:
        """Note that the log ends behind the window; return whether its batches are copied."""
        if not self.filling:  # the lane was lost or stopped meanwhile: the tail decides
            self._give_up(window)
            return False
        for append in window.appends:
            self.target.settle(append)
            self.target.queued_bytes -= len(append.view)
        *passed, last = (part.hole for part in window.parts)
        self.tally.hole_offsets += sum(hole.end - hole.start for hole in passed)
        self.tally.windows["long" if passed else "short",] += 1
        self._arrive(last.start)
        self.filled(last.end, term)
        return True

    def window_failed(self, window: Window, why: str) -> None:
        """Note that the outcome of a window is unknown: the broker may have stored the window up to any step."""
        self._give_up(window)
        self.tally.retried(Asked.MARKERS, Found.NO_ANSWER)
        self.fill_failed(why, unknown=True)

    def window_refused(self, window: Window, error: int) -> None:
        """Handle the broker's error for a window's markers; only the log end shows what was stored."""
        self._give_up(window)
        self.fill_refused(window.parts[-1].hole, error)

    def _give_up(self, window: Window) -> None:
        """Keep the steps of a window for the look at the tail; the window's last hole is still queued."""
        for append in window.appends:
            self.target.settle(append)
        if self.stopped:
            return
        for part in window.parts:
            self.target.failed += part.appends
            if part is not window.parts[-1]:
                self.target.failed.append(part.hole)
        if len(window.parts) > 1:
            self.target.distrust_epoch()

    @property
    def filling(self) -> bool:
        return self.state in (LaneState.FILLING, LaneState.FILLING_PIPED)

    def filled(self, end: int, term: int, epoch: int = -1) -> None:
        """Note the log end after filling under `term`: the hole or its first part; `epoch`: the markers' epoch."""
        self.target.raise_epoch(epoch)
        self.tally.hole_offsets += end - self.target.position
        self.target.filled(end, term)
        self.target.failures = 0
        self.report.trouble = ""
        self._advance(LaneEvent.HOLE_FILLED)
        self._end_if_done()

    def fill_refused(self, hole: Hole, error: int) -> None:
        """Handle the broker's error for a hole; only the log end shows how many of its markers were written."""
        reaction = reaction_to(Asked.MARKERS, error)
        text = reaction.text(error, f"the hole at offset {hole.start} was refused")
        if reaction.action is Action.STOP:
            self.stop(text)
            return
        self.tally.retried(Asked.MARKERS, reaction.cause(error))
        self._count(reaction)
        self.fill_failed(text, unknown=reaction.action is Action.SETTLE)

    def fill_failed(self, why: str, *, unknown: bool) -> None:
        self.target.marking = unknown
        self.target.unknown = self.target.unknown or unknown
        self._lose(why)

    # ends

    def _end_if_done(self) -> None:
        if self.report.problem and not self.target.queue and not self.target.sent:
            self.stop(self.report.problem, self.report.lost_range)

    def stop(self, problem: str, lost: tuple[int, int] = (-1, -1), *, recorded: bool = False) -> None:
        """Stand still under the first problem until a person resumes; `recorded`: the state log holds the stop."""
        if self.state is not _STOPPED:
            self.report.blocked_by(problem, lost)
            self._advance(LaneEvent.STOPPED)
            self.target.queue.clear()
            self.target.queued_bytes = 0
            self.source.rest = None
            self.tally.count()
        self.report.recorded = self.report.recorded or recorded

    def stop_recorded(self, is_recorded: bool) -> None:
        """Note whether the state log holds this stop."""
        self.report.recorded = is_recorded

    def _troubles(self) -> str:
        source, report, no_batch = self.source, self.report, ""
        if source.empty_at == source.read_at < source.stable_end:
            no_batch = (
                f"{_why(Found.NO_BATCH)}: the source has no batch from offset {source.read_at} to its end "
                f"{source.stable_end}; a record that is written there lets the copy go on (KAFKA-17076)"
            )
        waits, throttled = (self.disk_low, *report.metadata_trouble.values()), report.throttled.values()
        known = (*waits, report.trouble, source.trouble, no_batch, *throttled)
        return "; ".join(dict.fromkeys(trouble for trouble in known if trouble))

    @property
    def at_barrier(self) -> int:
        """The barrier, once the target holds everything below the barrier and nothing beyond; else −1."""
        reached = self.barrier is not None and self.target.position == self.barrier and not self.target.sent
        settled = self.state not in (LaneState.LOST, LaneState.STOPPED)
        return self.target.position if reached and settled else -1

    def progress(self) -> PartitionProgress:
        """Return this lane's progress for the presence log; the same object as before while nothing changes."""
        return self.report.progress(self._progress())

    def _progress(self) -> dict[str, Any]:
        """Return the fields of the lane's progress."""
        problem = self.report.problem
        if not problem and self.barrier is not None and max(self.target.position, self.target.next) > self.barrier:
            problem = f"beyond-barrier: the copy stands at {self.target.position}, beyond the barrier {self.barrier}"
        return {
            "position": self.target.position,
            "source_end": self.source.log_end,
            "stable_end": self.source.stable_end,
            "problem": problem,
            "at_barrier": self.at_barrier,
            **self._newest_direct(),
            "trouble": "" if self.stopped else self._troubles(),
            "pace": self.tally.pace(self.target.position, self.source.log_end),
        }

    def _newest_direct(self) -> dict[str, int]:
        if self.direct.newest is None:
            return {}
        (producer_id, epoch), offset, seen_ms = self.direct.newest
        return {"direct_id": producer_id, "direct_epoch": epoch, "direct_offset": offset, "direct_ms": seen_ms}


def _why(found: Found) -> str:
    return reaction_to(Asked.FETCH, found).ref
