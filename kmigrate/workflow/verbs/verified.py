"""Writes what `verify` found equal into the state log, beside the topic's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kmigrate.model.records import LinkRecord, TopicRecord, VerifiedRecord
from kmigrate.model.state import State
from kmigrate.model.verified import Looked, grown
from kmigrate.net.clock import now_ms
from kmigrate.workflow.base.connections import Connections

__all__ = ["remember_verified"]


async def remember_verified(
    connections: Connections,
    link: LinkRecord,
    topics: Sequence[TopicRecord],
    looked: Mapping[str, Mapping[int, Looked]],
) -> None:
    """Write the result for the copies that were compared: `topics` are their records of that time."""
    for topic in topics:
        await connections.log.append(
            lambda state, topic=topic: _decide(state, link, topic, looked.get(topic.topic, {}))  # type: ignore[misc]
        )


def _decide(state: State, link: LinkRecord, topic: TopicRecord, looked: Mapping[int, Looked]) -> VerifiedRecord | None:
    if state.topic(link.name, topic.topic) is None:
        return None
    kept = state.verified(link.name, topic.topic)
    now = grown(kept, link, topic, looked, now_ms())
    return None if now == kept or (kept is None and not now.ranges) else now
