"""One look at the state log of any cluster: what it says now, and nothing of what it says later."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.state import State
from kmigrate.state.log import STATE_TOPIC
from kmigrate.state.whole import read_whole

__all__ = ["read_state"]


async def read_state(client: ClusterClient) -> State | None:
    """The state that a cluster keeps, None where it shows us none; raises Unreachable, StateLogBroken."""
    info = await client.topic(STATE_TOPIC)
    if info is None or info.error:
        return None
    fold, _ = await read_whole(client, STATE_TOPIC, purpose="state-look", on_trouble=_fail)
    return fold.state


def _fail(error: KmigrateError) -> None:
    raise error
