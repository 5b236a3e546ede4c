"""One look at the state log of any cluster: what it says now, and nothing of what it says later."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.tail import Tail
from kmigrate.model.state import State
from kmigrate.state.fold import Fold
from kmigrate.state.log import STATE_TOPIC

__all__ = ["read_state"]


async def read_state(client: ClusterClient) -> State | None:
    """The state that a cluster keeps, None where it shows us none; raises Unreachable, StateLogBroken."""
    info = await client.topic(STATE_TOPIC)
    if info is None or info.error:
        return None
    while True:
        fold = Fold()
        tail = Tail(client, STATE_TOPIC, 0, fold.take, purpose="state-look")
        while len(tail.leaders) < 2 and (not tail.leaders or tail.reached < tail.high_watermark):
            await tail.poll(0)
        if len(tail.leaders) == 1:  # each has its own log cleaner (state/log)
            return fold.state
