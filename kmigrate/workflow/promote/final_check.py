"""Asks both clusters once more before a topic's flip: rules B and C of `promote.topic`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.leaders import refuse_unwitnessed, witnessed_ends
from kmigrate.errors import Refused
from kmigrate.model.records import TopicRecord
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together

__all__ = ["FinalCheck"]

_Ends = Mapping[tuple[str, int], LogOffset]


@dataclass(frozen=True, slots=True)
class FinalCheck:
    """Checks that the source's log still ends at the barrier, and that the target's log ends there, too."""

    topic: str
    source: ClusterClient
    target: ClusterClient

    async def refresh(self) -> None:
        """Refresh the partitions and leaders of the topic on both clusters."""
        await together(self.source.refresh([self.topic]), self.target.refresh([self.topic]))

    async def ends(self, record: TopicRecord) -> tuple[_Ends, _Ends]:
        """Return the log ends of source and target; the source's ends are confirmed by all replicas."""
        keys = record.topic_partitions
        return await together(witnessed_ends(self.source, keys), self.target.log_ends(keys))

    async def run(self, record: TopicRecord, wanted: Callable[[], dict[int, int]], deadline: float) -> dict[int, int]:
        """Return the target's ends at the barrier; `wanted` returns by partition where the target's log must end."""
        tries = Backoff(0.005, within_s=deadline - monotonic())
        _, ends = await together(self.refresh(), self.ends(record))
        self._refuse_partitions(record)
        while True:
            source_ends, target_ends = ends
            self._refuse_moved(record, source_ends)
            at_barrier = wanted()
            elsewhere = [
                f"the target's log of {topic}-{partition} ends at {end.offset}, not {at_barrier[partition]}"
                for (topic, partition), end in target_ends.items()
                if end.error or end.offset != at_barrier[partition]
            ]
            if not elsewhere:
                return at_barrier
            await self.target.refresh([self.topic])
            await tries.pause(Refused("target-not-at-barrier", elsewhere[0]))
            ends = await self.ends(record)

    def _refuse_partitions(self, record: TopicRecord) -> None:
        """Refuse partitions that were added since the fence.

        Such partitions are not copied, and keys would change their partition at the flip.
        """
        for client in (self.source, self.target):
            info = client.metadata.topics.get(self.topic)
            count = len(info.partitions) if info is not None else 0
            if count != record.partitions:
                raise Refused(
                    "partitions-changed",
                    f"topic {self.topic} has {count} partitions on {client.settings.name} and {record.partitions} "
                    "of it are mirrored",
                )

    def _refuse_moved(self, record: TopicRecord, ends: _Ends) -> None:
        refuse_unwitnessed(self.source, ends)
        accepted = record.terms is not None and record.terms.accept_direct
        for (topic, partition), end in ends.items():
            barrier = record.barrier[partition]
            if end.error or end.leader_epoch != barrier.leader_epoch:
                raise Refused("source-moved", f"the source's leader of {topic}-{partition} changed after the barrier")
            if end.offset < barrier.offset or (end.offset > barrier.offset and not accepted):
                raise Refused(
                    "source-moved",
                    f"the source log of {topic}-{partition} grew from {barrier.offset} to {end.offset} although "
                    "every router is drained: somebody writes directly",
                )
