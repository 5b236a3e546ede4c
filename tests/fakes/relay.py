"""A TCP relay that misbehaves on request: the network between a client and a broker, in a test's hands.

The relay forwards a listening port to an upstream address. The relay runs in a thread with an event loop of its own, so
that blocking and asyncio tests use the relay alike. `up` is the way from the client to the upstream, `down` the way
back. Faults hold for all connections, present and future, until `heal`.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal, Self

__all__ = ["Direction", "DistantRelay", "Relay"]

Direction = Literal["up", "down"]
_CHUNK = 64 * 1024


@dataclass
class _Faults:
    """The faults of the network now."""

    delay: float = 0.0  # seconds before each chunk is handed on
    bytes_per_second: float = 0.0  # per connection and direction; 0: no limit
    refusing: bool = False
    cut_at: dict[Direction, int] = field(default_factory=dict)  # the number of passed bytes that resets everything
    cuts: dict[Direction, Iterator[int]] = field(default_factory=dict)  # bytes of each future connection
    lives: Iterator[float] = field(default_factory=lambda: repeat(math.inf))  # seconds of each future connection


class Relay:
    """A relay between clients and an upstream.

    with Relay("127.0.0.1:9092") as relay:
        connect(relay.address)
    """

    def __init__(self, upstream: str = "", listen: str = "127.0.0.1:0") -> None:
        """Create a relay. Without an upstream the relay resets every connection until `forward_to` names one."""
        self._listens = listen
        self._upstream = ("", 0)
        if upstream:
            self.forward_to(upstream)
        self.connections = 0  # accepted so far
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        self._faults = _Faults()
        self._flowing: dict[Direction, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}
        self._links: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._host, self._port = "", 0

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def forward_to(self, upstream: str) -> None:
        """Set the upstream of new connections.

        A broker that advertises this relay gets its own port only after the relay was created.
        """
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

    # -- faults --------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection."""
        self._in_loop(self._reset_all)

    def cut_after(self, count: int, direction: Direction) -> None:
        """Reset every connection once `count` more bytes have passed in a direction, in the middle of a chunk."""
        self._in_loop(lambda: self._faults.cut_at.update({direction: self.passed[direction] + count}))

    def cut_each_after(self, counts: Iterator[int], direction: Direction) -> None:
        """Reset each future connection after the next of `counts` bytes in a direction, as long as `counts` last.

        Each connection is reset alone. A client that reconnects at once meets each count in turn.
        """
        self._in_loop(lambda: self._faults.cuts.update({direction: counts}))

    def let_live(self, seconds: Iterator[float]) -> None:
        """Reset each future connection after the next of `seconds`, as long as `seconds` last."""
        self._set(lives=seconds)

    def stall(self, *directions: Direction) -> None:
        """Stop forwarding in the directions, or in both if none is named. Connections stay open and bytes wait."""

        def close() -> None:
            for direction in directions or ("up", "down"):
                self._flowing[direction].clear()

        self._in_loop(close)

    def delay(self, seconds: float) -> None:
        self._set(delay=seconds)

    def limit(self, bytes_per_second: float) -> None:
        self._set(bytes_per_second=bytes_per_second)

    def refuse(self) -> None:
        """Reset all open connections and every future connection."""
        self._set(refusing=True)
        self.cut()

    def heal(self) -> None:
        """End all faults."""

        def well() -> None:
            self._faults = _Faults()
            for flowing in self._flowing.values():
                flowing.set()

        self._in_loop(well)

    # -- inside --------------------------------------------------------------------------------

    def _set(self, **changes: object) -> None:
        self._in_loop(lambda: vars(self._faults).update(changes))

    def _in_loop(self, act: Callable[[], None]) -> None:
        async def acting() -> None:
            act()

        asyncio.run_coroutine_threadsafe(acting(), self._loop).result(10)

    async def _listen(self) -> asyncio.Server:
        for flowing in self._flowing.values():
            flowing.set()
        host, _, port = self._listens.rpartition(":")
        server = await asyncio.start_server(self._accept, host, int(port))
        self._host, self._port = server.sockets[0].getsockname()[:2]
        return server

    async def _close(self) -> None:
        self._server.close()
        self._reset_all()
        if self._links:
            await asyncio.wait(self._links)

    def _reset_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for link in self._links:
            link.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._faults.refusing or not self._upstream[1]:
            writer.transport.abort()
            return
        link = self._loop.create_task(self._forward(reader, writer))
        self._links.add(link)
        self._writers.add(writer)
        life = next(self._faults.lives, math.inf)
        end = self._loop.call_later(life, link.cancel) if life < math.inf else None

        def ended(_: object) -> None:
            if end is not None:
                end.cancel()
            self._links.discard(link)
            self._writers.discard(writer)
            writer.transport.abort()

        link.add_done_callback(ended)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left: dict[Direction, float] = {way: next(counts, math.inf) for way, counts in self._faults.cuts.items()}
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
            self._writers.add(upstream_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(reader, upstream_writer, "up", left))
                    both.create_task(self._pump(upstream_reader, writer, "down", left))
            except* OSError:
                pass  # one side is gone, and the other side sees this in a moment
            finally:
                self._writers.discard(upstream_writer)
                upstream_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass  # the upstream refuses, or a fault resets the link: both ends see a reset

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        own_left: dict[Direction, float],
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            if self._faults.delay:
                await asyncio.sleep(self._faults.delay)
            await self._flowing[direction].wait()
            for part in self._parts(chunk):
                own = own_left.get(direction, math.inf)
                if own <= len(part):
                    writer.write(part[: int(own)])
                    self.passed[direction] += int(own)
                    raise ConnectionResetError  # ends only this link
                own_left[direction] = own - len(part)
                left = self._faults.cut_at.get(direction, math.inf) - self.passed[direction]
                if cutting := len(part) >= left:
                    part = part[: int(left)]
                    del self._faults.cut_at[direction]
                self.passed[direction] += len(part)
                writer.write(part)
                await writer.drain()
                if cutting:
                    self._reset_all()
                    return
                if self._faults.bytes_per_second:
                    await asyncio.sleep(len(part) / self._faults.bytes_per_second)
        writer.write_eof()

    def _parts(self, chunk: bytes) -> list[bytes]:
        """Split a chunk into small parts for a slow line, so that the line is slow all along and not in leaps."""
        size = len(chunk)
        if self._faults.bytes_per_second:
            size = max(1, int(self._faults.bytes_per_second / 50))
        return [chunk[start : start + size] for start in range(0, len(chunk), size)]


class DistantRelay(Relay):
    """A relay whose only fault is the delay, as of a long line: a chunk need not wait for the chunks before it."""

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: Direction,
        own_left: dict[Direction, float],
    ) -> None:
        arrivals: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        handing = self._loop.create_task(self._hand_on(arrivals, writer))
        try:
            while chunk := await reader.read(_CHUNK):
                arrivals.put_nowait((self._loop.time() + self._faults.delay, chunk))
            arrivals.put_nowait((0.0, b""))
            await handing
        finally:
            handing.cancel()

    async def _hand_on(self, arrivals: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while (arrival := await arrivals.get())[1]:
            due, chunk = arrival
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
