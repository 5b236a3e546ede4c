"""Sockets of the router: a client's connection, and the upstream connections that belong to it alone.

One upstream per client connection and broker: FIFO per producer is then TCP's, quotas and limits of a broker see
one connection per client (D13), and a client's fate is nobody else's.

Back-pressure in three sentences: reading from a client pauses while any of its upstreams does not take more, or
too much of it waits for answers; reading from its upstreams pauses while the client does not read; both go on
when that is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kmigrate.errors import KmigrateError, ProtocolViolation
from kmigrate.net.clock import monotonic
from kmigrate.net.stream import FrameStream
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.frames import correlation_id
from kmigrate.router.core import Buffer, Core, Outcome
from kmigrate.router.session import Session

__all__ = ["ClientConnection", "Upstream"]

Addresses = Callable[[], Awaitable[Sequence[tuple[str, int]]]]
"""Where an upstream may connect to, best first; asked when it is opened."""

_T = TypeVar("_T")
_CONNECT_S = 5.0
_MAX_UPSTREAM_FRAME = 1 << 30


@dataclass(slots=True)
class _Asked:
    """One request on its way to a broker; `done` None where no answer is due."""

    parts: Sequence[Buffer]
    correlation: int
    done: Callable[[Outcome], None] | None


class Upstream:
    """A connection to one broker, opened by its first request; answers come in the order of the requests."""

    def __init__(self, tasks: TaskOwner, addresses: Addresses, on_end: Callable[[str], None]) -> None:
        self._addresses = addresses
        self._on_end = on_end
        self._queued: deque[_Asked] = deque()
        self._pending: deque[_Asked] = deque()
        self._stream = FrameStream(self._on_frame, self._on_lost, max_frame=_MAX_UPSTREAM_FRAME)
        self._connected = False
        self._closing = False
        self._silent = False
        self.ended = False
        self.on_flow: Callable[[bool], None] | None = None
        tasks.start(self._open())

    async def _open(self) -> None:
        problem = "no address"
        for host, port in await self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await asyncio.get_running_loop().create_connection(lambda: self._stream, host, port)
            except (OSError, TimeoutError) as error:
                problem = f"{host}:{port}: {error or 'timed out'}"
                continue
            self._on_connected()
            return
        self._end(f"no connection to a broker ({problem})")

    def _on_connected(self) -> None:
        self._connected = True
        self._stream.on_writable = self._flow
        while self._queued:
            self._write(self._queued.popleft())
        if self._closing and not self.busy:
            self._stream.close()

    def send(self, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None] | None) -> None:
        asked = _Asked(parts, correlation, done)
        if self.ended:
            if done is not None:
                done(Outcome(None, sent=False))
        elif self._connected:
            self._write(asked)
        else:
            self._queued.append(asked)

    def _write(self, asked: _Asked) -> None:
        if asked.done is not None:
            self._pending.append(asked)
        else:
            self._silent = True
        if len(asked.parts) == 1:
            self._stream.write(asked.parts[0])
        else:
            self._stream.write_many(list(asked.parts))
        asked.parts = ()

    def _flow(self, writable: bool) -> None:
        if self.on_flow is not None:
            self.on_flow(writable)

    @property
    def writable(self) -> bool:
        return self._stream.writable

    @property
    def busy(self) -> bool:
        """Whether answers are still due."""
        return bool(self._pending or self._queued)

    def read(self, on: bool) -> None:
        if on:
            self._stream.resume_reading()
        else:
            self._stream.pause_reading()

    def close(self) -> None:
        """Close for a client that is gone: at once, unless it has sent writes that nobody answers.

        To close while answers are under way resets the connection, and the broker would drop what it has not
        read yet; with unanswered writes among it, the answers are waited for (and dropped).
        """
        if self._silent or any(asked.done is None for asked in self._queued):
            self.close_when_answered()
            return
        self._closing = True
        self._queued.clear()
        if self._connected:
            self._stream.close()

    def close_when_answered(self) -> None:
        """Close once nothing is due any more: what was forwarded is accounted for to the end."""
        self._closing = True
        if self._connected and not self.busy:
            self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def _on_frame(self, frame: bytearray) -> None:
        if not self._pending or len(frame) < 8 or correlation_id(frame) != self._pending[0].correlation:
            self._stream.abort(ProtocolViolation("wrong-answer", "a broker answered out of order"))
            return
        done = self._pending.popleft().done
        if done is not None:
            done(Outcome(frame))
        if self._closing and not self.busy:
            self._stream.close()

    def _on_lost(self, error: Exception | None) -> None:
        self._end(f"a broker closed the connection{f' ({error})' if error else ''}")

    def _end(self, why: str) -> None:
        if self.ended:
            return
        self.ended = True
        lost, unsent = list(self._pending), list(self._queued)
        self._pending.clear()
        self._queued.clear()
        for asked in lost:
            if asked.done is not None:
                asked.done(Outcome(None, sent=True))
        for asked in unsent:
            if asked.done is not None:
                asked.done(Outcome(None, sent=False))
        self._on_end(why)


class ClientConnection:
    """The edge of one session: the client's socket and its upstreams."""

    def __init__(
        self,
        core: Core,
        tasks: TaskOwner,
        target: Addresses,
        source: Callable[[str, int], Addresses],
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        self._core = core
        self._tasks = tasks
        self._target_addresses = target
        self._source_addresses = source
        self._on_end = on_end
        self._target: Upstream | None = None
        self._sources: dict[tuple[str, int], Upstream] = {}
        self._ended = False
        self.session = Session(core, self)
        self.stream = FrameStream(self._on_frame, self._on_lost, max_frame=core.settings.max_frame)
        self.stream.on_writable = self._client_writable

    # the client's socket

    def _on_frame(self, frame: bytearray) -> None:
        if self._ended:
            self.stream.close()  # it was refused before its socket was known
            return
        try:
            self.session.frame(frame)
        except KmigrateError as violation:
            self.close(violation.what)

    def _on_lost(self, error: Exception | None) -> None:
        if isinstance(error, ProtocolViolation) and not self._ended:
            self._core.outside.say(f"closing the connection of {self.stream.peer}: {error.what}")
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._on_end(self)
        self.session.closed()

    @property
    def draining(self) -> bool:
        """Whether forwards of this client are not answered yet."""
        return any(not upstream.ended and upstream.busy for upstream in self._sources.values())

    def _client_writable(self, writable: bool) -> None:
        for upstream in self._upstreams():
            upstream.read(writable)

    def _upstreams(self) -> list[Upstream]:
        return [*([self._target] if self._target else []), *self._sources.values()]

    def _flow(self) -> None:
        if self._ended:
            return
        if self.session.congested or not all(u.writable for u in self._upstreams() if not u.ended):
            self.stream.pause_reading()
        else:
            self.stream.resume_reading()

    # Edge

    def now(self) -> float:
        return monotonic()

    def reply(self, parts: Sequence[Buffer]) -> None:
        if self._ended:
            return
        if len(parts) == 1:
            self.stream.write(parts[0])
        else:
            self.stream.write_many(list(parts))
        self._flow()

    def to_target(
        self, parts: Sequence[Buffer], correlation: int, answered: Callable[[bytearray], None] | None
    ) -> None:
        if self._target is None:
            self._target = self._open(self._target_addresses, self._target_ended)
        if answered is None:
            self._target.send(parts, correlation, None)
            return

        def done(outcome: Outcome) -> None:
            if outcome.frame is not None and not self._ended:
                self._guard(answered, outcome.frame)

        self._target.send(parts, correlation, done)

    def _target_ended(self, why: str) -> None:
        self.close("" if not self.session.waits_for_answer else why)

    def to_source(
        self, link: str, node: int, parts: Sequence[Buffer], correlation: int, done: Callable[[Outcome], None]
    ) -> None:
        key = (link, node)
        upstream = self._sources.get(key)
        if upstream is None or upstream.ended:
            upstream = self._open(self._source_addresses(link, node), lambda _: self._source_ended(key))
            self._sources[key] = upstream
        upstream.send(parts, correlation, lambda outcome: self._guard(done, outcome))

    def _source_ended(self, key: tuple[str, int]) -> None:
        self._sources.pop(key, None)

    def _open(self, addresses: Addresses, on_end: Callable[[str], None]) -> Upstream:
        upstream = Upstream(self._tasks, addresses, on_end)
        upstream.on_flow = lambda _: self._flow()
        return upstream

    def _guard(self, call: Callable[[_T], None], value: _T) -> None:
        try:
            call(value)
        except KmigrateError as violation:
            self.close(violation.what)

    def wake_at(self, when: float) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, when - monotonic()), self.session.advance)

    def advanced(self, *, done: bool) -> None:
        if not done:
            self._flow()
            return
        if self._target is not None:
            self._target.close()
        for upstream in list(self._sources.values()):
            upstream.close_when_answered()

    def close(self, reason: str) -> None:
        if self._ended:
            return
        if reason:
            self._core.outside.say(f"closing the connection of {self.stream.peer}: {reason}")
        if self.stream.writable:
            self.stream.close()
        else:
            self.stream.abort()
        self._end()

    def abort(self) -> None:
        """Reset the client and every upstream: nothing of it goes on."""
        self.stream.abort()
        for upstream in self._upstreams():
            upstream.abort()
        self._end()
