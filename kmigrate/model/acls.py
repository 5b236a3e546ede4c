"""Derives the ACLs that a mirrored topic or group gets on the target from the source's ACLs; pure.

1. A source ACL that covers the topic (by name, by prefix or by `*`) becomes literal ACLs of that topic. These ACLs open
   or close nothing else on the target.
2. While the topic is mirrored, its readers may read, and everybody who may use the topic may describe it. Operations
   that change the topic (write, alter, delete, all) are held back until the promote.
3. Denials are carried over like permissions: of reading at once, all others with the permission that they limit.
4. kmigrate removes only ACLs that kmigrate put on the target. An ACL set by hand stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

__all__ = [
    "GROUP",
    "LITERAL",
    "PREFIXED",
    "TOPIC",
    "Acl",
    "TopicRights",
    "deny_entries",
    "deny_write",
    "group_rights",
    "host_bound",
    "topic_rights",
    "writers",
]

TOPIC, GROUP = "topic", "group"
LITERAL, PREFIXED = "literal", "prefixed"
_WILDCARD = "*"
_USER, _EVERYBODY = "User:", "User:*"


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An ACL of a cluster's authorizer, with the operation in Kafka's spelling (READ, WRITE …)."""

    resource: str
    name: str
    principal: str
    host: str
    operation: str
    allow: bool = True
    pattern: str = LITERAL

    def __str__(self) -> str:
        verb = "may" if self.allow else "may not"
        return f"{self.principal} from {self.host} {verb} {self.operation} {self.resource} {self.name}"

    def covers(self, resource: str, name: str) -> bool:
        """Return whether this ACL applies to the topic or group."""
        if self.resource != resource:
            return False
        if self.pattern == PREFIXED:
            return name.startswith(self.name)
        return self.pattern == LITERAL and self.name in (name, _WILDCARD)


_NOW = {
    "READ": ("READ",),
    "DESCRIBE": ("DESCRIBE",),
    "DESCRIBE_CONFIGS": ("DESCRIBE_CONFIGS",),
    "WRITE": ("DESCRIBE",),
    "ALTER": ("DESCRIBE",),
    "DELETE": ("DESCRIBE",),
    "ALTER_CONFIGS": ("DESCRIBE_CONFIGS",),
    "ALL": ("READ", "DESCRIBE", "DESCRIBE_CONFIGS"),
}
"""Operations that a permission gives before the promote.

The permission implies them (a writer may describe), and they change nothing. CREATE is left out: the topic exists.
"""

_DENIED_NOW = {
    "READ": ("READ",),
    "DESCRIBE": ("DESCRIBE",),
    "DESCRIBE_CONFIGS": ("DESCRIBE_CONFIGS",),
    "ALL": ("READ", "DESCRIBE", "DESCRIBE_CONFIGS"),
}
_WRITES = frozenset({"WRITE", "ALL"})
_GROUP_OPERATIONS = frozenset({"READ", "DESCRIBE", "DELETE", "ALL"})


@dataclass(frozen=True, slots=True)
class TopicRights:
    """The ACLs of a topic on the target, sorted: while the topic is mirrored, and from its promote on."""

    now: tuple[Acl, ...]
    promoted: tuple[Acl, ...]


def topic_rights(rules: Iterable[Acl], topic: str) -> TopicRights:
    """Return the ACLs of a mirrored topic that follow from the source's ACLs."""
    now: set[Acl] = set()
    promoted: set[Acl] = set()
    for rule in rules:
        if rule.covers(TOPIC, topic) and rule.operation in _NOW:
            own = replace(rule, name=topic, pattern=LITERAL)
            promoted.add(own)
            early = _NOW if rule.allow else _DENIED_NOW
            now |= {replace(own, operation=operation) for operation in early.get(rule.operation, ())}
    return TopicRights(tuple(sorted(now)), tuple(sorted(promoted)))


def host_bound(rules: Iterable[Acl], topic: str) -> tuple[Acl, ...]:
    """Return the ACLs on a topic that apply to clients at a single address only."""
    return tuple(sorted(rule for rule in rules if rule.covers(TOPIC, topic) and rule.host != _WILDCARD))


def group_rights(rules: Iterable[Acl], group: str) -> tuple[Acl, ...]:
    """Return the ACLs of a mirrored group that follow from the source's ACLs: members keep all their rights at once."""
    found: Set[Acl] = {
        replace(rule, name=group, pattern=LITERAL)
        for rule in rules
        if rule.covers(GROUP, group) and rule.operation in _GROUP_OPERATIONS
    }
    return tuple(sorted(found))


def deny_entries(rules: Iterable[Acl], topic: str, spared: Set[str]) -> tuple[Acl, ...] | str:
    """Return the ACLs that deny writing a topic to everybody but the spared principals, or why no ACLs can.

    An ACL that exists already is somebody else's, and is left out.
    """
    rules = frozenset(rules)
    allowed = {rule.principal for rule in rules if rule.allow and _is_about_writing(rule, topic)} - spared
    if unnamed := sorted(each for each in allowed if each == _EVERYBODY or not each.startswith(_USER)):
        return f"{', '.join(unnamed)} may write, and a denial of that could stop kmigrate, too"
    wanted = {deny_write(principal, topic) for principal in allowed}
    return tuple(sorted(wanted - rules))


def deny_write(principal: str, topic: str) -> Acl:
    """Return the ACL that denies a principal to write a topic, from every host."""
    return Acl(TOPIC, topic, principal, _WILDCARD, "WRITE", allow=False)


def _is_about_writing(rule: Acl, topic: str) -> bool:
    return rule.covers(TOPIC, topic) and rule.operation in _WRITES


def writers(rules: Iterable[Acl], topic: str) -> tuple[str, ...]:
    """Return the principals that some ACL lets write a topic, and that no ACL denies writing from every host."""
    about = [rule for rule in rules if _is_about_writing(rule, topic)]
    refused = {rule.principal for rule in about if not rule.allow and rule.host == _WILDCARD}
    return tuple(sorted({rule.principal for rule in about if rule.allow} - refused))
