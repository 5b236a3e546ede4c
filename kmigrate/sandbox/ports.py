"""Free loopback ports that stay free, because they lie below the range that outgoing connections use.

A port from `bind(0)` can be the local end of any client's connection a moment later, and a restarted broker must find
its own port free. The kernel hands out client ports from 32768 (Linux) or 49152 (macOS) on. So a random port below that
range, if `bind` succeeds now, stays free until another server wants the port.

Ports are handed out apart from each other where there is room, for the further ports of routers (`_lies_apart`). A
process hands out no port twice while other ports are left: a dead server may want its port again at a restart.

Sandboxes stand side by side. A process locks each port that the process hands out, a byte of the file `ports` in the
user's cache, until the process ends; by then a server has bound the port. A port that is bound later is reserved for as
long as a file exists (`reserve`).
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import socket
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from kmigrate.errors import UsageError
from kmigrate.kafka_jars.cache import cache_folder

__all__ = ["free_ports", "port_range", "reserve"]

_USUAL = "20000-32000"
_LOWEST, _HIGHEST = 1024, 65_535
_given: set[int] = set()
_one_at_a_time = threading.Lock()
"""The lock of `_given`, because clusters are created side by side."""


def free_ports(count: int) -> list[int]:
    """Return distinct ports of 127.0.0.1 on which nothing listens."""
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
            if not _locked(port) or _reserved(port):
                continue
            ports.append(port)
            _given.add(port)
    if len(ports) < count:
        raise UsageError(
            "no-free-port", f"{count} ports are wanted, and of {among[0]}-{among[-1]} only {len(ports)} are free",
            next_step="end another sandbox, or name a wider range with KMIGRATE_SANDBOX_PORTS=first-last",
        )  # fmt: skip
    return ports


def reserve(port: int, holder: Path) -> None:
    """Keep a port from other processes as long as the file `holder` exists, also when this process has ended."""
    note = _reservation(port)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(str(holder.absolute()), encoding="utf-8")


def _reserved(port: int) -> bool:
    """Return whether a file that exists holds the port; remove the note of a holder that is gone."""
    note = _reservation(port)
    try:
        holder = Path(note.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    if holder.exists():
        return True
    note.unlink(missing_ok=True)
    return False


def _reservation(port: int) -> Path:
    return cache_folder() / "reserved-ports" / str(port)


def _locked(port: int) -> bool:
    """Lock a port for this process; return False if another process has locked the port."""
    ports = _lock_file(cache_folder() / "ports")
    try:
        fcntl.lockf(ports, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


@cache
def _lock_file(path: Path) -> int:
    """Open the file whose bytes are locked, for good: the kernel drops all locks at the first close."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _lies_apart(port: int) -> bool:
    """Return whether the port is one of those at which routers never take each other's ports.

    A router on port p takes more ports, some late: one per broker, at most three, from p + 1 on, and for clients of
    other routers p + 100 to p + 199.
    """
    return port % 4 == 0 and port % 300 < 100


def port_range() -> range:
    """Return the ports that may be handed out: KMIGRATE_SANDBOX_PORTS, or the usual range."""
    chosen = os.environ.get("KMIGRATE_SANDBOX_PORTS", "") or _USUAL
    ends = re.fullmatch(r"(\d{1,5})-(\d{1,5})", chosen)
    first, last = (int(ends[1]), int(ends[2])) if ends else (0, 0)
    if not _LOWEST <= first <= last <= _HIGHEST:
        raise UsageError(
            "sandbox-ports", f"KMIGRATE_SANDBOX_PORTS is {chosen!r}: not a range of ports",
            next_step=f"set it to first-last, as {_USUAL}, or leave it out",
        )  # fmt: skip
    return range(first, last + 1)
