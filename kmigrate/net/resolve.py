"""The network addresses of a host name, as this machine resolves the name now."""

from __future__ import annotations

import asyncio

from kmigrate.errors import Unreachable

__all__ = ["addresses_of"]


async def addresses_of(host: str, port: int) -> frozenset[str]:
    """Return every numeric address of a name; raise Unreachable for a name without address."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError as error:
        raise Unreachable("name-unknown", f"the name {host} leads nowhere: {error}") from error
    return frozenset(str(address[0]) for *_, address in found)
