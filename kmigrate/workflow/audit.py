"""Positions of promoted groups as they stand now, against what was handed over to the target.

A group's members commit on the target from its promote on, so its positions there only grow unless somebody rewinds
them, and on the source nothing may move any more: who still commits there reads records that the group reads twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kmigrate.cluster.positions import CommittedOffset, read_positions
from kmigrate.model.lifecycle import GroupPhase
from kmigrate.model.offsetmap import OffsetMap
from kmigrate.model.records import GroupRecord, LinkRecord, TopicRecord
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.positions import Positions

__all__ = ["GroupAudit", "MovedPosition", "PositionFault", "audit_groups", "moved_positions"]

_Committed = Mapping[tuple[str, int], CommittedOffset]


class PositionFault(StrEnum):
    """What became of a position that should not have."""

    LOST = "lost"
    """The target has no position any more: its consumers begin where their settings say."""
    REWOUND = "rewound"
    """The target's is before what was handed over: somebody reads again, perhaps on purpose."""
    MOVED_ON_SOURCE = "moved on the source"
    """Somebody has committed on the source since."""


@dataclass(frozen=True, slots=True)
class MovedPosition:
    """One finding, in the target's offsets."""

    topic: str
    partition: int
    fault: PositionFault
    handed_over: int
    now: int
    """−1 where there is none, or where the source's has no place on the target yet."""


@dataclass(frozen=True, slots=True)
class GroupAudit:
    """One promoted group: how many positions were looked at, and what is wrong with which."""

    group: str
    positions: int
    findings: tuple[MovedPosition, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing was lost or read twice; a rewound position is told, and may be meant."""
        return all(finding.fault is PositionFault.REWOUND for finding in self.findings)


async def audit_groups(estate: Estate, link: LinkRecord, topics: Sequence[TopicRecord]) -> list[GroupAudit]:
    """The promoted groups of a link, as far as they read these topics."""
    groups = [g for g in estate.log.state.groups(link.name) if g.phase is GroupPhase.PROMOTED]
    if not groups:
        return []
    source, _ = await estate.source(link)
    places = Positions(estate.target, estate.log)
    read = {topic for group in groups for topic in group.written}
    maps = {record.topic: await places.maps(record) for record in topics if record.topic in read}
    starts = {record.topic: record.starts for record in topics}
    return [
        moved_positions(
            group,
            maps,
            starts,
            await read_positions(source, group.group, stable=False),
            await read_positions(estate.target, group.group, stable=False),
        )
        for group in groups
    ]


def moved_positions(
    group: GroupRecord,
    maps: Mapping[str, Mapping[int, OffsetMap]],
    starts: Mapping[str, Mapping[int, int]],
    on_source: _Committed,
    on_target: _Committed,
) -> GroupAudit:
    """Compare what was written at the promote with both clusters' positions; `starts` are first mirrored offsets."""
    findings: list[MovedPosition] = []
    looked_at = 0
    for topic, handed in sorted(group.written.items()):
        for partition, offset in sorted(handed.items()):
            if topic not in maps:
                continue
            looked_at += 1
            now = on_target.get((topic, partition))
            if now is None:
                findings.append(MovedPosition(topic, partition, PositionFault.LOST, offset, -1))
            elif now.offset < offset:
                findings.append(MovedPosition(topic, partition, PositionFault.REWOUND, offset, now.offset))
            theirs = on_source.get((topic, partition))
            if theirs is None:
                continue  # it has expired there, as it may
            place = maps[topic][partition].to_target(max(theirs.offset, starts[topic].get(partition, 0)))
            if place is None or place.offset > offset:
                at = place.offset if place is not None else -1
                findings.append(MovedPosition(topic, partition, PositionFault.MOVED_ON_SOURCE, offset, at))
    return GroupAudit(group.group, looked_at, tuple(findings))
