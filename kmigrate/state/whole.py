"""A state log read from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.tail import PlaceLostError, Tail
from kmigrate.errors import KmigrateError
from kmigrate.state.fold import Fold, state_producer_id

__all__ = ["read_whole"]

_SHORT_WAIT_MS = 20
"""For more, at the end of the log."""


async def read_whole(
    client: ClusterClient,
    topic: str,
    *,
    purpose: str,
    on_progress: Callable[[], None] = lambda: None,
    on_trouble: Callable[[KmigrateError], None],
) -> tuple[Fold, Tail]:
    """The fold of all that the log holds, and the tail that follows it from there; raises StateLogBroken.

    All of it from one broker: where one's log cleaner has taken a tombstone away, another's may have left what that
    dropped.
    """
    while True:
        fold = Fold(state_producer_id(topic))
        tail = Tail(client, topic, 0, fold.take, purpose=purpose)

        def whole(tail: Tail = tail) -> bool:
            return len(tail.leaders) > 1 or (bool(tail.leaders) and tail.reached >= tail.high_watermark)

        with suppress(PlaceLostError):  # another leads that never had it: nothing is known yet that could be wrong
            await tail.run(on_progress, on_trouble, until=whole, max_wait_ms=_SHORT_WAIT_MS)
            if len(tail.leaders) == 1:
                fold.pass_over(tail.reached)
                return fold, tail
