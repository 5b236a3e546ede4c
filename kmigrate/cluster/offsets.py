"""ListOffsets requests about partitions' logs, and their responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kmigrate.model.ids import LARGEST
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.codes import code_of

__all__ = ["FIRST_WITH_LARGEST", "LogOffset", "ask_for_offsets", "offsets_told"]

FIRST_WITH_LARGEST = 7


@dataclass(frozen=True, slots=True)
class LogOffset:
    """ListOffsets answer for a partition; offset −1 if no record matches a timestamp."""

    error: int
    offset: int
    leader_epoch: int
    timestamp: int = -1
    """The record's time, if the request looked for a record by time."""


def ask_for_offsets(
    wanted: Mapping[tuple[str, int], int],
    epochs: Mapping[tuple[str, int], int],
    *,
    replica_id: int,
    read_committed: bool,
) -> Any:
    """Return a request with a timestamp per partition, and with the leader epoch of partitions in `epochs`."""
    request = entity(ApiKey.LIST_OFFSETS, FIRST_WITH_LARGEST if LARGEST in wanted.values() else 5, "request")
    topic_type = element_type(request, "topics")
    part_type = element_type(topic_type, "partitions")
    topics: dict[str, list[Any]] = {}
    for (topic, partition), timestamp in wanted.items():
        epoch = epochs.get((topic, partition), -1)
        part = part_type(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
        topics.setdefault(topic, []).append(part)
    return request(
        replica_id=replica_id,
        isolation_level=1 if read_committed else 0,
        topics=tuple(topic_type(name=t, partitions=tuple(p)) for t, p in topics.items()),
    )


def offsets_told(answer: Any) -> dict[tuple[str, int], LogOffset]:
    return {
        (str(topic.name), int(part.partition_index)): LogOffset(
            code_of(part.error_code), int(part.offset), int(part.leader_epoch), int(part.timestamp)
        )
        for topic in answer.topics
        for part in topic.partitions
    }
