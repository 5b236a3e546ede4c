"""A cluster's ACLs as a single broker knows them.

The wire client reads ACLs, because a promote asks every broker of the target. An ACL that the controller accepted is
not yet in force on a broker that has not received the ACL. A producer that writes there in between gets
TOPIC_AUTHORIZATION_FAILED, and ends. `Admin` writes ACLs.
"""

from __future__ import annotations

from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused
from kmigrate.model.acls import GROUP, LITERAL, PREFIXED, TOPIC, Acl
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import code_of, row

__all__ = ["read_acls"]

_VERSION = 1
_SECURITY_DISABLED = 54
_ANY = 1
_ALLOW = 3
_RESOURCES = {2: TOPIC, 3: GROUP}
_PATTERNS = {3: LITERAL, 4: PREFIXED}
_OPERATIONS = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
}


async def read_acls(client: ClusterClient, node: int | None = None) -> frozenset[Acl] | None:
    """Return the ACLs on topics and groups; None if the cluster has no authorizer."""
    request = entity(ApiKey.DESCRIBE_ACLS, _VERSION, "request")
    answer: Any = await client.call(
        request(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        ),
        node,
    )
    code = code_of(answer.error_code)
    if code == _SECURITY_DISABLED:
        return None
    if code:
        raise BrokerRefused(
            "acls-unreadable",
            f"the ACLs of cluster {client.settings.name} cannot be read: {row(code).name}",
            code=code,
            still_true="records go on being copied; no ACL was changed",
            next_step=f"allow {client.settings.security.principal} DESCRIBE on cluster kafka-cluster, or set "
            "sync_acls = false in [mirror] and move the ACLs by hand",
        )
    return frozenset(
        Acl(
            _RESOURCES[int(resource.resource_type)],
            str(resource.resource_name),
            str(acl.principal),
            str(acl.host),
            _OPERATIONS[int(acl.operation)],
            int(acl.permission_type) == _ALLOW,
            _PATTERNS[int(resource.pattern_type)],
        )
        for resource in answer.resources
        for acl in resource.acls
        if int(resource.resource_type) in _RESOURCES
        and int(resource.pattern_type) in _PATTERNS
        and int(acl.operation) in _OPERATIONS
    )
