"""Finds out whether a process accepts connections at an address, with a single attempt for all callers at a time."""

from __future__ import annotations

import asyncio

from kmigrate.net.tasks import TaskOwner
from kmigrate.router.process.answers import answer_later
from kmigrate.router.shared.conversation import Future
from kmigrate.router.wire.node_ids import host_and_port

__all__ = ["Reach"]

_PATIENCE_S = 1.0


class Reach:
    """Tries addresses by connecting, and sends nothing."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._running: dict[str, Future[bool]] = {}

    def __call__(self, address: str) -> Future[bool]:
        answer = self._running.get(address)
        if answer is None:
            answer = self._running[address] = answer_later(self._tasks, self._ask(address))
        return answer

    async def _ask(self, address: str) -> bool:
        try:
            return await _takes_connections(address)
        finally:
            del self._running[address]


async def _takes_connections(address: str) -> bool:
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    except OSError:  # TimeoutError is an OSError
        return False
    transport.abort()
    return True
