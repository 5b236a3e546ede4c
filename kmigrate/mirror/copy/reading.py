"""Reading from the source: a fetch session per leader, and each response handed to its lanes.

An error (`reactions`) holds back only the partition that was answered; a task of its own asks further questions.

A lane with more than `backlog_bytes` unacknowledged is left out of the next fetch. That fetch then waits only briefly,
so that the lane is soon included again. If all lanes together hold too much, each lane has less room; if they hold
twice that, only topics in a promote are read. Fenced partitions have a second connection, with full fetches, so that
other partitions and slow responses for them never delay a fenced partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from kmigrate.cluster.client import EARLIEST, LATEST, LOG_END, ClusterClient
from kmigrate.cluster.fetch import SESSION_ERRORS, FetchSession, fetch_one
from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.lanes import LOOK_S
from kmigrate.mirror.copy.request_size import AdaptiveRequestSize
from kmigrate.mirror.copy.same_rack import SameRack
from kmigrate.mirror.copy.throttle import Throttle
from kmigrate.mirror.metrics import Slowed
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.partition.reactions import Action, Asked, Found, reaction_to
from kmigrate.mirror.partition.steps import Reading
from kmigrate.net.clock import monotonic, now_ms, sleep, steady_ms
from kmigrate.net.tasks import TaskOwner, together
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchAnswer, FetchedPartition, FetchPartition

__all__ = ["SourceReader"]

_SHORT_WAIT_MS = 10
_HEARD_MS = 100
_SURE_S = 2.0
"""Seconds of a too early log end before a cut is believed: a broker replaced while it stood still reports old ends."""
_ASK_ENDS_S = 2.0
_LEAST_BACKLOG = 64 << 10
_FULL = 2
"""Multiple of a leader's share of `backlog_total_bytes` at which only topics in a promote are read."""
_MOST_EFFORT = 10_000
"""Maximum effort (`records.rewrite.effort`) per response, some 20 ms; a thread does the rest, switched each 5 ms."""


@dataclass(slots=True)
class _SourceConnection:
    """A connection of a reader to a source broker; each reader has two."""

    node: int
    session: FetchSession
    request_size: AdaptiveRequestSize
    asked: dict[Key, FetchPartition] = field(default_factory=dict)
    followed: Collection[Key] = ()
    """Asked partitions that the broker serves as a follower."""
    slowed: bool = False
    """True while a quota delays the responses of this connection."""
    heard_ms: int = 0
    """Time when the lanes last noted that the broker answers."""

    async def open(self) -> None:
        with suppress(Failed):  # the fetching task reports the failure
            await self.session.open()

    def heard(self, asked: Iterable[Lane], answer: FetchAnswer) -> None:
        """Note now and then for all asked lanes that the source answers: responses leave unchanged partitions out."""
        now = now_ms()
        if not answer.error and not 0 <= now - self.heard_ms < _HEARD_MS:
            self.heard_ms = now
            for lane in asked:
                lane.heard(self.asked[lane.key].offset, now, throttled=answer.throttle_ms > 0)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """The rest of a lane's fetch response, for a thread to read."""

    lane: Lane
    read: Callable[[], Reading]
    asked: int
    size: int
    """Bytes that the rest keeps in memory."""


class SourceReader:
    """Fetches for the lanes from the source's leaders; `on_move` is called for each lane that got a response."""

    def __init__(
        self,
        context: CopyContext,
        throttle: Throttle,
        tasks: TaskOwner,
        *,
        on_move: Callable[[Lane], None],
        check_anew: Callable[[ClusterClient, str], Awaitable[None]],
        meant: Callable[[str], UUID | None] = lambda topic: None,
    ) -> None:
        self._source = context.source
        self._lanes = context.lanes
        self._settings = context.settings
        self._signals = context.signals
        self._meter = context.meter
        self._throttle = throttle
        self._tasks = tasks
        self._on_move = on_move
        self._check_anew = check_anew
        self._meant = meant
        self._same_rack = SameRack(context)
        self._suspected: dict[Lane, float] = {}
        self._leaders = 0
        self._rest_bytes = 0
        """Bytes of the responses whose rest a thread has still to read."""
        self._waiting: list[_Rest] = []
        self._at_work = False
        """True while a thread reads a rest. Rests are read singly, since a large rest takes most of a gigabyte."""

    async def follow(self) -> None:
        """Find followers in this process's rack for ever."""
        await self._same_rack.run()

    async def run(self, node: int) -> None:
        """Fetch from a source broker for ever."""
        self._leaders += 1
        await together(self._read(node), self._read_fenced(node))

    async def _read(self, node: int) -> None:
        """Fetch for the lanes that no writer waits for."""
        settings = self._settings
        connection = self._connect(node, "mirror-read")
        while True:
            moved = self._signals.moved
            lanes = [lane for lane in self._lanes.read_from(self._source, node) if not lane.urgent]
            held = self._held(lanes) + self._rest_bytes
            full = held >= _FULL * self._share
            reading = [lane for lane in lanes if lane.reads]
            now = monotonic()
            room = self._room(reading, held)
            debt_s = self._throttle.wait_s(now)
            chosen = [
                lane
                for lane in reading
                if lane.target.queued_bytes < room
                and lane.source.retry_at <= now
                and (not (debt_s or full) or lane.promoting)
            ]
            if not chosen:
                longest = min([LOOK_S, *([debt_s] if debt_s else []), *_until(reading, now)])
                await self._signals.wait(moved, longest, reads=True)
                if debt_s and reading:
                    self._meter.slowed_s[Slowed.LINK_THROTTLE] += monotonic() - now
                continue
            waits = len(chosen) == len(reading) and not self._rest_bytes
            most_ms = settings.fetch_wait_ms if waits else _SHORT_WAIT_MS
            await self._fetch(connection, chosen, room, most_ms, exempt=bool(debt_s))

    async def _read_fenced(self, node: int) -> None:
        """Fetch for the lanes behind a fence, idle or not, over a connection that is open before the fence."""
        connection = self._connect(node, "mirror-read-fenced")
        while True:
            moved, assigned = self._signals.moved, self._signals.assigned
            lanes = self._lanes.led_by(self._source, node)
            fenced = [lane for lane in lanes if lane.urgent]
            if not fenced:
                if any(lane.promoting for lane in lanes):
                    await connection.open()
                await assigned.wait()
                continue
            now = monotonic()
            room = self._room(fenced, sum(lane.target.queued_bytes for lane in fenced))
            chosen = [
                lane
                for lane in fenced
                if lane.reads and lane.target.queued_bytes < room and lane.source.retry_at <= now
            ]
            if chosen:
                await self._fetch(connection, chosen, room, _SHORT_WAIT_MS, full=True, exempt=True)
            else:
                await self._signals.wait(moved, min([LOOK_S, *_until(fenced, now)]), reads=True)

    def _connect(self, node: int, purpose: str) -> _SourceConnection:
        most = self._settings.fetch_max_bytes
        session = FetchSession(self._source, node, purpose, max_bytes=most, meant=self._meant)
        patience_s = self._source.settings.request_timeout_s
        return _SourceConnection(node, session, AdaptiveRequestSize(most, patience_s, in_turn=True))

    async def _fetch(
        self,
        connection: _SourceConnection,
        lanes: Sequence[Lane],
        room: int,
        max_wait_ms: int,
        *,
        full: bool = False,
        exempt: bool,
    ) -> None:
        """Send a fetch for these lanes, and hand each lane its part of the response."""
        session, request_size = connection.session, connection.request_size
        session.max_bytes = self._throttle.most(request_size.size)
        most = self._throttle.most(min(self._settings.partition_max_bytes, room, request_size.size))
        connection.asked = asked = _questions(lanes, most, connection.asked)
        connection.followed = self._same_rack.at(connection.node, lanes)
        began = monotonic()
        try:
            answer = await session.fetch(asked, max_wait_ms=max_wait_ms, full=full)
        except Failed as error:
            if error.ref == "no-answer":
                request_size.late()
            self._same_rack.leave(connection.followed)
            self._signals.failed(self._source, error)
            self._signals.call_for_look()
            await sleep(0.1)
            return
        took = monotonic() - began
        size = self.take(asked, answer.partitions, connection.followed)
        request_size.answered(size, took)
        connection.heard(lanes, answer)
        if answer.error and answer.error not in SESSION_ERRORS:
            self._same_rack.leave(connection.followed)
            self._refused_whole([lane for lane in lanes if lane.key not in connection.followed], answer.error)
        self._throttle.charge(size, monotonic(), exempt=exempt)
        if answer.throttle_ms or connection.slowed:
            connection.slowed = answer.throttle_ms > 0
            self._meter.slowed_s[Slowed.SOURCE_QUOTA] += answer.throttle_ms / 1000
            for lane in lanes:
                lane.slow(Asked.FETCH, connection.node, answer.throttle_ms)
        if answer.error or connection.slowed:
            await sleep(max(answer.throttle_ms / 1000, 0.05))

    @property
    def _share(self) -> int:
        """Each leader's share of `backlog_total_bytes`."""
        return self._settings.backlog_total_bytes // self._leaders

    def _room(self, lanes: Sequence[Lane], held: int) -> int:
        """Return the unacknowledged bytes for each lane; all lanes hold at most `held`, checked before a costly sum."""
        settings, together = self._settings, self._share
        if held < together or sum(lane.target.queued_bytes for lane in lanes) < together:
            return settings.backlog_bytes
        return max(min(_LEAST_BACKLOG, settings.backlog_bytes), min(settings.backlog_bytes, together // len(lanes)))

    def _held(self, lanes: Sequence[Lane]) -> int:
        """Return a leader's held bytes; at the limit (1,000 lanes, a large batch each) first drop waiting batches."""
        held = sum([lane.target.queued_bytes for lane in lanes])
        if held >= _FULL * self._share:
            held -= sum(lane.drop_waiting() for lane in lanes)
        return held

    def take(
        self, wanted: Mapping[Key, FetchPartition], parts: Iterable[FetchedPartition], followed: Collection[Key] = ()
    ) -> int:
        """Give each partition's response to its lane; return the number of bytes read.

        `followed` are the partitions whose follower has answered: its errors are the leader's to judge (`same_rack`).
        """
        size, most = 0, _MOST_EFFORT
        now, seen = now_ms(), steady_ms()
        for part in parts:
            size += len(part.records)
            key = (part.topic, part.partition)
            lane, asked = self._lanes.get(key), wanted.get(key)
            if (
                lane is None
                or asked is None
                or lane.stopped
                or lane.source.rest is not None
                or asked.offset != lane.source.read_at
            ):
                continue  # the lane is gone, or the other connection has read on meanwhile
            if followed and key in followed and (part.error or part.diverging is not None):
                self._same_rack.leave([key])
            elif part.diverging is not None:
                self._suspect_cut(lane, part.diverging[1])
            elif part.error:
                self._refused(lane, asked.offset, part.error)
            else:
                self._suspected.pop(lane, None)
                most -= lane.take(asked.offset, part, now, seen, most=most)
                self._begin_rest(lane, len(part.records))
            self._on_move(lane)
        self._signals.wake()
        return size

    def _begin_rest(self, lane: Lane, size: int) -> None:
        if lane.source.rest is None:
            return
        self._rest_bytes += size
        self._waiting.append(_Rest(lane, lane.source.rest, lane.source.read_at, size))
        if not self._at_work:
            self._at_work = True
            self._tasks.start(self._read_rests(), "rests")

    async def _read_rests(self) -> None:
        """Read large rests in a thread, because they would delay all other tasks: first fenced lanes, then by age."""
        try:
            while self._waiting:
                rest = min(self._waiting, key=lambda each: (not each.lane.urgent, not each.lane.promoting))
                self._waiting.remove(rest)
                try:
                    await self._read_rest(rest)
                finally:
                    self._rest_bytes -= rest.size
        finally:
            self._at_work = False

    async def _read_rest(self, rest: _Rest) -> None:
        lane = rest.lane
        if lane.source.rest is not rest.read:
            return
        reading = await asyncio.to_thread(rest.read)
        lane.take_rest(rest.read, rest.asked, reading, now_ms(), steady_ms())
        self._on_move(lane)
        self._signals.wake()

    def _suspect_cut(self, lane: Lane, end: int) -> None:
        """Believe that the source was cut to `end` once leaders have said so for a while, whichever broker leads."""
        now = monotonic()
        for gone in [each for each in self._suspected if self._lanes.get(each.key) is not each]:
            del self._suspected[gone]
        if now - self._suspected.setdefault(lane, now) >= _SURE_S:
            del self._suspected[lane]
            lane.cut(end)
            return
        ref = reaction_to(Asked.FETCH, Found.CUT).ref
        lane.read_failed(f"{ref}: the source ends at {end}, and more of it was read", now, named=True)
        self._signals.call_for_look()

    async def ask_ends(self) -> None:
        """Ask for ever for the log ends of partitions that are not read now: paused, stopped, held back or refused."""
        while True:
            await sleep(_ASK_ENDS_S)
            asked_ms = now_ms()
            silent = {lane: lane.tally.heard_ms for lane in self._lanes.values() if _is_silent(lane, asked_ms)}
            try:
                ends = await self._source.list_offsets({lane.key: LATEST for lane in silent}) if silent else {}
            except Failed:
                continue  # the reading task reports the failure
            for lane, heard_ms in silent.items():
                end = ends[lane.key]
                if not end.error and lane.tally.heard_ms == heard_ms:
                    lane.ends_at(end.offset, asked_ms)

    async def look_for_batches(self) -> None:
        """Find out for ever if empty responses had no room, or the log has no batch up to its end (KAFKA-17076)."""
        before: dict[Lane, int] = {}
        while True:
            await sleep(_ASK_ENDS_S)
            unfilled = {lane: lane.source.read_at for lane in self._lanes.values() if lane.may_lack_batches}
            for lane in [lane for lane, at in unfilled.items() if before.get(lane) == at]:
                asked = FetchPartition(*lane.key, lane.source.read_at, 1)
                try:
                    node = self._source.leader(*lane.key)
                    answer = await fetch_one(self._source, node, asked, purpose="look-for-batches", read_committed=True)
                except Failed:
                    continue  # the reading task reports the failure
                if not (answer.error or len(answer.records)) and answer.last_stable_offset > asked.offset:
                    lane.no_batch(asked.offset)
            before = unfilled

    def _refused(self, lane: Lane, asked: int, error: int) -> None:
        reaction = reaction_to(Asked.FETCH, error)
        trouble = reaction.text(error, f"reading offset {asked} was refused")
        if reaction.action is Action.STOP:
            lane.stop(trouble)
            return
        lane.tally.retried(Asked.FETCH, reaction.cause(error))
        lane.read_failed(trouble, monotonic(), named=bool(reaction.ref))
        if reaction.action is Action.LOOK:
            lane.begin_look()
            self._tasks.start(self._look_at(lane, asked), f"look-{lane.key}")
        elif reaction.action is Action.REFRESH:
            self._signals.call_for_look()

    def _refused_whole(self, lanes: Iterable[Lane], error: int) -> None:
        """Handle an error for a whole fetch: with topic ids, a failing broker names no partition."""
        reaction = reaction_to(Asked.FETCH, Code.UNKNOWN_SERVER_ERROR)
        trouble = reaction.text(error, "a whole fetch was refused")
        for lane in lanes:
            lane.tally.retried(Asked.FETCH, reaction.cause(error))
            lane.read_failed(trouble, monotonic(), named=True)

    async def _look_at(self, lane: Lane, asked: int) -> None:
        """Find out why the source does not know the topic or the offset: report the loss, never jump (W7, W8)."""
        trouble = ""
        try:
            await self._check_anew(self._source, lane.topic)
            if lane.stopped or self._source.leader(*lane.key) < 0:
                return
            start = (await self._source.list_offsets({lane.key: EARLIEST}))[lane.key]
            end = (await self._source.list_offsets({lane.key: LATEST}, replica_id=LOG_END))[lane.key]
        except Failed as error:
            trouble = error.summary
        else:
            if start.error or end.error:
                self._signals.call_for_look()
            elif asked < start.offset:
                lane.deleted(asked, start.offset)
            elif asked > end.offset:
                self._suspect_cut(lane, end.offset)
        finally:
            lane.looked(trouble)
            self._on_move(lane)
            self._signals.wake()


def _questions(
    lanes: Sequence[Lane], most_bytes: int, before: Mapping[Key, FetchPartition]
) -> dict[Key, FetchPartition]:
    """Return the next fetch position of each lane; reuse the values of `before` for lanes that have not moved."""
    out: dict[Key, FetchPartition] = {}
    for lane in lanes:
        key, at, epoch = lane.key, lane.source.read_at, lane.source.leader_epoch
        part = before.get(key)
        same = part is not None and part.offset == at and part.last_fetched_epoch == epoch
        if part is None or not same or part.max_bytes != most_bytes:
            part = FetchPartition(lane.topic, lane.partition, at, most_bytes, last_fetched_epoch=epoch)
        out[key] = part
    return out


def _is_silent(lane: Lane, now_ms: int) -> bool:
    """Return whether a log end was not reported lately; a report from the future came before the clock was set back."""
    return not 0 <= now_ms - lane.tally.heard_ms <= _ASK_ENDS_S * 1000


def _until(lanes: Iterable[Lane], now: float) -> list[float]:
    """Return the remaining pause of each lane that pauses after an error."""
    return [lane.source.retry_at - now for lane in lanes if lane.source.retry_at > now]
