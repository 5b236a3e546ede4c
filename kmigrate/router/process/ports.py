"""Listeners of a router: bootstrap, one for each target broker, and one for the clients of each other router.

Some clients never go back to their bootstrap address. So a restarted router binds the same ports, unless taken.

A target broker's port is the first port plus the broker's node id. If that exceeds the highest port for any broker that
the router finds at its start, all brokers are counted through their sorted ids instead. A broker that is added later
and does not fit gets the lowest free place. A table may name the port of each target broker instead.
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
_HIGHEST_PORT = (1 << 16) - 1
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
        self._places: dict[int, int] = {}
        """Distance of each target broker's port from the first of these ports."""
        self._counts = False
        """True if brokers are counted through their sorted ids."""
        self._serving = False

    def __contains__(self, key: Key) -> bool:
        return key in self._servers

    def assign(self, nodes: Collection[int]) -> None:
        """Give each new target broker a port; refuse a broker for which `broker_ports` leaves none."""
        if self._settings.node_ports:
            self._refuse_unnamed(nodes)
            return
        new, taken = sorted(set(nodes) - self._places.keys()), set(self._places.values())
        if new and not self._places and self._first + new[-1] > _HIGHEST_PORT:
            self._counts = True
        for node in new:
            fits = not self._counts and self._first + node <= _HIGHEST_PORT and node not in taken
            place = node if fits else next(free for free in range(len(taken) + 1) if free not in taken)
            self._places[node] = place
            taken.add(place)
        beyond = [node for node in new if self._first + self._places[node] > _HIGHEST_PORT]
        if beyond and self._settings.node_port_base:
            raise Refused(
                "broker-ports-exceeded",
                f"broker_ports = {self._settings.node_port_base} leaves no port for target broker "
                f"{', '.join(map(str, beyond))}",
                still_true="no client was taken",
                next_step=f"choose a lower broker_ports of [router]: there are {len(self._places)} brokers",
            )

    def _refuse_unnamed(self, nodes: Collection[int]) -> None:
        """Refuse target brokers that are missing in the table of ports."""
        table = self._settings.node_ports
        unnamed = [node for node in sorted(nodes) if node not in table and node not in self._servers]
        if unnamed:
            lines = ", ".join(f"{node} = PORT" for node in unnamed)
            raise Refused(
                "broker-ports-missing",
                f"the table broker_ports names no port for target broker {', '.join(map(str, unnamed))}",
                still_true="no client was taken",
                next_step=f"add {lines} to broker_ports of [router]",
            )

    @property
    def _first(self) -> int:
        """Port of the broker in place 0."""
        return self._settings.node_port_base or self._settings.port + 1

    async def listen(self, key: Key) -> tuple[str, int]:
        """Bind a listener; return the host and port that clients are told."""
        wanted = self.wanted(key)
        for port in wanted[:-1]:
            try:
                return await self._bind(key, port)
            except Refused:
                continue
        return await self._bind(key, wanted[-1])

    def wanted(self, key: Key) -> list[int]:
        """Return ports, best first; 0 is any free port, unknown to firewalls and processes that share these ports."""
        settings = self._settings
        if key is None:
            return [settings.port]
        if isinstance(key, int) and settings.node_ports:
            return [settings.node_ports.get(key, 0)]
        if isinstance(key, str):
            given, first, start = settings.fallback_ports, settings.port + _FALLBACKS_FROM, crc32(key.encode())
            steps = [(start + number) % _FALLBACK_PORTS for number in range(_FALLBACK_PORTS)]
        else:
            given, first, steps = settings.node_port_base, self._first, [self._places[key]]
        if not (given or settings.port):
            return [0]
        near = [port for step in steps if (port := (given or first) + step) <= _HIGHEST_PORT]
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
