"""A lane's other work (position, holes, map), reported only after a look at the target's log; the lane decides all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from kmigrate.cluster.append import LogTail, read_tail, settled_end
from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.cluster.requests import NO_LEADER
from kmigrate.errors import Diverged, Failed, ProtocolViolation, StateLogBroken, Unreachable
from kmigrate.mirror.copy.context import CopyContext, MapStore
from kmigrate.mirror.partition.lane import Lane
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.mirror.partition.reactions import Action, Asked, Found, reaction_to
from kmigrate.mirror.partition.steps import Hole
from kmigrate.mirror.partition.transitions import LaneState
from kmigrate.model.offset_map_ledger import MapLedger
from kmigrate.model.stops import OWNER_UNSURE, AcceptedLoss
from kmigrate.model.words import delete_unneeded
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import HEADER_SIZE, LOG_APPEND_TIME, Batch
from kmigrate.records.old_messages import OldMessages, walk_all
from kmigrate.records.rewrite import contents, needs_rewriting

__all__ = ["Recovery"]

_PATIENCE_S = 30.0
_COMPARED_OFFSETS = 20
"""Most offsets that are compared with the source after a loss of position, if a marker has raised the epoch."""
_COMPARED_BYTES = 64 << 10
"""Bytes per look at a batch; a broker returns a larger batch whole all the same."""


class Recovery:
    """Recovers lanes and fills their holes on the target."""

    def __init__(
        self, context: CopyContext, check_topic: Callable[[ClusterClient, str], Coroutine[Any, Any, None]]
    ) -> None:
        self._context = context
        self._source = context.source
        self._target = context.target
        self._owner_term = context.owner_term
        self._check_topic = check_topic
        self._one_comparison = asyncio.Lock()
        """Allows a single comparison at a time: unpacking takes as much memory as rewriting (`reading`)."""

    async def recover(self, lane: Lane) -> None:
        """Read the target's tail until the lane's position is known."""
        delay = 0.02
        await sleep(lane.write_pause_s)
        while lane.state is LaneState.LOST:
            if isinstance(lane, MappedLane) and not self._owner_term(lane.key):
                lane.recovery_failed("the lease is not confirmed")  # this process may not judge a newer owner's runs
                await sleep(0.05)
                continue
            try:
                tail = await self._look_at_tail(lane)
            except (Diverged, ProtocolViolation, StateLogBroken) as error:
                lane.stop(error.summary)
            except Failed as error:
                lane.recovery_failed(error.summary)
                self._context.signals.call_for_look()
                await sleep(delay)
                delay = min(delay * 2, 1.0)
            else:
                if not isinstance(lane, MappedLane) and tail.end < lane.log_start:
                    ref = reaction_to(Asked.PRODUCE, Found.NOT_ALIGNED).ref
                    lane.stop(f"{ref}: the target ends at {tail.end}, before the start {lane.log_start}")
                lane.recovered(tail.end, tail.sequence, max(tail.data_end, lane.log_start), tail.epoch)
                lane.saw_end(monotonic())

    async def _look_at_tail(self, lane: Lane) -> LogTail:
        """Return the target's tail, checked to be the work of this lane's copiers; else raise Diverged."""
        mapped = lane if isinstance(lane, MappedLane) else None
        tail = await read_tail(
            self._target,
            *lane.key,
            lane.target.producer_id,
            since=mapped.target_start if mapped else lane.since,
            settle_s=lane.settle_s,
            replicated=lane.has_late_writes,
        )
        if tail.end < (mapped.target_position if mapped else lane.target.position):
            # An unclean election has cut the log, which is then filled up again; or another topic has this name.
            await self._check_topic(self._target, lane.topic)
        if mapped:
            await self._bring_map_to(mapped, tail)
        elif lane.target.doubtful and (lane.compacted or lane.target.position < 0):
            await self._compare_last(lane, tail)
        if mapped is None and not lane.compacted and tail.epoch > lane.target.first_epoch:
            await self._compare_windows(lane, tail)
        return tail

    async def _compare_windows(self, lane: Lane, tail: LogTail) -> None:
        """Raise Diverged if the newest records on the target are not the source's at the same offsets (`lane`, O).

        A marker that a long window lacks shifts all records behind the marker, so a look at the newest is enough.
        """
        first = max(lane.target.position, lane.log_start, tail.data_end - _COMPARED_OFFSETS)
        while (offset := await self._first_stray(lane, first, tail.data_end)) is not None:
            held = await self._source_range(lane)
            if first in held and offset in held:
                raise _diverged(
                    lane,
                    f"holds a record at offset {offset} on the target that the source does not hold there: a control "
                    "marker is missing before the record, or another wrote to the target",
                    f"{delete_unneeded(lane.topic)}, then mirror it again before any client reads it",
                )
            if offset >= held.stop:
                return  # the source was cut, or its new leader does not show all of the log yet
            first = held.start

    async def _first_stray(self, lane: Lane, first: int, end: int) -> int | None:
        """Return the target's first offset from `first` on that holds another record than the source; None if none."""
        if first >= end:
            return None
        ours = await self._batches(self._target, lane, first, end)
        theirs = await self._batches(self._source, lane, first, end)
        async with self._one_comparison:
            return await asyncio.to_thread(_first_difference, ours, theirs, range(first, end), 0, lane.losses)

    async def _source_range(self, lane: Lane) -> range:
        """Return the offsets that the source holds now; raise Unreachable if they are unknown."""
        start = await self._source.log_start(lane.key)
        end = (await self._source.list_offsets({lane.key: LATEST})).get(lane.key, NO_LEADER)
        for reported in (start, end):
            if reported.error:
                await self._source.refresh([lane.topic])
                raise Unreachable("no-offsets", f"{lane.topic}-{lane.partition}: {row(reported.error).name}")
        return range(start.offset, end.offset)

    async def _compare_last(self, lane: Lane, tail: LogTail) -> None:
        """Raise Diverged if the target's last batch holds other records than the source at those offsets.

        The comparison takes place once, when a copy begins in this process: before, a source may have been cut and
        regrown (W7), or a stop by A14 may not have reached the state log. Records that a cleaner has removed from the
        source are not compared, because no reader of the source gets them any more.
        """
        if tail.data_end <= lane.log_start:
            return
        ours = await self._batches(self._target, lane, tail.data_end - 1, tail.data_end)
        first = min((batch.base_offset for batch in ours), default=tail.data_end)
        await self._compare(lane, ours, first, tail.data_end, 0)

    async def _compare(self, lane: Lane, ours: list[Batch | OldMessages], first: int, end: int, shift: int) -> None:
        """Compare the source's records from `first` to `end` with their copies, which stand `shift` offsets later."""
        theirs = await self._batches(self._source, lane, first, end)
        async with self._one_comparison:
            offset = await asyncio.to_thread(_first_difference, theirs, ours, range(first, end), shift, lane.losses)
        if offset is not None:
            raise _diverged(
                lane,
                f"holds another record at offset {offset + shift} on the target than the source at {offset}: another "
                "wrote to the target, or the source was cut and written anew",
                f"{delete_unneeded(lane.topic)}, then mirror it again before any client reads it"
                if not isinstance(lane, MappedLane)
                else "what the target held before its mirror is untouched; see docs/offsets.md",
            )

    async def _bring_map_to(self, lane: MappedLane, tail: LogTail) -> None:
        """Cut the map to the target's log end, and compare the last batch with the map."""
        link_uuid, term, maps = self._store.link_uuid, lane.term, self._store.maps
        await maps.read_to_end()
        ledger = lane.ledger
        if ledger is None:
            stored = maps.folded(link_uuid, *lane.key, lane.target_topic_id, lane.target_start)
            stored.close(tail.end)
            number = maps.next_number(link_uuid, *lane.key, term=term)
            ledger = MapLedger(
                link_uuid, *lane.key, term=term, number=number, target_topic_id=lane.target_topic_id, stored=stored
            )
            lane.begin_map(ledger)
        others = maps.folded(link_uuid, *lane.key, lane.target_topic_id, lane.target_start, before=ledger.begins)
        others.close(tail.end)
        lane.stands_at(tail.end, others)
        if tail.end == lane.target_start:
            return
        ours = await self._batches(self._target, lane, tail.end - 1, tail.end)
        last = ledger.map.to_source(tail.end - 1)
        first, end = await asyncio.to_thread(_extent, ours)
        if last is None or not last.is_record or tail.end != end:
            raise _diverged(
                lane,
                f"holds a record at offset {tail.end - 1} on the target that its offset map does not know",
                "find who writes to this topic on the target; see docs/mirror.md",
            )
        shift = tail.end - 1 - last.offset
        await self._compare(lane, ours, first - shift, last.offset + 1, shift)

    @property
    def _store(self) -> MapStore:
        if self._context.maps is None:
            raise RuntimeError("a mapped partition needs the map topic")
        return self._context.maps

    async def store_map(self, lane: MappedLane) -> None:
        """Store the planned runs, so that their batches may be sent."""
        try:
            if lane.ledger is None or not self._owner_term(lane.key):
                await sleep(0.05)
                return
            token, chunks = lane.ledger.unwritten()
            await self._store.maps.store(chunks)
            lane.map_stored(token)
        except Failed as error:
            lane.recovery_failed(error.what)
            self._context.signals.call_for_look()
            await sleep(0.1)

    async def _batches(self, client: ClusterClient, lane: Lane, start: int, end: int) -> list[Batch | OldMessages]:
        """Return the data batches that hold offsets start … end − 1; raise Unreachable if they cannot be read."""
        found: list[Batch | OldMessages] = []
        at = start
        while at < end:
            answer = await fetch_one(
                client, client.leader(*lane.key), FetchPartition(*lane.key, at, _COMPARED_BYTES), purpose="compare"
            )
            if answer.error == Code.OFFSET_OUT_OF_RANGE:
                return found  # deleted meanwhile: nothing is left there to compare
            if answer.error:
                await client.refresh([lane.topic])
                raise Unreachable("tail-unreadable", f"{lane.topic}-{lane.partition}: {row(answer.error).name}")
            walked = await asyncio.to_thread(list, walk_all(answer.records))
            batches = [batch for batch in walked if batch.next_offset > at]
            if not batches:
                return found
            found += [batch for batch in batches if not _is_control(batch) and batch.base_offset < end]
            at = batches[-1].next_offset
        return found

    async def fill(self, lane: Lane, hole: Hole, *, end_known: bool) -> None:
        """Fill a hole, or the first part of a long hole (D); `end_known`: the last answer gave the log end.

        Nothing is awaited between the last look at the owner term and the markers: no connection, no marker.
        """
        try:
            await self._fill_checked(lane, hole, end_known=end_known)
        except Failed as error:  # even if the lane is lost meanwhile, the markers may still come
            unknown = reaction_to(Asked.MARKERS, Found.NO_ANSWER).action is Action.SETTLE
            lane.fill_failed(error.what, unknown=unknown)

    async def _fill_checked(self, lane: Lane, hole: Hole, *, end_known: bool) -> None:
        term = self._owner_term(lane.key)
        if not term:
            await sleep(0.05)
            lane.fill_failed(OWNER_UNSURE, unknown=False)
            return
        if not (end_known and lane.target.marked_under == term and self._context.holes.ready(*lane.key, term)):
            await self._context.holes.prepare(*lane.key, term)
            end = await self._end_before(lane)
            if end != hole.start or self._owner_term(lane.key) != term:
                lane.fill_failed("the target's log moved", unknown=False)
                return
        hole = Hole(hole.start, min(hole.end, hole.start + self._context.holes.batch_offsets))
        made = await self._context.holes.make(
            *lane.key,
            hole,
            term,
            epoch=lane.begin_marking(term),
            may_write=lambda: lane.filling and self._owner_term(lane.key) == term,
        )
        if made.error:
            if reaction_to(Asked.MARKERS, made.error).action is Action.READ_TAIL:
                await sleep(0.1)  # a newer owner writes; the tail will show its writes
            self._context.signals.call_for_look()
            lane.fill_refused(hole, made.error)
        elif lane.filling:
            if made.end == hole.end:
                lane.filled(made.end, term, made.epoch)
                lane.saw_end(monotonic())
                if self._context.holes.takes_windows(lane.key):
                    lane.allow_windows(term)
            else:
                lane.fill_failed("the target's log moved", unknown=True)

    async def _end_before(self, lane: Lane) -> int:
        """Return the log end before a hole, at rest if a window of another owner may still come (`lane.py`, M)."""
        settle_s = lane.first_marker_settle_s
        deadline = monotonic() + _PATIENCE_S if settle_s else None
        return await settled_end(self._target, *lane.key, settle_s, deadline, replicated=bool(settle_s))


def _extent(batches: list[Batch | OldMessages]) -> tuple[int, int]:
    """Return the first record's offset and the offset after the last record; −1 for both if there is no record."""
    if batches and not any(isinstance(batch, OldMessages) or needs_rewriting(batch) for batch in batches):
        return batches[0].base_offset, batches[-1].next_offset
    offsets = [offset for batch in batches for offset in _contents(batch)]
    return (min(offsets), max(offsets) + 1) if offsets else (-1, -1)


def _first_difference(
    theirs: list[Batch | OldMessages],
    ours: list[Batch | OldMessages],
    offsets: range,
    shift: int,
    losses: Sequence[AcceptedLoss],
) -> int | None:
    """Return the first source offset whose record was copied as another record, or not at all; runs in a thread.

    Comparing takes as long as rewriting. Batches copied unchanged are compared as bytes: some are too large to unpack.
    """
    sent = {batch.base_offset: batch for batch in ours}
    odd = [batch for batch in theirs if not _is_same(batch, sent.get(batch.base_offset + shift))]
    copied = {offset: record for batch in ours if odd for offset, record in _contents(batch).items()}
    for batch in odd:
        for offset, record in _contents(batch).items():
            is_lost = any(loss.covers(offset, offset) for loss in losses)
            if offset in offsets and not is_lost and copied.get(offset + shift) != record:
                return offset
    return None


def _is_same(one: Batch | OldMessages, other: Batch | OldMessages | None) -> bool:
    """Return whether two batches are the same, byte for byte in their records."""
    if isinstance(one, OldMessages) or not isinstance(other, Batch) or len(one.view) != len(other.view):
        return False
    first_header, second_header = (
        (b.codec, b.attributes & LOG_APPEND_TIME, b.base_timestamp, b.last_offset_delta, b.count) for b in (one, other)
    )
    if first_header != second_header or one.attributes & LOG_APPEND_TIME:
        return False
    return all(  # in pieces, and as bytes: views are compared number by number
        bytes(one.view[at : at + _COMPARED_BYTES]) == bytes(other.view[at : at + _COMPARED_BYTES])
        for at in range(HEADER_SIZE, len(one.view), _COMPARED_BYTES)
    )


def _contents(batch: Batch | OldMessages) -> dict[int, tuple[int, bytes]]:
    return batch.contents() if isinstance(batch, OldMessages) else contents(batch)


def _is_control(batch: Batch | OldMessages) -> bool:
    return not isinstance(batch, OldMessages) and batch.is_control


def _diverged(lane: Lane, what: str, next_step: str) -> Diverged:
    ref, name = reaction_to(Asked.PRODUCE, Found.OTHER_CONTENT).ref, f"{lane.topic}-{lane.partition}"
    still_true = "no later record was copied; the source is untouched"
    return Diverged(ref, f"{name} {what}", still_true=still_true, next_step=next_step)
