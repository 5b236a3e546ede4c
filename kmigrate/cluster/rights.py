"""Asks a cluster which operations kmigrate's principal may use, before the first request that needs an operation.

Brokers report authorized operations with Metadata (topics, the cluster) and with DescribeGroups. Metadata reports also
topics that do not exist yet. Only a group's coordinator reports the group's operations. Every broker is asked about all
groups, because a look-up of coordinators would have a new cluster create `__consumer_offsets`. ACLs fill the gap there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmigrate.cluster.acls import read_acls
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused
from kmigrate.model.acls import Acl
from kmigrate.model.rights import ALL_OPERATIONS, HIDDEN, NOT_REPORTED, Operations, Rights, group_operations
from kmigrate.protocol.api import ApiKey, Message, element_type, entity
from kmigrate.protocol.codes import Code, code_of

__all__ = ["operations_in", "read_rights"]

_METADATA = entity(ApiKey.METADATA, 8, "request")
"""The newest version that reports the operations on the cluster, too."""
_DESCRIBE_GROUPS = entity(ApiKey.DESCRIBE_GROUPS, 3, "request")
_GROUPS_AT_ONCE = 500
_BITS = {
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
}
_UNREPORTED = -(1 << 31)
"""Value of the bit field of a broker that reports no operations."""


def operations_in(bits: int) -> Operations:
    """Return the operations in a bit field of a response; an empty field stands for a resource without DESCRIBE."""
    if bits == _UNREPORTED:
        return NOT_REPORTED
    allowed = {name for bit, name in _BITS.items() if bits >> bit & 1}
    return Operations.exactly(allowed) if allowed else HIDDEN


async def read_rights(client: ClusterClient, topics: Collection[str], groups: Collection[str]) -> Rights:
    """Return the operations on topics, groups and the cluster. Raise Unreachable."""
    topic_type = element_type(_METADATA, "topics")
    answer = await client.call(
        _METADATA(
            topics=tuple(topic_type(name=topic) for topic in topics),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=True,
            include_topic_authorized_operations=True,
        )
    )
    codes = {str(topic.name): code_of(topic.error_code) for topic in answer.topics}
    return Rights(
        operations_in(int(answer.cluster_authorized_operations)),
        {str(topic.name): _of_topic(topic) for topic in answer.topics},
        await _of_groups(client, groups),
        frozenset(name for name, code in codes.items() if code == Code.UNKNOWN_TOPIC_OR_PARTITION),
    )


def _of_topic(topic: Message) -> Operations:
    if code_of(topic.error_code) == Code.TOPIC_AUTHORIZATION_FAILED:
        return HIDDEN
    return operations_in(int(topic.topic_authorized_operations))


async def _of_groups(client: ClusterClient, groups: Collection[str]) -> dict[str, Operations]:
    found: dict[str, Operations] = {}
    for node in sorted(client.metadata.brokers):
        found |= await _reported_by(client, node, [group for group in groups if group not in found])
    if left := [group for group in groups if group not in found]:
        found |= await _by_acls(client, left)
    return found


async def _reported_by(client: ClusterClient, node: int, groups: Sequence[str]) -> dict[str, Operations]:
    """Return the operations on the groups that the broker coordinates, and on groups that nobody may describe."""
    found: dict[str, Operations] = {}
    for at in range(0, len(groups), _GROUPS_AT_ONCE):
        some = tuple(groups[at : at + _GROUPS_AT_ONCE])
        answer = await client.call(_DESCRIBE_GROUPS(groups=some, include_authorized_operations=True), node)
        for group in answer.groups:
            code = code_of(group.error_code)
            if not code:
                found[str(group.group_id)] = operations_in(int(group.authorized_operations))
            elif code == Code.GROUP_AUTHORIZATION_FAILED:
                found[str(group.group_id)] = HIDDEN
    return found


async def _by_acls(client: ClusterClient, groups: Sequence[str]) -> dict[str, Operations]:
    """Return the operations on groups without a coordinator, as far as readable ACLs tell."""
    rules: Collection[Acl] | None
    try:
        rules = await read_acls(client)
    except BrokerRefused:
        rules = ()
    if rules is None:
        return dict.fromkeys(groups, Operations(ALL_OPERATIONS))
    return {group: group_operations(rules, client.settings.security.principal, group) for group in groups}
