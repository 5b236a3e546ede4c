"""Addresses of a host name, and new connections, with TLS if settings demand TLS; each kind of failure has a name.

A broker that takes no sent byte for two minutes loses the connection: no keep-alive probe runs while bytes are under
way, and the system would wait a quarter of an hour. Accepted connections have no limit: clients may stop reading.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from kmigrate.errors import Unreachable
from kmigrate.model.security import Tls
from kmigrate.net.tls import client_context, named_failure

__all__ = ["addresses_of", "dial"]


async def addresses_of(host: str, port: int) -> frozenset[str]:
    """Return every numeric address of a name; raise Unreachable for a name without address."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError as error:
        raise Unreachable("name-unknown", f"the name {host} leads nowhere: {error}") from error
    return frozenset(str(address[0]) for *_, address in found)


_MOST_UNTAKEN_MS = 120_000
"""Longest time without progress in ms: longer than any client family itself waits for a response."""


async def dial(protocol: asyncio.BaseProtocol, host: str, port: int, tls: Tls | None, called: str) -> None:
    """Connect the protocol, or raise Unreachable or AuthenticationFailed; the caller sets a timeout."""
    context = client_context(tls) if tls else None
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, host, port, ssl=context)
        raw = transport.get_extra_info("socket")
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _MOST_UNTAKEN_MS)
    except TimeoutError:
        raise
    except OSError as error:
        named = named_failure(error, called)
        if named is not None:
            raise named from error
        cut = isinstance(error, ConnectionResetError | ConnectionAbortedError | ssl.SSLEOFError)
        why = "closed within the TLS handshake; it may be a plaintext listener" if context and cut else error
        raise Unreachable("broker-unreachable", f"no connection to {host}:{port}: {why}") from error
