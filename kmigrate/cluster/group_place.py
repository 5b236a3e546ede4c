"""Groups that members of both protocols are in, and a place that is held in one, so that it is of the new protocol.

While the first members of a classic group have its first rebalance, the coordinator fails at each member of the new
protocol that joins (KIP-848), has the classic ones begin anew, and both hear of it in ways at which clients end, or
their applications are told (C17). In a group that is of the new protocol already both join without a word.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.versions import newest_versions
from kmigrate.errors import KmigrateError
from kmigrate.protocol.api import entity

__all__ = ["GroupPlace", "is_mixed", "place_of"]

_API_VERSIONS, _HEARTBEAT, _DESCRIBE = 18, 68, 69
_JOINS, _LEAVES = 0, -1
_CLASSIC = 0
_OWNS_NOTHING = dt.timedelta(seconds=1)
"""How long whoever owns something may take to give it back."""


async def is_mixed(client: ClusterClient, group: str) -> bool:
    """Whether a group of the new protocol has classic members, too; it may, where its broker does not tell.

    Brokers do from 4.0 on. Raises Unreachable.
    """
    node = await client.find_coordinator(group)
    version = await _version(client, node, _DESCRIBE)
    if version < 0:
        return False
    request = entity(_DESCRIBE, min(version, 1), "request")
    answer = await client.call(request(group_ids=(group,), include_authorized_operations=False), node)
    members = (member for told in answer.groups for member in told.members)
    return any(int(getattr(member, "member_type", _CLASSIC)) == _CLASSIC for member in members)


def place_of(group: str) -> str:
    """The member id of who holds the place in a group: no client that reads."""
    return str(uuid5(NAMESPACE_URL, f"kmigrate:{group}"))


class GroupPlace:
    """A member that reads nothing and says nothing more: it is gone after a session timeout, 45 s by default.

    Every process that holds one for a group holds the same one. What cannot be had is done without: members that come
    too soon try again then.
    """

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group
        self._member = place_of(group)

    async def take(self) -> None:
        """Have the group be of the new protocol; no positions can be written to it from outside meanwhile."""
        await self._say(_JOINS, rebalance_timeout=_OWNS_NOTHING, subscribed_topic_names=(), topic_partitions=())

    async def leave(self) -> None:
        await self._say(_LEAVES, topic_partitions=None)

    async def _say(self, epoch: int, **fields: Any) -> None:
        with suppress(KmigrateError):
            node = await self._client.find_coordinator(self._group)
            version = await _version(self._client, node, _HEARTBEAT)
            if version >= 0:
                request = entity(_HEARTBEAT, 0, "request")
                await self._client.call(
                    request(group_id=self._group, member_id=self._member, member_epoch=epoch, **fields), node
                )


async def _version(client: ClusterClient, node: int, api_key: int) -> int:
    """The newest version of a request that a broker takes, −1 where it takes none: it would close the connection."""
    answer = await client.call(entity(_API_VERSIONS, 0, "request")(), node)
    return newest_versions(answer).get(api_key, -1)
