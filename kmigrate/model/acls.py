"""Which access rules a mirrored topic or group gets on the target, from the source's rules; pure.

1. A rule of the source that covers the topic (by its name, by a prefix or by `*`) becomes literal rules of that topic:
   nothing else on the target is opened or closed by it.
2. While the topic is mirrored its readers may read and everybody who may use it may describe it (MM-30); what
   changes it (write, alter, delete, all) is held back until the promote (MM-31, G-08).
3. Refusals are carried like permissions: those on reading now, the rest with the permission that they bound.
4. Only rules that kmigrate put there are ever removed; a rule set by hand stays.
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
    "group_rights",
    "host_bound",
    "topic_rights",
    "writers",
]

TOPIC, GROUP = "topic", "group"
LITERAL, PREFIXED = "literal", "prefixed"
_WILDCARD = "*"


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One rule of an authorizer; operation as Kafka spells it (READ, WRITE …)."""

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
        """Whether this rule speaks of that topic or group."""
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
"""What a permission means before the promote: what it implies (a writer may describe) without what changes the topic.
CREATE is left out: the topic exists."""

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
    """Rules of one topic on the target, sorted: while it is mirrored, and from its promote on."""

    now: tuple[Acl, ...]
    promoted: tuple[Acl, ...]


def topic_rights(rules: Iterable[Acl], topic: str) -> TopicRights:
    """What the source's rules mean for a mirrored topic."""
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
    """The rules on a topic that speak of clients at one address only."""
    return tuple(sorted(rule for rule in rules if rule.covers(TOPIC, topic) and rule.host != _WILDCARD))


def group_rights(rules: Iterable[Acl], group: str) -> tuple[Acl, ...]:
    """What the source's rules mean for a mirrored group: its members may be what they were, at once."""
    found: Set[Acl] = {
        replace(rule, name=group, pattern=LITERAL)
        for rule in rules
        if rule.covers(GROUP, group) and rule.operation in _GROUP_OPERATIONS
    }
    return tuple(sorted(found))


def writers(rules: Iterable[Acl], topic: str) -> tuple[str, ...]:
    """Principals that some rule lets write a topic, and that none keeps from it altogether."""
    about = [rule for rule in rules if rule.covers(TOPIC, topic) and rule.operation in _WRITES]
    refused = {rule.principal for rule in about if not rule.allow and rule.host == _WILDCARD}
    return tuple(sorted({rule.principal for rule in about if rule.allow} - refused))
