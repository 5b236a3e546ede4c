"""A worker that joins a group over the wire, as workers of Connect do: librdkafka joins only as a consumer."""

from __future__ import annotations

from datetime import timedelta

from kmigrate.cluster.client import ClusterClient, until_answered
from kmigrate.protocol.api import ApiKey, Message, element_type, entity

__all__ = ["joined_by_a_worker"]


async def joined_by_a_worker(client: ClusterClient, group: str) -> None:
    """Make a group of the type `connect`, and wait while the group's coordinator is not ready."""
    join = entity(ApiKey.JOIN_GROUP, 0, "request")
    protocol = element_type(join, "protocols")(name="sessioned", metadata=b"")
    request = join(
        group_id=group,
        session_timeout=timedelta(seconds=10),
        member_id="",
        protocol_type="connect",
        protocols=(protocol,),
    )

    async def ask() -> Message:
        return await client.call(request, await client.find_coordinator(group))

    await until_answered(client, f"JoinGroup of group {group}", ask)
