"""Listeners of a router: bootstrap, one for each target broker, and one for the clients of each other router.

Some clients never go back to their bootstrap address. So a restarted router binds the same ports, unless taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from zlib import crc32

from kmigrate.errors import Refused
from kmigrate.net.tls import Arrivals
from kmigrate.router.settings import RouterSettings

__all__ = ["Key", "Ports"]

_BACKLOG = 1024
_FALLBACKS_FROM = 100
"""Distance between the bootstrap listener and the first listener for clients of another router."""
_FALLBACK_PORTS = 100
_FALLBACKS = 64
"""Maximum listeners for clients of other routers, once some of these routers are gone."""

Key = int | str | None
"""A target broker, a home whose clients are received there (`shared.fallback_routers`), or None: bootstrap listener."""


class Ports:
    """The listeners of a router: bound at once, and accepting connections after `serve`."""

    def __init__(
        self, settings: RouterSettings, accept: Callable[[Key], asyncio.BaseProtocol], arrivals: Arrivals | None
    ) -> None:
        self._settings = settings
        self._accept = accept
        self._arrivals = arrivals
        """TLS handshakes of the listeners; None without TLS."""
        self._servers: dict[Key, asyncio.Server] = {}
        self._serving = False

    def __contains__(self, key: Key) -> bool:
        return key in self._servers

    async def listen(self, key: Key) -> tuple[str, int]:
        """Bind a listener; return the host and port that clients are told."""
        wanted = self._wanted(key)
        for port in wanted[:-1]:
            try:
                return await self._bind(key, port)
            except Refused:
                continue
        return await self._bind(key, wanted[-1])

    def _wanted(self, key: Key) -> list[int]:
        """Return ports, best first; 0 is any free port, unknown to firewalls and processes that share these ports."""
        settings = self._settings
        if key is None:
            return [settings.port]
        if isinstance(key, str):
            given, first, start = settings.fallback_ports, settings.port + _FALLBACKS_FROM, crc32(key.encode())
            steps = [(start + number) % _FALLBACK_PORTS for number in range(_FALLBACK_PORTS)]
        else:
            given, first, steps = settings.node_port_base, settings.port + 1, [key]
        if not (given or settings.port):
            return [0]
        near = [port for step in steps if (port := (given or first) + step) < 1 << 16]
        return near if near and (given or settings.shares_ports) else [*near, 0]

    async def _bind(self, key: Key, port: int) -> tuple[str, int]:
        settings = self._settings
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._protocol(key),
                settings.host,
                port,
                backlog=_BACKLOG,
                reuse_port=settings.shares_ports or None,
                start_serving=False,
            )
        except OSError as error:
            raise Refused(
                "router-port-taken",
                f"router {settings.name} cannot listen on {settings.host}:{port}: {error}",
                still_true="no client was taken",
                next_step="end the program that listens there, or choose other ports (--port, or port and broker_ports "
                "of [router]); a second router of this target needs a name of its own as well (--name)",
            ) from error
        self._servers[key] = server
        if self._serving:
            await server.start_serving()
        return settings.told_host, int(server.sockets[0].getsockname()[1])

    def _protocol(self, key: Key) -> asyncio.BaseProtocol:
        return self._accept(key) if self._arrivals is None else self._arrivals.protocol(lambda: self._accept(key))

    async def serve(self) -> None:
        """Accept connections on all listeners, present and future."""
        self._serving = True
        for server in self._servers.values():
            await server.start_serving()

    def bound(self, registered: Collection[str]) -> list[str]:
        """Close surplus listeners for clients of routers that are gone; return their homes."""
        homes = [key for key in self._servers if isinstance(key, str)]
        gone = [home for home in homes if home not in registered][: max(0, len(homes) - _FALLBACKS + 1)]
        for home in gone:
            self._servers.pop(home).close()
        return gone

    def close(self) -> None:
        """Accept no more connections."""
        for server in self._servers.values():
            server.close()
