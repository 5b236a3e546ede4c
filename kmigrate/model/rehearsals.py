"""Defines the names of a rehearsal: its link, its shadow topics and its group; pure.

The link's name is the intent of the rehearsal. All names of a rehearsal carry the token of its link, so whatever a dead
rehearsal has left is found by name alone.
"""

from __future__ import annotations

__all__ = [
    "LINK_PREFIX",
    "SHADOW_PREFIX",
    "group_of",
    "is_rehearsal",
    "is_shadow",
    "link_of",
    "shadow_of",
    "shadow_prefix",
]

LINK_PREFIX = "rehearsal-"
"""Prefix of the names of rehearsals' links; no other link may have such a name."""
SHADOW_PREFIX = "kmigrate-rehearsal-"
"""Prefix of the names of all shadow topics, and of the groups that read shadow topics."""


def link_of(token: str) -> str:
    """Return the name of the link of a rehearsal."""
    return f"{LINK_PREFIX}{token}"


def is_rehearsal(link: str) -> bool:
    """Return whether a link belongs to a rehearsal; no decision about other links depends on such a link."""
    return link.startswith(LINK_PREFIX)


def is_shadow(topic: str) -> bool:
    """Return whether a topic is a shadow, which no expression of a link chooses."""
    return topic.startswith(SHADOW_PREFIX)


def shadow_prefix(link: str) -> str:
    """Return the prefix of the names of a rehearsal's shadow topics and group."""
    return f"{SHADOW_PREFIX}{link.removeprefix(LINK_PREFIX)}-"


def shadow_of(link: str, topic: str) -> str:
    """Return the name of a topic's shadow."""
    return f"{shadow_prefix(link)}{topic}"


def group_of(link: str) -> str:
    """Return the name of the group that reads a rehearsal's shadow topics."""
    return f"{shadow_prefix(link)}group"
