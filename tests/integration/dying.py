"""kmigrate itself, killed by SIGKILL before or after one of its durable writes.

    python tests/integration/dying.py WORD…

DIES_AT is `before:3` or `after:3`: the process dies before its third durable write leaves, or once the write is stored
and before the process knows. Durable writes are records of the state log, topics, configs and ACLs, and committed
offsets. Without DIES_AT, or with fewer writes, the process lives.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from kmigrate.cluster.admin import Admin
from kmigrate.state.log import StateLog
from kmigrate.state.topics import STATE_TOPIC

__all__ = ["DIES_AT", "WRITES"]

DIES_AT = "DIES_AT"
WRITES = ("create_topic", "delete_topic", "create_partitions", "alter_topic_configs", "create_acls", "delete_acls")
"""The changes of `Admin` that are durable."""
_POSITIONS = "kmigrate.workflow.groups.handover.write_positions"


class Death:
    """The death of this process at one of its durable writes."""

    def __init__(self, at: str) -> None:
        moment, _, number = at.partition(":")
        self._before, self._number = moment == "before", int(number)
        self._count = 0

    def wrap(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the write, with the process dying at the chosen one."""

        @functools.wraps(write)
        async def dying(*given: Any, **named: Any) -> Any:
            self._count += 1
            chosen = self._count == self._number
            if chosen and self._before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = await write(*given, **named)
            if chosen:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return dying


def _dies(at: str, patches: ExitStack) -> None:
    death = Death(at)
    append = StateLog._append
    counted = death.wrap(append)

    async def to_state_log(log: StateLog, topic: str, batch: bytearray) -> Any:
        return await (counted if topic == STATE_TOPIC else append)(log, topic, batch)

    patches.enter_context(mock.patch.object(StateLog, "_append", to_state_log))
    for name in WRITES:
        patches.enter_context(mock.patch.object(Admin, name, death.wrap(getattr(Admin, name))))
    module, _, name = _POSITIONS.rpartition(".")
    __import__(module)
    patches.enter_context(mock.patch(_POSITIONS, death.wrap(getattr(sys.modules[module], name))))


def main() -> int:
    from kmigrate.cli.app import main as kmigrate

    with ExitStack() as patches:
        if at := os.environ.get(DIES_AT):
            _dies(at, patches)
        return kmigrate(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
