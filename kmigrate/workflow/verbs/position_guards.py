"""Names the positions that the handover of a group would move, for the plan of its promote (see `handover`)."""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import CommittedOffset, read_positions
from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.records import LinkRecord, TopicRecord
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.offset_maps import Positions
from kmigrate.workflow.base.plan import Finding, warn
from kmigrate.workflow.groups.handover import ByPartition, Wanted, read_again, unread

__all__ = ["moved_positions_guards"]


async def moved_positions_guards(
    connections: Connections, link: LinkRecord, source: ClusterClient, group: str
) -> list[Finding]:
    """Return warnings by topic: none of them is a fault of the copy, and a person may want each."""
    records = {r.topic: r for r in connections.log.state.topics(link.name) if r.phase not in NOT_COPIED_YET}
    committed = await read_positions(source, group, stable=False)
    positions = {key: at for key, at in committed.items() if key[0] in records}
    before = await unread(source, positions, {topic: record.starts for topic, record in records.items()})
    on_target = await read_positions(connections.target, group, stable=False)
    both = {key: at for key, at in positions.items() if key in on_target}
    again = read_again(await _translated(connections, records, both), on_target)
    return [
        warn(
            "position-before-copy",
            f"group {group} has {count} of {topic} to read that are not copied: they lie before its first mirrored "
            "offset, from which the group reads on",
            "let it read them on the source first",
        )
        for topic, count in _counted(before)
    ] + [
        warn(
            "position-on-target",
            f"group {group} has read {count} of {topic} on the target already, beyond its positions on the source: it "
            "reads them again",
            "where the target's positions are the right ones: set the source's to them first",
        )
        for topic, count in _counted(again)
    ]


async def _translated(
    connections: Connections, records: Mapping[str, TopicRecord], positions: Mapping[tuple[str, int], CommittedOffset]
) -> Wanted:
    """Return the positions on the target; positions that the copy has not reached are left out."""
    translation = Positions(connections.target, connections.log)
    maps = {topic: await translation.maps(records[topic]) for topic in sorted({topic for topic, _ in positions})}
    found: Wanted = {}
    for (topic, partition), at in positions.items():
        made = maps[topic].get(partition)  # None for a partition that is not mirrored yet
        position = made.to_target(max(at.offset, records[topic].starts.get(partition, 0))) if made is not None else None
        if position is not None:
            found[topic, partition] = CommittedOffset(position.offset, at.metadata)
    return found


def _counted(found: ByPartition) -> list[tuple[str, str]]:
    """Return by topic the number of records, and their partitions, in words."""
    return [
        (topic, f"up to {sum(counts.values()):,} records (partition {', '.join(map(str, counts))})")
        for topic, counts in found.items()
    ]
