"""Records that a group has read and that the target does not hold yet: a promote of the group waits for these.

The handover itself waits for a short time only, because the group's members wait meanwhile (`handover`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kmigrate.cluster.committed_offsets import read_all_positions
from kmigrate.cluster.coordinators import all_answered
from kmigrate.model.lifecycle import NOT_COPIED_YET, GroupPhase, TopicPhase
from kmigrate.model.records import LinkRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions

__all__ = ["Uncopied", "uncopied"]


@dataclass(frozen=True, slots=True)
class Uncopied:
    """A partition in which a group has read records that the copy lacks."""

    group: str
    topic: str
    partition: int
    phase: TopicPhase
    read_to: int
    """The group's committed offset on the source."""
    copied_to: int | None
    """The source offset up to which the target holds the partition; None before the copy has begun."""

    @property
    def left(self) -> int | None:
        """The number of missing records, at most; None before the copy has begun."""
        return None if self.copied_to is None else self.read_to - self.copied_to

    def __str__(self) -> str:
        where = f"group {self.group} has read {self.topic}-{self.partition} up to offset {self.read_to:,}"
        if self.left is None:
            return f"{where}, and the copy of {self.topic} has not begun: the topic is {self.phase}"
        return f"{where}, and the copy holds it up to {self.copied_to:,}: {self.left:,} left"


async def uncopied(
    connections: Connections, link: LinkRecord, groups: Sequence[str], positions: Positions
) -> list[Uncopied]:
    """Return the partitions whose copy lacks records that these groups have read; topics without a copy come first.

    A group whose promote is under way, or over, has nothing to wait for. A caller that looks again passes the same
    `positions`, which read on in the map topic.
    """
    source, _ = await connections.source(link)
    records = {record.topic: record for record in connections.log.state.topics(link.name)}
    covered: dict[str, dict[int, int]] = {}
    found: list[Uncopied] = []
    registered = filter(None, (connections.log.state.group(link.name, group) for group in groups))
    waiting = [record.group for record in registered if record.phase is GroupPhase.MIRRORED]
    for group, committed in all_answered(await read_all_positions(source, waiting)).items():
        for (topic, partition), at in sorted(committed.items()):
            record = records.get(topic)
            if record is None:
                continue
            early = record.phase in NOT_COPIED_YET
            if not early and topic not in covered:
                covered[topic] = {p: made.covered for p, made in (await positions.maps(record)).items()}
            copied_to = None if early else covered[topic].get(partition, 0)
            if copied_to is None or copied_to < max(at.offset, record.starts.get(partition, 0)):
                found.append(Uncopied(group, topic, partition, record.phase, at.offset, copied_to))
    return sorted(found, key=lambda each: each.left is not None)
