"""ACLs as a single broker knows them, and the name of the right that a refused request lacks.

The wire client reads ACLs, because a promote asks every broker of the target. An accepted ACL is not yet in force on a
broker that has not received the ACL: a producer that writes there in between gets TOPIC_AUTHORIZATION_FAILED, and ends.
`Admin` writes ACLs.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.acls import GROUP, LITERAL, PREFIXED, TOPIC, Acl
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.protocol.codes import Code, code_of, row

__all__ = ["DENIED", "Right", "denied", "is_denied", "read_acls", "wait_at_all_brokers"]

DENIED = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Error codes of a broker whose authorizer refused a request."""

Right = tuple[str, str]
"""An operation and a resource, by Kafka's names: ("READ", "topic orders")."""


def is_denied(error: BaseException | None) -> bool:
    """Return whether an authorizer caused the error."""
    return isinstance(error, BrokerRefused) and error.code in DENIED


def denied(settings: ClusterSettings, code: int, right: Right, *, still_true: str = "") -> BrokerRefused:
    """Return the error of a request that the authorizer refused."""
    operation, resource = right
    who = settings.security.principal
    return BrokerRefused(
        "access-denied",
        f"cluster {settings.name} refused {operation} on {resource} to {who}",
        code=code,
        still_true=still_true or "nothing was changed by this request",
        next_step=f"add an ACL on {settings.name}: allow {who} {operation} on {resource} "
        "(docs/security.md lists all rights that kmigrate needs)",
    )


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
            next_step=f"allow {client.settings.security.principal} DESCRIBE on cluster kafka-cluster, or "
            "move the ACLs by hand: kmigrate link alter LINK --set sync_acls=false",
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


async def wait_at_all_brokers(
    client: ClusterClient, holds: Callable[[Set[Acl]], bool], failure: Callable[[int], Exception], deadline: float
) -> None:
    """Wait until the ACLs of every broker are as wanted; at the deadline raise the failure of a broker."""
    tries = Backoff(0.005, within_s=deadline - monotonic())
    for node in list(client.metadata.brokers):
        while not await _holds_at(client, node, holds):
            await tries.pause(failure(node))


async def _holds_at(client: ClusterClient, node: int, holds: Callable[[Set[Acl]], bool]) -> bool:
    """Return True if a broker's ACLs are as wanted, or the broker has left, and reads them before it serves again."""
    try:
        return holds(await read_acls(client, node) or frozenset())
    except Unreachable:
        return node not in (await client.refresh([])).brokers
