"""Opens a connection, with TLS where it is asked for; each way to fail has its name.

A broker that takes nothing of what it was sent loses the connection after two minutes: while something is under way
no probe asks whether its host is there at all, and the system itself would wait for a quarter of an hour. A client
keeps its connection however long it does not read, so this is not for those that came to us.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from kmigrate.errors import Unreachable
from kmigrate.model.security import Tls
from kmigrate.net.tls import client_context, named_failure

__all__ = ["dial"]

_MOST_UNTAKEN_MS = 120_000
"""Longer than any client family waits for an answer of itself."""


async def dial(protocol: asyncio.BaseProtocol, host: str, port: int, tls: Tls | None, called: str) -> None:
    """Connect the protocol, or raise Unreachable or AuthenticationFailed; a timeout is the caller's."""
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
