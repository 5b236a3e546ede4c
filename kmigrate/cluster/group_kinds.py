"""The protocol type of groups, which librdkafka does not show: its lists contain consumer groups only."""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.protocol.api import ApiKey, entity

__all__ = ["CONSUMERS", "protocol_type"]

CONSUMERS = "consumer"
_DESCRIBE = entity(ApiKey.DESCRIBE_GROUPS, 0, "request")


async def protocol_type(client: ClusterClient, group: str) -> str:
    """Return the protocol type that the members of a group name, such as `connect` or `sr`; '' for an unknown group.

    Workers of Connect and instances of Schema Registry use such groups to distribute work; they commit nothing there.
    """
    answer = await client.call(_DESCRIBE(groups=(group,)), await client.find_coordinator(group))
    return str(answer.groups[0].protocol_type)
