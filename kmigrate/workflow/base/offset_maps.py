"""Builds offset maps for everything that carries a position over: groups, the command line, files outside Kafka.

A map is built from three reads in this order, so that no record falls between them: what the mirror reports as
acknowledged, the end of the target's log, and the runs in the map topic. A run is stored before its first batch.
"""

from __future__ import annotations

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused, Unreachable
from kmigrate.model.lifecycle import NOT_COPIED_YET
from kmigrate.model.offset_map import OffsetMap
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import TopicRecord
from kmigrate.model.sharing import progress_of
from kmigrate.protocol.codes import row
from kmigrate.state.log import StateLog
from kmigrate.state.offset_maps import OffsetMaps

__all__ = ["Positions"]


class Positions:
    """The current offset maps of mirrored topics on one target."""

    def __init__(self, target: ClusterClient, log: StateLog) -> None:
        self._target = target
        self._log = log
        self._maps = OffsetMaps(target)

    async def maps(self, record: TopicRecord) -> dict[int, OffsetMap]:
        """Return the map of each partition; raises Refused where the topic's mirror has not begun.

        Identical offsets beyond a promoted topic's barrier stay, for groups that follow (`readers.read_logs`).
        """
        if record.phase in NOT_COPIED_YET:
            raise Refused(
                "not-mirroring",
                f"topic {record.topic} is {record.phase}: it has no offsets on the target yet",
                still_true="nothing was changed",
                next_step="kmigrate status --watch",
            )
        progress = progress_of(self._log.state, record, self._log.alive(MirrorPresence))
        await self._target.refresh([record.topic])
        ends: dict[int, int] = {}
        for (topic, partition), end in (await self._target.log_ends(record.topic_partitions)).items():
            if end.error:
                raise Unreachable("no-log-end", f"{topic}-{partition}: {row(end.error).name}")
            ends[partition] = end.offset
        if not record.mapped:
            return {p: OffsetMap.identity(record.starts.get(p, 0), end) for p, end in ends.items()}
        await self._maps.read_to_end()
        return {p: self._mapped(record, p, ends[p], progress.get(p)) for p in sorted(ends)}

    async def up_to_barrier(self, record: TopicRecord) -> dict[int, OffsetMap]:
        """Return the maps up to each barrier: beyond, neither log has the records of the other log."""
        made = await self.maps(record)
        if not record.mapped:
            for partition, barrier in record.barrier.items():
                made[partition].cut(barrier.offset)
        return made

    def _mapped(self, record: TopicRecord, partition: int, end: int, seen: PartitionProgress | None) -> OffsetMap:
        link = self._log.state.link(record.link)
        uuid = link.uuid if link is not None else ""
        begins = record.target_starts[partition]
        made = self._maps.folded(uuid, record.topic, partition, record.target_topic_id, begins)
        made.begin(record.starts[partition], begins)
        made.close(min(end, record.target_ends.get(partition, end)))
        if record.at_target and partition in record.barrier:
            made.cover(record.barrier[partition].offset)
        elif seen is not None and seen.target_position >= 0:
            # The mirror may still have to judge the records behind the position that the mirror reports.
            made.close(min(made.target_end, seen.target_position))
            made.cover(seen.position)
        return made
