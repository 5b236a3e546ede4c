"""How a promote ends in its topic's record: promoted, or mirroring as before, with the reason."""

from __future__ import annotations

from dataclasses import replace

from kmigrate.model.lifecycle import TopicEvent, advance_topic
from kmigrate.model.records import ProvenTopic, TopicRecord
from kmigrate.net.clock import now_ms

__all__ = ["flipped", "given_up"]


def flipped(record: TopicRecord, proven: ProvenTopic) -> TopicRecord:
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.FLIP),
        since_ms=now_ms(),
        promoted_ms=now_ms(),
        reason="",
        target_ends=proven.target_ends,
        unsettled=True,
    )


def given_up(record: TopicRecord, reason: str) -> TopicRecord:
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.UNFENCE),
        since_ms=now_ms(),
        reason=reason,
        terms=None,
        barrier={},
    )
