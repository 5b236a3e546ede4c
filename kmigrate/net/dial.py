"""Opens a connection, with TLS where it is asked for; each way to fail has its name."""

from __future__ import annotations

import asyncio
import ssl

from kmigrate.errors import Unreachable
from kmigrate.model.security import Tls
from kmigrate.net.tls import client_context, named_failure

__all__ = ["dial"]


async def dial(protocol: asyncio.BaseProtocol, host: str, port: int, tls: Tls | None, called: str) -> None:
    """Connect the protocol, or raise Unreachable or AuthenticationFailed; a timeout is the caller's."""
    context = client_context(tls) if tls else None
    try:
        await asyncio.get_running_loop().create_connection(lambda: protocol, host, port, ssl=context)
    except TimeoutError:
        raise
    except OSError as error:
        named = named_failure(error, called)
        if named is not None:
            raise named from error
        cut = isinstance(error, ConnectionResetError | ConnectionAbortedError | ssl.SSLEOFError)
        why = "closed within the TLS handshake; it may be a plaintext listener" if context and cut else error
        raise Unreachable("broker-unreachable", f"no connection to {host}:{port}: {why}") from error
