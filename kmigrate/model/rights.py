"""Judges whether a principal has a right, from what a cluster reports about the principal's operations. Pure.

A broker reports operations only of resources that the principal may describe. For other resources only the operations
that imply DESCRIBE are known: the principal has none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kmigrate.model.acls import GROUP, Acl
from kmigrate.model.grants import CLUSTER_NAME

__all__ = ["ALL_OPERATIONS", "HIDDEN", "NOT_REPORTED", "Operations", "Rights", "Standing", "group_operations"]

ALL_OPERATIONS = frozenset(
    {
        "READ",
        "WRITE",
        "CREATE",
        "DELETE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    }
)
_DESCRIBE_BY = frozenset({"DESCRIBE", "READ", "WRITE", "DELETE", "ALTER"})
"""Operations whose permission implies DESCRIBE."""


class Standing(StrEnum):
    """Whether a principal has a right."""

    GRANTED = "granted"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations on one resource that are known to be allowed or denied; all others are unknown."""

    allowed: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()

    @staticmethod
    def exactly(allowed: Collection[str]) -> Operations:
        """Return the operations of a resource whose broker has reported all allowed operations."""
        return Operations(frozenset(allowed), ALL_OPERATIONS - frozenset(allowed))

    def standing(self, operation: str) -> Standing:
        if operation in self.allowed:
            return Standing.GRANTED
        return Standing.MISSING if operation in self.denied else Standing.UNKNOWN


HIDDEN = Operations(denied=_DESCRIBE_BY)
"""The operations on a resource that the principal may not describe."""
NOT_REPORTED = Operations()


@dataclass(frozen=True, slots=True)
class Rights:
    """The operations of kmigrate's principal on the resources of a cluster."""

    cluster: Operations
    topics: Mapping[str, Operations] = field(default_factory=dict)
    groups: Mapping[str, Operations] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """Topics that the cluster does not have."""

    def standing(self, resource: str, operation: str, name: str) -> Standing:
        """Return whether the principal has the right on one resource; CREATE of topics may come from the cluster."""
        if resource == "CLUSTER":
            return self.cluster.standing(operation) if name == CLUSTER_NAME else Standing.UNKNOWN
        found = {"TOPIC": self.topics, "GROUP": self.groups}.get(resource, {}).get(name, NOT_REPORTED)
        standing = found.standing(operation)
        if (resource, operation) != ("TOPIC", "CREATE") or standing is Standing.GRANTED:
            return standing
        by_cluster = self.cluster.standing(operation)
        return standing if by_cluster is Standing.MISSING else by_cluster


def group_operations(rules: Collection[Acl], principal: str, group: str) -> Operations:
    """Return what ACLs say about a principal's operations on a group that the principal may describe.

    A missing ACL proves nothing: the principal may be a super user.
    """
    about = [
        rule
        for rule in rules
        if rule.covers(GROUP, group) and rule.principal in (principal, "User:*") and rule.host == "*"
    ]
    allowed, denied = ({rule.operation for rule in about if rule.allow is word} for word in (True, False))
    if "ALL" in denied:
        return Operations(denied=ALL_OPERATIONS)
    given = ALL_OPERATIONS if "ALL" in allowed else allowed
    return Operations(frozenset((given | {"DESCRIBE"}) - denied), frozenset(denied))
