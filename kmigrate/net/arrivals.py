"""Connections that come to a TLS listener, from their first moment: judged before their handshake costs anything.

asyncio's own TLS servers tell nobody of a connection before its handshake is over, for which it may take its time. So
these listeners are plain ones. What comes is judged by its host, and its socket then given to TLS.
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
"""How long a closed connection waits for the other side's last word: who has none shall not keep its socket."""


class Arrivals:
    """All that come to one process's listeners and are in their handshakes."""

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
        """Whether a connection of a host may go on; told of each, and given what ends its handshake."""
        self._over = over
        """Told of each handshake that was begun and is over, by what ends it."""
        self._fails = fails
        """Told of each that went on, and came to no connection."""
        self._tasks = TaskOwner(lambda error: _log.error("a handshake: %r", error))

    def protocol(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.BaseProtocol:
        """Of a connection that has just come; `make` makes the one that it has behind its handshake."""
        return _Arrival(lambda raw, host: self._take(raw, host, make))

    def _take(self, raw: socket.socket, host: str, make: Callable[[], asyncio.BaseProtocol]) -> None:
        task: asyncio.Task[None]

        def end() -> None:
            # Not before its first step: a task that is cancelled there does nothing at all, and keeps its socket.
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
            pass  # it is never heard of
        finally:
            self._over(end)
            if not made:
                self._fails(host)

    async def close(self) -> None:
        """End what is in its handshake."""
        await self._tasks.close()


class _Arrival(asyncio.Protocol):
    """A connection of which nothing is read: its socket is taken away from it at once."""

    def __init__(self, take: Callable[[socket.socket, str], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        came = cast("asyncio.Transport", transport)
        name, shown = came.get_extra_info("peername"), came.get_extra_info("socket")
        try:
            raw = socket.socket(fileno=os.dup(shown.fileno()))
        except OSError:  # no file is left for it, or it is gone
            came.abort()
            return
        came.abort()
        raw.setblocking(False)
        self._take(raw, name[0] if name else "?")
