"""Numbers of the protocol that the domain itself reasons with."""

from __future__ import annotations

__all__ = ["INTERNAL_TOPICS", "SEQUENCES", "is_internal"]

SEQUENCES = 1 << 31
"""Sequences run from 0 to 2^31 − 1 and wrap to 0 (M1)."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})


def is_internal(topic: str) -> bool:
    """Topics that are never mirrored: Kafka's own, kmigrate's own, MirrorMaker's (MM-66, MM-85)."""
    return topic in INTERNAL_TOPICS or topic.startswith("__kmigrate_") or topic.endswith((".internal", ".replica"))
