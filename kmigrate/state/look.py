"""A single read of kmigrate's topics on any cluster: the present content, without following the topics."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError
from kmigrate.model.state import State
from kmigrate.state.log import PRESENCE_TOPIC, STATE_TOPIC, StateLog
from kmigrate.state.offset_maps import MAP_TOPIC, OffsetMaps
from kmigrate.state.whole import read_whole

__all__ = ["find_strays", "read_state"]


async def read_state(client: ClusterClient) -> State | None:
    """Return the state of a cluster, or None if it shows no state topic; raise Unreachable, StateLogBroken."""
    info = await client.topic(STATE_TOPIC)
    if info is None or info.error:
        return None
    fold, _ = await read_whole(client, STATE_TOPIC, purpose="state-look", on_trouble=_fail)
    return fold.state


async def find_strays(client: ClusterClient) -> list[str]:
    """Return in words the records of kmigrate's topics that kmigrate did not write; raise as `read_state` does."""
    topics = (await client.refresh([STATE_TOPIC, PRESENCE_TOPIC, MAP_TOPIC])).topics
    found = []
    if STATE_TOPIC in topics:
        fold, _ = await read_whole(client, STATE_TOPIC, purpose="state-look", on_trouble=_fail)
        found.append(fold.strays.told(STATE_TOPIC))
    if PRESENCE_TOPIC in topics:
        found.append((await StateLog(client).find_presence_strays()).told(PRESENCE_TOPIC))
    if MAP_TOPIC in topics:
        maps = OffsetMaps(client)
        await maps.read_to_end()
        found.append(maps.strays.told(MAP_TOPIC))
    return [each for each in found if each]


def _fail(error: KmigrateError) -> None:
    raise error
