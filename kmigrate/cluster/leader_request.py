"""A request that only a partition's leader can answer, tried for as long as that broker leads.

A leader that stands still, or whose responses get lost, is replaced by its cluster within seconds. The old leader never
tells the waiting client. So other brokers are asked who leads, until an answer arrives.
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
"""Seconds for an answer, before another broker is asked who leads; a slow leader is still waited for."""


async def while_it_leads(client: ClusterClient, topic: str, partition: int, asking: Coroutine[Any, Any, _T]) -> _T:
    """Return the leader's answer; raise Unreachable as soon as another broker leads and there is no answer."""
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
        if node < 0:  # no leader was known when the request was made: the first known leader got the request
            node, address = leader, _address(client, leader)
        elif leader not in (-1, node):
            raise Unreachable("leader-moved", f"{address}, which led {topic}-{partition}, did not answer any more")
