"""Finds out whether a process accepts connections at an address, with a single attempt for all callers at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kmigrate.net.tasks import TaskOwner
from kmigrate.router.wire.node_ids import host_and_port

__all__ = ["Reach"]

_PATIENCE_S = 1.0


class Reach:
    """Tries addresses by connecting, and sends nothing."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._waiting: dict[str, list[Callable[[bool], None]]] = {}

    def __call__(self, address: str, then: Callable[[bool], None]) -> None:
        waiting = self._waiting.setdefault(address, [])
        waiting.append(then)
        if len(waiting) == 1:
            self._tasks.start(self._ask(address))

    async def _ask(self, address: str) -> None:
        answers = await _takes_connections(address)
        for then in self._waiting.pop(address):
            then(answers)


async def _takes_connections(address: str) -> bool:
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    except OSError:  # TimeoutError is an OSError
        return False
    transport.abort()
    return True
