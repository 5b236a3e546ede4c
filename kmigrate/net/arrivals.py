"""Connections that arrive at a TLS listener, judged before their handshake costs anything.

asyncio's own TLS servers report a connection only after its handshake, which may take long. So these listeners are
plain listeners. A new connection is judged by its host, and the socket then goes to TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import cast

from kmigrate.net.tasks import TaskOwner
from kmigrate.net.tls import ServerTls

__all__ = ["Arrivals"]

_log = logging.getLogger("kmigrate.net")
_FAREWELL_S = 3.0
"""Seconds that a closed connection waits for the peer's close_notify: a silent peer must not keep its socket."""


class Arrivals:
    """All connections of a process's listeners that are in their handshake."""

    def __init__(
        self,
        tls: ServerTls,
        handshake_s: float,
        arrives: Callable[[str, Callable[[], None]], bool],
        over: Callable[[Callable[[], None]], None],
        fails: Callable[[str], None],
    ) -> None:
        self._tls = tls
        self._handshake_s = handshake_s
        self._arrives = arrives
        """Returns whether a connection of a host may go on.

        Called for each connection, with a function that ends the connection's handshake.
        """
        self._over = over
        """Called when a handshake is over, with the function that ends that handshake."""
        self._fails = fails
        """Called with the host of each handshake that failed."""
        self._tasks = TaskOwner(lambda error: _log.error("a handshake: %r", error))

    def protocol(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection; `make` makes the protocol behind the handshake."""
        return _Arrival(lambda raw, host: self._take(raw, host, make))

    def _take(self, raw: socket.socket, host: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        task: asyncio.Task[None]

        def end() -> None:
            # Not before the task's first step: a task that is cancelled there does nothing at all, and keeps its
            # socket.
            asyncio.get_running_loop().call_soon(task.cancel)

        if self._arrives(host, end):
            task = self._tasks.start(self._shake_hands(raw, host, make, end))
        else:
            raw.close()

    async def _shake_hands(
        self, raw: socket.socket, host: str, make: Callable[[], asyncio.BaseProtocol], end: Callable[[], None]
    ) -> None:
        made = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make,
                raw,
                ssl=self._tls.for_connection(),
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=_FAREWELL_S,
            )
            made = True
        except OSError:
            pass  # nobody hears of that connection
        finally:
            self._over(end)
            if not made:
                self._fails(host)

    async def close(self) -> None:
        """End all handshakes."""
        await self._tasks.close()


class _Arrival(asyncio.Protocol):
    """A connection that reads nothing, because its socket is taken away at once."""

    def __init__(self, take: Callable[[socket.socket, str], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        came = cast("asyncio.Transport", transport)
        name, shown = came.get_extra_info("peername"), came.get_extra_info("socket")
        try:
            raw = socket.socket(fileno=os.dup(shown.fileno()))
        except OSError:  # no file descriptor is left, or the connection is gone
            came.abort()
            return
        came.abort()
        raw.setblocking(False)
        self._take(raw, name[0] if name else "?")
