"""Compares the current positions of promoted groups with the positions that were handed over to the target.

From the promote on, members commit on the target: positions there only grow, unless somebody rewinds them.
On the source no position may move any more: a consumer there reads records that the group reads again on the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.cluster.committed_offsets import CommittedOffset, read_all_positions
from kmigrate.cluster.coordinators import all_answered
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions

__all__ = ["GroupAudit", "MovedPosition", "PositionFault", "audit_groups", "moved_positions"]

_Committed = Mapping[tuple[str, int], CommittedOffset]


class PositionFault(StrEnum):
    """The ways in which a position may differ from the position that was handed over."""

    LOST = "lost"
    """No position on the target any more: consumers begin where their settings say."""
    REWOUND = "rewound"
    """A position on the target before the position that was handed over: records are read again, perhaps on purpose."""
    MOVED_ON_SOURCE = "moved on the source"
    """A commit on the source since the handover."""


@dataclass(frozen=True, slots=True)
class MovedPosition:
    """One finding about one partition, in offsets of the target."""

    topic: str
    partition: int
    fault: PositionFault
    handed_over: int
    now: int
    """The position now; −1 for no position, or for a source position that has no place on the target yet."""


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """The result for one promoted group: the number of compared positions, and the findings."""

    group: str
    positions: int
    findings: tuple[MovedPosition, ...]

    @property
    def sound(self) -> bool:
        """True if no position was lost or moved on the source; a rewound position is reported, and may be meant."""
        return all(finding.fault is PositionFault.REWOUND for finding in self.findings)


async def audit_groups(connections: Connections, link: LinkRecord, topics: Sequence[TopicRecord]) -> list[GroupAudit]:
    """Compare the positions of a link's promoted groups, as far as the groups read these topics."""
    groups = [g for g in connections.log.state.groups(link.name) if g.phase is GroupPhase.PROMOTED]
    if not groups:
        return []
    source, _ = await connections.source(link)
    positions = Positions(connections.target, connections.log)
    read = {topic for group in groups for topic in group.written}
    maps = {record.topic: await positions.maps(record) for record in topics if record.topic in read}
    starts = {record.topic: record.starts for record in topics}
    names = [group.group for group in groups]
    on_source = all_answered(await read_all_positions(source, names))
    on_target = all_answered(await read_all_positions(connections.target, names))
    return [moved_positions(group, maps, starts, on_source[group.group], on_target[group.group]) for group in groups]


def moved_positions(
    group: GroupRecord,
    maps: Mapping[str, Mapping[int, OffsetMap]],
    starts: Mapping[str, Mapping[int, int]],
    on_source: _Committed,
    on_target: _Committed,
) -> GroupAudit:
    """Compare the positions of the promote with both clusters' positions; `starts` are first mirrored offsets."""
    handed = [
        (topic, partition, offset)
        for topic, offsets in sorted(group.written.items())
        for partition, offset in sorted(offsets.items())
        if topic in maps
    ]
    findings: list[MovedPosition] = []
    for topic, partition, offset in handed:
        now = on_target.get((topic, partition))
        if now is None:
            findings.append(MovedPosition(topic, partition, PositionFault.LOST, offset, -1))
        elif now.offset < offset:
            findings.append(MovedPosition(topic, partition, PositionFault.REWOUND, offset, now.offset))
        committed = on_source.get((topic, partition))
        if committed is None:
            continue  # the position has expired on the source, which is allowed
        moved = maps[topic][partition].to_target(max(committed.offset, starts[topic].get(partition, 0)))
        if moved is None or moved.offset > offset:
            at = moved.offset if moved is not None else -1
            findings.append(MovedPosition(topic, partition, PositionFault.MOVED_ON_SOURCE, offset, at))
    return GroupAudit(group.group, len(handed), tuple(findings))
