"""The read of a state log from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import PlaceLostError, Tail
from kmigrate.errors import KmigrateError
from kmigrate.model.state import State
from kmigrate.state.fold import Fold, state_producer_id
from kmigrate.state.topics import STATE_TOPIC

__all__ = ["read_state", "read_whole"]

_SHORT_WAIT_MS = 20
"""Most milliseconds that a Fetch waits for more records at the end of the log."""


def _raise(error: KmigrateError) -> None:
    raise error


async def read_whole(
    client: ClusterClient,
    topic: str,
    *,
    purpose: str,
    on_progress: Callable[[], None] = lambda: None,
    on_trouble: Callable[[KmigrateError], None] = _raise,
) -> tuple[Fold, Tail]:
    """Return the fold of the whole log, and the tail that continues at the log's end; raise StateLogBroken.

    The whole log must come from a single broker: another broker's cleaner may have removed a record's tombstone.
    """
    while True:
        fold = Fold(state_producer_id(topic))
        tail = Tail(client, topic, 0, fold.take, purpose=purpose)

        def whole(tail: Tail = tail) -> bool:
            return len(tail.leaders) > 1 or (bool(tail.leaders) and tail.reached >= tail.high_watermark)

        with suppress(PlaceLostError):  # a new leader lacks records that were read: begin again
            await tail.run(on_progress, on_trouble, until=whole, max_wait_ms=_SHORT_WAIT_MS)
            if len(tail.leaders) == 1:
                fold.pass_over(tail.reached)
                return fold, tail


async def read_state(client: ClusterClient) -> State | None:
    """Return the state of a cluster, or None if it shows no state topic; raise Unreachable, StateLogBroken."""
    info = await client.topic(STATE_TOPIC)
    if info is None or info.error:
        return None
    fold, _ = await read_whole(client, STATE_TOPIC, purpose="state-look")
    return fold.state
