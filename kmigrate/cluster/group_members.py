"""Members of consumer groups, described over the wire.

librdkafka refuses to describe a group with another protocol type than `consumer`. A held group has another type
(`group_hold`).
"""

from __future__ import annotations

from typing import Any

from kmigrate.cluster.admin import GroupMember
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.versions import newest_versions
from kmigrate.net.clock import monotonic, sleep
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of

__all__ = ["group_members"]


_DEAD = "Dead"
_PAUSE_S = 0.1


async def group_members(client: ClusterClient, group: str) -> tuple[GroupMember, ...]:
    """Return the live members of a group of either protocol; no member if the cluster does not know the group.

    Raise BrokerRefused or Unreachable.
    """
    deadline = monotonic() + client.settings.request_timeout_s
    while True:
        node = await client.find_coordinator(group)
        told = (await client.call(entity(ApiKey.DESCRIBE_GROUPS, 1, "request")(groups=(group,)), node)).groups[0]
        code = code_of(told.error_code)
        if not code and told.group_state == _DEAD and await _serves_consumer_groups(client, node):
            request = entity(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, "request")
            answer = await client.call(request(group_ids=(group,), include_authorized_operations=False), node)
            told = answer.groups[0]
            code = code_of(told.error_code)
        if code in (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            return () if code else tuple(map(_member, told.members))
        client.retry_or_raise(f"DescribeGroups of group {group}", code, deadline)
        await sleep(_PAUSE_S)


async def _serves_consumer_groups(client: ClusterClient, node: int) -> bool:
    answer = await client.call(entity(ApiKey.API_VERSIONS, 0, "request")(), node)
    return ApiKey.CONSUMER_GROUP_DESCRIBE in newest_versions(answer)


def _member(told: Any) -> GroupMember:
    return GroupMember(str(told.member_id), str(told.client_id), str(told.client_host))
