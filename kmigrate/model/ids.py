"""Defines names and numbers of Kafka's protocol that the domain model uses."""

from __future__ import annotations

__all__ = ["INTERNAL_TOPICS", "LARGEST", "OWN_PREFIX", "SEQUENCES", "is_internal", "is_own_topic"]

SEQUENCES = 1 << 31
"""Number of sequences: sequences run from 0 to 2^31 − 1 and wrap to 0 (M1)."""

LARGEST = -3
"""Timestamp by which ListOffsets asks for the record with the largest time (KIP-734)."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


OWN_PREFIX = "__kmigrate_"
"""Prefix of the names of kmigrate's own topics."""


def is_own_topic(topic: str) -> bool:
    """Return whether a topic holds kmigrate's own state, so that no client may reach the topic through a router."""
    return topic.startswith(OWN_PREFIX)


def is_internal(topic: str) -> bool:
    """Return whether a topic is never mirrored: a topic of Kafka, of kmigrate or of MirrorMaker."""
    return topic in INTERNAL_TOPICS or is_own_topic(topic) or topic.endswith((".internal", ".replica"))
