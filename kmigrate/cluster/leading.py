"""A question that only a partition's leader answers, for as long as it leads.

A leader that stands still, or that nothing comes back from, is replaced by its cluster within seconds, and never tells
who waits for its answer: so the others are asked who leads, for as long as there is none.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, Unreachable
from kmigrate.net.clock import sleep
from kmigrate.net.tasks import accompanied

__all__ = ["while_it_leads"]

_T = TypeVar("_T")
_PATIENCE_S = 5.0
"""For an answer, before another broker is asked who leads; a slow one stays waited for where it still does."""


async def while_it_leads(client: ClusterClient, topic: str, partition: int, asking: Coroutine[Any, Any, _T]) -> _T:
    """What the partition's leader answers; raises Unreachable as soon as another one leads and there is no answer."""
    node = client.leader(topic, partition)
    address = _address(client, node)
    answer = await accompanied(asking, _until_another_leads(client, topic, partition, node, address))
    if address in client.silence:
        client.silence.heard(address)
    return answer


def _address(client: ClusterClient, node: int) -> str:
    return "{}:{}".format(*client.metadata.brokers.get(node, ("", -1)))


async def _until_another_leads(client: ClusterClient, topic: str, partition: int, node: int, address: str) -> None:
    while True:
        await sleep(_PATIENCE_S)
        if node >= 0:
            client.silence.note(address)
        try:
            await client.refresh([topic])
        except Failed:
            continue
        leader = client.leader(topic, partition)
        if node < 0:  # none was known when it was asked for: whoever leads first is who was asked
            node, address = leader, _address(client, leader)
        elif leader not in (-1, node):
            raise Unreachable("leader-moved", f"{address}, which led {topic}-{partition}, did not answer any more")
