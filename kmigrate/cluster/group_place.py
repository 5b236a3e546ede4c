"""Groups with members of both protocols, and a placeholder member that keeps a group in the new protocol.

During the first rebalance of a classic group, the coordinator fails when a member of the new protocol joins (KIP-848).
The joining member gets UNKNOWN_SERVER_ERROR, at which librdkafka and Java end (C17). The classic members have to join
again, and their applications may see an error. In a group that already uses the new protocol, members of both protocols
join without an error.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.versions import newest_versions
from kmigrate.errors import KmigrateError
from kmigrate.protocol.api import ApiKey, entity

__all__ = ["GroupPlace", "is_mixed", "place_of"]


_JOINS, _LEAVES = 0, -1
_CLASSIC = 0
_OWNS_NOTHING = dt.timedelta(seconds=1)
"""Rebalance timeout of the placeholder, which never has partitions to give back."""


async def is_mixed(client: ClusterClient, group: str) -> bool:
    """Return whether a group of the new protocol also has classic members. Raise Unreachable.

    Brokers report each member's protocol from 4.0 on. At an older broker every member may be classic, so any member
    counts. A broker without the new protocol has no such group.
    """
    node = await client.find_coordinator(group)
    version = await _version(client, node, ApiKey.CONSUMER_GROUP_DESCRIBE)
    if version < 0:
        return False
    request = entity(ApiKey.CONSUMER_GROUP_DESCRIBE, min(version, 1), "request")
    answer = await client.call(request(group_ids=(group,), include_authorized_operations=False), node)
    members = (member for told in answer.groups for member in told.members)
    return any(int(getattr(member, "member_type", _CLASSIC)) == _CLASSIC for member in members)


def place_of(group: str) -> str:
    """Return the member id of the placeholder in a group, which no reading client has."""
    return str(uuid5(NAMESPACE_URL, f"kmigrate:{group}"))


class GroupPlace:
    """A member that reads nothing and sends no heartbeat: it is removed after a session timeout, 45 s by default.

    All processes with a placeholder in a group use the same member id. A failure to take the place is ignored: members
    that then join too early try again.
    """

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._member = place_of(group)

    async def take(self) -> None:
        """Join, so that the group uses the new protocol; meanwhile nobody outside can commit offsets to the group."""
        await self._say(_JOINS, rebalance_timeout=_OWNS_NOTHING, subscribed_topic_names=(), topic_partitions=())

    async def leave(self) -> None:
        await self._say(_LEAVES, topic_partitions=None)

    async def _say(self, epoch: int, **fields: Any) -> None:
        with suppress(KmigrateError):
            node = await self._client.find_coordinator(self._group)
            version = await _version(self._client, node, ApiKey.CONSUMER_GROUP_HEARTBEAT)
            if version >= 0:
                request = entity(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, "request")
                await self._client.call(
                    request(group_id=self._group, member_id=self._member, member_epoch=epoch, **fields), node
                )


async def _version(client: ClusterClient, node: int, api_key: int) -> int:
    """Return the newest version of a request that a broker supports, −1 for none.

    A broker closes the connection on an unknown request.
    """
    answer = await client.call(entity(ApiKey.API_VERSIONS, 0, "request")(), node)
    return newest_versions(answer).get(api_key, -1)
