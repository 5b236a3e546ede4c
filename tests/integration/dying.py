"""kmigrate itself, killed by SIGKILL before or after one of its durable writes.

    python tests/integration/dying.py WORD…

DIES_AT is `before:3` or `after:3`: the process dies before its third durable write leaves, or once the write is stored
and before the process knows. In place of the number may stand a write's name, such as `topic promoted`, for the first
write of that name. With fewer writes, or without DIES_AT, the process lives. WRITES_TO is a file that gets a line with
the name of each durable write, before the write leaves.

Durable writes are:
- each record of the state log, named by its kind and phase;
- each request that changes a cluster, named by its API: every API counts that is not in `UNCOUNTED`;
- each change by librdkafka's admin client (`ADMIN`);
- the first batch of records that a mirror copies, at its start and after each change of direction.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from kmigrate.cluster.admin import Admin
from kmigrate.mirror.copy.writing import TargetWriter
from kmigrate.model.record_json import Record
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import ApiKey
from kmigrate.state.log import StateLog
from kmigrate.state.topics import STATE_TOPIC

__all__ = ["ADMIN", "COPY", "DIES_AT", "DIES_BY", "UNCOUNTED", "WRITES_TO", "DurableWrites", "name_of", "watched"]

DIES_AT, DIES_BY, WRITES_TO = "DIES_AT", "DIES_BY", "WRITES_TO"
ADMIN = frozenset({
    "alter_topic_configs", "create_acls", "create_partitions", "create_topic", "delete_acls", "delete_groups",
    "delete_topic",
})  # fmt: skip
"""The methods of `Admin` that change a cluster."""
COPY = "first copied batch"
UNCOUNTED = frozenset({
    # Records: the state log's records and a copy's first batch are counted by themselves. A presence decides nothing.
    ApiKey.PRODUCE,
    # Reads
    ApiKey.API_VERSIONS, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_GROUPS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.FETCH, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS, ApiKey.LIST_OFFSETS,
    ApiKey.LIST_TRANSACTIONS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    # Logins and memberships, which end with the process
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE,
})  # fmt: skip
"""The APIs whose requests are no durable writes by themselves."""


class DurableWrites:
    """The durable writes of this process, and the one at which the process dies."""

    def __init__(self, dies_at: str, told_to: str, end: Callable[[], None]) -> None:
        """Take the values of DIES_AT and WRITES_TO, '' for none; `end` ends the process."""
        self._moment, _, self._chosen = dies_at.partition(":")
        self._told_to = Path(told_to) if told_to else None
        self._end = end
        self._count = 0
        self._over = not dies_at
        """True once the chosen write has been reached, or if none is chosen."""
        self._begins_copy = True
        """True until a copy's next batch, which is counted."""

    def reach(self, name: str) -> bool:
        """Note that a write is about to leave; return whether the process dies once the write is stored."""
        if self._told_to is not None:
            with self._told_to.open("a", encoding="utf-8") as told:
                told.write(f"{name}\n")
        if name == ApiKey.INIT_PRODUCER_ID.name:
            self._begins_copy = True
        self._count += 1
        if self._over or self._chosen not in (str(self._count), name):
            return False
        self._over = True
        if self._moment == "before":
            self._end()
        return self._moment == "after"

    def reach_copy(self) -> bool:
        """Note that a batch is about to be copied, as `reach` does, if the batch is the first of its copy."""
        first, self._begins_copy = self._begins_copy, False
        return first and self.reach(COPY)

    def end_with(self, answered: asyncio.Future[Any] | None) -> None:
        """End the process when a request is answered; at once if the request gets no answer."""
        if answered is None:
            asyncio.get_running_loop().call_soon(self._end)
        else:
            answered.add_done_callback(lambda _: self._end())

    def end(self) -> None:
        self._end()


def name_of(key: str, record: Record | None) -> str:
    """Return the name of a record of the state log: its kind, and its phase or `removed`."""
    phase = "removed" if record is None else getattr(record, "phase", "")
    return f"{key.partition('/')[0]} {phase}".rstrip()


def watched(writes: DurableWrites, patches: ExitStack) -> None:
    """Have all durable writes of this process pass through `writes`, until the patches are undone."""

    def patch(owner: type, name: str, replacement: Callable[..., Any]) -> None:
        patches.enter_context(mock.patch.object(owner, name, functools.wraps(getattr(owner, name))(replacement)))

    attempt, append, request, send = (
        StateLog._attempt, StateLog._append, BrokerConnection._request, TargetWriter._send
    )  # fmt: skip
    named: dict[StateLog, str] = {}

    async def attempting(log: StateLog, key: str, record: Record | None, deadline: float) -> bool:
        named[log] = name_of(key, record)
        return await attempt(log, key, record, deadline)

    async def appending(log: StateLog, topic: str, batch: bytearray) -> Any:
        dies = topic == STATE_TOPIC and writes.reach(named[log])
        answer = await append(log, topic, batch)
        if dies:
            writes.end()
        return answer

    def requesting(
        connection: BrokerConnection, api_key: int, version: int, body: Any, answered: Any, *more: Any
    ) -> Any:
        if api_key not in UNCOUNTED and writes.reach(ApiKey(api_key).name):
            writes.end_with(answered)
        return request(connection, api_key, version, body, answered, *more)

    def sending(writer: TargetWriter, node: int, connection: BrokerConnection, batches: Any, in_flight: Any) -> None:
        before = set(in_flight)
        dies = writes.reach_copy()
        send(writer, node, connection, batches, in_flight)
        if dies:
            (future,) = set(in_flight) - before
            writes.end_with(future)

    patch(StateLog, "_attempt", attempting)
    patch(StateLog, "_append", appending)
    patch(BrokerConnection, "_request", requesting)
    patch(TargetWriter, "_send", sending)
    for name in ADMIN:
        patch(Admin, name, _by_admin(writes, name))


def _by_admin(writes: DurableWrites, name: str) -> Callable[..., Awaitable[Any]]:
    change = getattr(Admin, name)

    async def changing(admin: Admin, *given: Any, **options: Any) -> Any:
        dies = writes.reach(name)
        result = await change(admin, *given, **options)
        if dies:
            writes.end()
        return result

    return changing


def main() -> int:
    from kmigrate.cli.app import main as kmigrate

    by = signal.Signals[os.environ.get(DIES_BY, signal.SIGKILL.name)]
    writes = DurableWrites(os.environ.get(DIES_AT, ""), os.environ.get(WRITES_TO, ""), lambda: os.kill(os.getpid(), by))
    with ExitStack() as patches:
        watched(writes, patches)
        return kmigrate(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
