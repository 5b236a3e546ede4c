"""The JSON document of `status`: the snapshot, its progress, and what needs attention."""

from __future__ import annotations

from typing import Any

from kmigrate.workflow.status.attention import Attention, group_attention, topic_attention
from kmigrate.workflow.status.progress import Progress
from kmigrate.workflow.status.snapshot import Snapshot

__all__ = ["status_document"]


def status_document(shot: Snapshot, progress: Progress) -> dict[str, Any]:
    document = shot.as_json()
    for topic, fields in zip(shot.topics, document["topics"], strict=True):
        fields["attention"] = _json(topic_attention(topic, shot.at_ms, progress.topic(topic)))
    for group, fields in zip(shot.groups, document["groups"], strict=True):
        fields["attention"] = _json(group_attention(group, shot.at_ms, progress.group(group)))
    return {**document, "progress": progress.as_json()}


def _json(attention: Attention) -> dict[str, str]:
    return {"need": attention.need.name.lower(), "reason": attention.reason}
