"""What a group is of which librdkafka says nothing: its lists leave out who is no consumer."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.protocol.api import entity

__all__ = ["CONSUMERS", "protocol_type"]

CONSUMERS = "consumer"
_DESCRIBE = entity(15, 0, "request")


async def protocol_type(client: ClusterClient, group: str) -> str:
    """As its members name it, `connect` or `sr` for instance; nothing of a group that the cluster does not know.

    Workers of Connect and instances of Schema Registry choose who does what in such groups; they commit nothing there.
    """
    answer = await client.call(_DESCRIBE(groups=(group,)), await client.find_coordinator(group))
    return str(answer.groups[0].protocol_type)
