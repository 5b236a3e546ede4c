"""Writing to the target: requests with one batch per partition (A2) over a few connections per leader, some in flight.

A broker works on a single request of a connection at a time, so each leader has several connections. Each partition
keeps to its own connection, where its batches stay in order. Number and size of requests limit the bytes in flight.
Partitions in a promote have a connection of their own, so that no other batches in flight delay a promote.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from kmigrate.errors import Failed, KmigrateError, Unreachable
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.request_size import AdaptiveRequestSize
from kmigrate.mirror.metrics import Slowed
from kmigrate.mirror.partition.lane import Key, Lane, Sent
from kmigrate.mirror.partition.reactions import Action, Asked, reaction_to
from kmigrate.mirror.partition.steps import Append
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, ProduceAnswer, decode_throttled_produce, encode_produce

__all__ = ["TargetWriter"]

_PRODUCE_TIMEOUT_S = 30.0
_OVERDUE_S = _PRODUCE_TIMEOUT_S + 5
_MOVED_S = 3.0
"""Seconds in which a broker that has just handed a partition over answers its earlier requests."""
_LEAST_WAIT_S = 1.0
_PROMOTED = -1
"""The connection of partitions in a promote, which would wait for seconds behind requests of lagging partitions."""
_REQUEST_HEAD = 64 << 10
"""Upper bound of a request's bytes beside its batches."""


class _Request(NamedTuple):
    """A request without an answer yet."""

    connection: BrokerConnection
    sent: float
    batches: list[Sent]


class _Unanswered(dict[asyncio.Future[bytearray], _Request]):
    """Requests without an answer yet, oldest first; one timer for all, since a timer for each costs as much as a batch.

    A connection with an overdue request is given up, because a broker that stands still answers nothing. This comes
    sooner if `moved` says that other brokers lead the partitions of the batches by now.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, request_size: AdaptiveRequestSize, moved: Callable[[list[Sent]], bool]
    ) -> None:
        super().__init__()
        self._loop = loop
        self._request_size = request_size
        self._moved = moved
        self._watched = False
        self._full = False

    def take_more(self, most: int) -> bool:
        """Return whether more requests may be sent; after `most` in flight, pause until half are answered.

        A broker has work meanwhile. Each request wakes this process and fetches data into the processor's cache anew.
        """
        if len(self) >= most:
            self._full = True
        elif len(self) <= most // 2:
            self._full = False
        return not self._full

    def add(self, future: asyncio.Future[bytearray], connection: BrokerConnection, batches: list[Sent]) -> None:
        self[future] = _Request(connection, monotonic(), batches)
        if not self._watched:
            self._watched = True
            self._loop.call_later(_MOVED_S, self._look)

    def answered(self, future: asyncio.Future[bytearray], size: int) -> None:
        """Remove a request whose answer has come, or will never come."""
        request = self.pop(future)
        if not future.cancelled() and future.exception() is None:
            self._request_size.answered(size, monotonic() - request.sent)

    def _look(self) -> None:
        oldest = next(iter(self.values()), None)
        self._watched = oldest is not None
        if oldest is None:
            return
        waited = monotonic() - oldest.sent
        if not oldest.connection.lost:
            if waited >= _OVERDUE_S:
                self._request_size.late()
                oldest.connection.abort()
            elif any(self._stands_still(request) for request in self.values()):
                oldest.connection.abort()
        self._loop.call_later(max(_LEAST_WAIT_S, min(_MOVED_S, _OVERDUE_S - waited)), self._look)

    def _stands_still(self, request: _Request) -> bool:
        return monotonic() - request.sent >= _MOVED_S and self._moved(request.batches)


class TargetWriter:
    """Produces the batches of lanes to the target's leaders; `answered` is called for each lane that got its answer."""

    def __init__(
        self,
        context: CopyContext,
        *,
        attend: Callable[[Lane], None],
        answered: Callable[[Lane], None],
    ) -> None:
        self._target = context.target
        self._lanes = context.lanes
        self._settings = settings = context.settings
        self._signals = context.signals
        self._meter = context.meter
        self._in_flight = settings.in_flight if context.pipelining else 1
        self._old_ms = context.old_ms
        self._request_limit = context.request_limit - _REQUEST_HEAD
        self._owner_term = context.owner_term
        self._may_write = context.may_write
        self._attend = attend
        self._answered = answered
        self._left_out: dict[tuple[int, int], Lane | None] = {}
        """The first lane without room in the last request, by connection."""
        most = settings.request_max_bytes
        self._sizes: dict[tuple[int, int], AdaptiveRequestSize] = defaultdict(
            lambda: AdaptiveRequestSize(most, _OVERDUE_S)
        )
        self._throttled_until: dict[int, float] = {}
        """Time until which a broker with an exceeded quota asks for a pause, by broker (KIP-219)."""

    async def run(self, node: int) -> None:
        """Produce to a target leader for ever."""
        slots = (*range(self._settings.write_connections), _PROMOTED)
        await together(*(self._run(node, slot) for slot in slots))

    async def _run(self, node: int, slot: int) -> None:
        def led_elsewhere(batches: list[Sent]) -> bool:
            return any(self._target.leader(*lane.key) not in (node, -1) for lane, _ in batches)

        in_flight = _Unanswered(asyncio.get_running_loop(), self._sizes[node, slot], led_elsewhere)
        connection: BrokerConnection | None = None
        while True:
            moved, assigned = self._signals.moved, self._signals.assigned
            if slot == _PROMOTED and not any(lane.promoting for lane in self._lanes.led_by(self._target, node)):
                await assigned.wait()
                continue
            throttled_until = self._throttled_until.get(node)
            # A broker with an exceeded quota reads no more from us meanwhile: answers would become overdue behind it.
            most = self._settings.in_flight if throttled_until is None else 1
            mine = self._mine(node, slot) if in_flight.take_more(most) else []
            if not mine and (slot != _PROMOTED or connection is not None):
                await self._signals.wait(moved)
                continue
            if connection is None or connection.lost:
                try:
                    purpose = "mirror-write-promoted" if slot == _PROMOTED else f"mirror-write-{slot}"
                    connection = await self._target.connection(node, purpose)
                except Failed as error:
                    for lane in mine:
                        lane.unserved(error.what)
                    self._signals.failed(self._target, error)
                    self._signals.call_for_look()
                    await sleep(0.1)
                continue
            if throttled_until is not None and throttled_until > monotonic():
                await sleep(throttled_until - monotonic())
                continue
            batches = self._gather(node, slot, mine, connection)
            if not batches:
                await self._signals.wait(moved)
                continue
            self._send(node, connection, batches, in_flight)
            await connection.drain()

    def _mine(self, node: int, slot: int) -> list[Lane]:
        """Return the lanes with something to write, first the lane last left out, so that lagging lanes take turns."""
        promoted = slot == _PROMOTED
        slots = () if promoted else (slot, self._settings.write_connections)
        lanes = self._lanes.led_by(self._target, node, *slots)
        mine = [lane for lane in lanes if lane.target.queue and lane.promoting == promoted]
        first = self._left_out.get((node, slot))
        if first is None or first not in mine:
            return mine
        at = mine.index(first)
        return mine[at:] + mine[:at]

    def _gather(self, node: int, slot: int, lanes: list[Lane], connection: BrokerConnection) -> list[Sent]:
        """Return at most one batch of each lane, for as many lanes as have room."""
        out: list[Sent] = []
        if not self._may_write():
            return out
        most = self._sizes[node, slot].size
        size, now = 0, now_ms()
        left_out: Lane | None = None
        for lane in lanes:
            if size >= most:
                left_out = left_out or lane
                break
            head = lane.target.head
            old = head is not None and (self._in_flight == 1 or now - head.max_timestamp > self._old_ms)
            if (lane.careful or old) and not self._owner_term(lane.key):
                continue
            if lane.target.sequence == 0 and lane.look_again(monotonic()):
                self._attend(lane)
                continue
            if lane.target.windows and not old and lane.holds_back:
                self._attend(lane)
                continue
            if head is not None and size + len(head.view) > self._request_limit:
                left_out = left_out or lane
                self._refuse_too_large(lane, head)
                continue
            sent = lane.send_next(connection, 1 if lane.compacted or old else self._in_flight)
            if sent is None:
                self._attend(lane)
                continue
            out.append(sent)
            size += len(sent.step.view)
        self._left_out[node, slot] = left_out
        return out

    def _refuse_too_large(self, lane: Lane, head: Append) -> None:
        """Stop a lane whose batch alone is too large: brokers disconnect without error. A fitting batch goes next."""
        if len(head.view) > self._request_limit:
            lane.stop(
                f"batch-too-large: the batch at offset {head.start} has {len(head.view):,} bytes; the target takes "
                f"requests of up to {self._request_limit + _REQUEST_HEAD:,} (socket.request.max.bytes)"
            )

    def _send(self, node: int, connection: BrokerConnection, batches: list[Sent], in_flight: _Unanswered) -> None:
        body = encode_produce(
            [(*lane.key, step.view) for lane, step in batches],
            timeout_ms=int(_PRODUCE_TIMEOUT_S * 1000),
        )
        size = sum([len(step.view) for _, step in batches])
        future = connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True)
        in_flight.add(future, connection, batches)

        def answered(done: asyncio.Future[bytearray]) -> None:
            in_flight.answered(done, size)
            self._take(node, batches, done)

        future.add_done_callback(answered)

    def _take(self, node: int, batches: list[Sent], done: asyncio.Future[bytearray]) -> None:
        """Hand a Produce response, or its absence, to the lanes."""
        failure = done.exception() if not done.cancelled() else Unreachable("cancelled", "the copier was closed")
        answers: dict[Key, ProduceAnswer] = {}
        if failure is None:
            try:
                answers, throttle_ms = decode_throttled_produce(done.result())
                self._hold(node, batches, throttle_ms)
            except KmigrateError as error:
                failure = error
        now = now_ms()
        for lane, step in batches:
            answer = answers.get(lane.key)
            if answer is None:
                lane.unanswered(step, str(failure or "no answer for this partition"))
            else:
                code, base_offset, append_time, _ = answer
                # A mirrored topic uses CreateTime: only a repeated batch is answered with an append time (A14).
                if lane.answered(step, code, base_offset, repeated=append_time >= 0):
                    lane.tally.copied(step, now)
                elif code and reaction_to(Asked.PRODUCE, code).action is Action.REFRESH:
                    self._signals.call_for_look()
            self._answered(lane)
        self._signals.wake()

    def _hold(self, node: int, batches: list[Sent], throttle_ms: int) -> None:
        """Send nothing to a broker for as long as its quota asks, and report the pause."""
        if throttle_ms:
            self._throttled_until[node] = monotonic() + throttle_ms / 1000
            self._meter.slowed_s[Slowed.TARGET_QUOTA] += throttle_ms / 1000
        elif self._throttled_until.pop(node, None) is None:
            return
        for sent in batches:
            sent.lane.slow(Asked.PRODUCE, node, throttle_ms)
