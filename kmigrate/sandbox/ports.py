"""Free loopback ports that stay free: taken from below the range that outgoing connections use.

A port from `bind(0)` can be the local end of any client's connection a moment later, and a restarted
broker must find its own port free. The kernel hands out client ports from 32768 (Linux) or 49152
(macOS) on, so a random one below that which can be bound now is ours until another server wants it. Who starts many
sandboxes at once gives each a range of its own (KMIGRATE_SANDBOX_PORTS=20000-23999), so that no two want the same.

A router at one of them takes more behind it, some of them late: one for each broker, and one hundred and more farther
for clients of other routers. So ports are given apart from each other where there is room, and none twice while there
are others: whose port it was may be dead, and want it again.
"""

from __future__ import annotations

import os
import random
import re
import socket
import threading
from contextlib import ExitStack

from kmigrate.errors import UsageError

__all__ = ["free_ports", "port_range"]

_USUAL = "20000-32000"
_LOWEST, _HIGHEST = 1024, 65_535
_given: set[int] = set()
_one_at_a_time = threading.Lock()
"""Clusters are made side by side."""


def free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 on which nothing listens."""
    ports: list[int] = []
    among = port_range()
    shuffled = random.SystemRandom().sample(among, len(among))
    with _one_at_a_time, ExitStack() as held:
        for port in sorted(shuffled, key=lambda port: (port in _given, not _lies_apart(port))):
            if len(ports) == count:
                break
            candidate = held.enter_context(socket.socket())
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
            _given.add(port)
    if len(ports) < count:
        raise UsageError(
            "no-free-port", f"{count} ports are wanted, and of {among[0]}-{among[-1]} only {len(ports)} are free",
            next_step="end another sandbox, or name a wider range with KMIGRATE_SANDBOX_PORTS=first-last",
        )  # fmt: skip
    return ports


def _lies_apart(port: int) -> bool:
    """Whether no router at such a port takes another such one: not up to 3 behind it, nor from 100 to 199."""
    return port % 4 == 0 and port % 300 < 100


def port_range() -> range:
    """The ports that may be given: KMIGRATE_SANDBOX_PORTS, or the usual ones."""
    told = os.environ.get("KMIGRATE_SANDBOX_PORTS", "") or _USUAL
    ends = re.fullmatch(r"(\d{1,5})-(\d{1,5})", told)
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    if not _LOWEST <= first <= last <= _HIGHEST:
        raise UsageError(
            "sandbox-ports", f"KMIGRATE_SANDBOX_PORTS is {told!r}: not a range of ports",
            next_step=f"set it to first-last, as {_USUAL}, or leave it out",
        )  # fmt: skip
    return range(first, last + 1)
