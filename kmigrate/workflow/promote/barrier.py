"""Proves a topic's barrier: the barrier table, and the last check of both clusters before the flip.

The table has the last sequence of each producer below the barrier, by the three witnesses of docs/promote.md. A
router's report counts only for a producer that brokers (V6) and log ends do not know, because the report may be old.
After a billion further records through another router the old sequence would look like the newer sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.leaders import refuse_unwitnessed, witnessed_ends
from kmigrate.cluster.log_probes import RecentBatches
from kmigrate.errors import Refused
from kmigrate.model.barrier import barrier_chunks, merge_marks
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import BarrierRecord, ProducerMark, TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT, id_shift
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog

__all__ = ["BarrierTable", "FinalCheck"]

_Marks = dict[int, tuple[ProducerMark, ...]]
"""Producer marks by partition."""
_Ends = Mapping[tuple[str, int], LogOffset]


class BarrierTable:
    """Reads and writes the barrier table of one topic."""

    def __init__(self, log: StateLog, source: ClusterClient) -> None:
        self._log = log
        self._source = source
        self.recent = RecentBatches(source)
        """The producers found in the last batches of the source's logs."""

    async def read(self, record: TopicRecord, deadline: float) -> _Marks:
        """Return the producer marks below the barrier, which must be known; Refused for an open transaction."""
        ends = {
            (record.topic, partition): LogOffset(0, barrier.offset, barrier.leader_epoch)
            for partition, barrier in record.barrier.items()
        }
        described, recent = await together(
            self._source.describe_producers(record.topic_partitions), self.recent.read_to(ends, deadline)
        )
        for (topic, partition), (error, producers) in described.items():
            if error:
                raise Refused("no-barrier", f"the producers of {topic}-{partition} cannot be read (error {error})")
            for producer in producers:
                if producer.txn_start_offset >= 0:
                    raise Refused(
                        "open-transaction",
                        f"producer id {producer.producer_id} has a transaction open on {topic}-{partition}",
                    )
        return self._marks(record, {key: producers for key, (_, producers) in described.items()}, recent)

    async def write(self, record: TopicRecord, marks: Mapping[int, tuple[ProducerMark, ...]]) -> None:
        """Write the table, which every router reads before the flip; later marks of the same fence say the same."""
        for chunk in barrier_chunks(record.link, record.topic, record.fence_epoch, marks):

            def decide(state: State, wanted: BarrierRecord = chunk) -> Record | None:
                return None if state.records.get(wanted.key) == wanted else wanted

            await self._log.append(decide)

    def _marks(
        self,
        record: TopicRecord,
        producers: Mapping[tuple[str, int], tuple[ProducerState, ...]],
        recent: Mapping[tuple[str, int], tuple[ProducerMark, ...]],
    ) -> _Marks:
        """Return the marks from routers, brokers and log ends, under the producer ids that clients know."""
        link = self._log.state.link(record.link)
        if link is None:
            raise Refused("no-barrier", f"link {record.link} is deleted")
        shift = id_shift(link.target.cluster_id, link.uuid, record.generation)
        marks: dict[int, list[ProducerMark]] = {p: [] for p in range(record.partitions)}
        stored = [
            (partition, state.producer_id, state.producer_epoch, state.last_sequence)
            for (_, partition), states in producers.items()
            for state in states
            if state.last_sequence >= 0
        ]
        stored += [
            (partition, mark.producer_id, mark.epoch, mark.last_sequence)
            for (_, partition), found in recent.items()
            for mark in found
        ]
        for partition, producer_id, epoch, last_sequence in stored:
            if 0 <= producer_id - shift < DIRECT_LIMIT:
                marks[partition].append(ProducerMark(producer_id - shift, epoch, last_sequence))
        at_source = {partition: {mark.producer_id for mark in found} for partition, found in marks.items()}
        for presence in self._log.alive(RouterPresence):
            ack = presence.fences.get(record.key)
            for partition, seen in ack.producers.items() if ack and ack.epoch == record.fence_epoch else ():
                known = at_source.get(partition, set())
                marks.setdefault(partition, []).extend(mark for mark in seen if mark.producer_id not in known)
        return {p: merge_marks(found) for p, found in marks.items() if found}


@dataclass(frozen=True, slots=True)
class FinalCheck:
    """Checks that the source's log still ends at the barrier, and that the target's log ends there (rules B, C)."""

    topic: str
    source: ClusterClient
    target: ClusterClient

    async def refresh(self) -> None:
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
        """Refuse partitions added since the fence: they are not copied, and keys would change their partition."""
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
