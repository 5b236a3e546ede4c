"""Free loopback ports that stay free: taken from below the range that outgoing connections use.

A port from `bind(0)` can be the local end of any client's connection a moment later, and a restarted
broker must find its own port free. The kernel hands out client ports from 32768 (Linux) or 49152
(macOS) on, so a random one below that which can be bound now is ours until another server wants it.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

__all__ = ["free_ports"]

_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 on which nothing listens."""
    ports: list[int] = []
    choose = random.SystemRandom()
    with ExitStack() as held:
        while len(ports) < count:
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind(("127.0.0.1", choose.randint(_FIRST, _LAST)))
            except OSError:
                continue
            ports.append(candidate.getsockname()[1])
    return ports
