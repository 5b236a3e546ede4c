"""The barrier table: the last sequence of each producer below a topic's barrier, from three kinds of evidence.

The source's brokers and the ends of the source's logs are exact about a producer. A router's report counts only for a
producer that neither of them knows. The acknowledgement that a router saw may be old, because the producer may have
moved to another router since. After a billion further records the old sequence would look like the newer sequence.

The log end is read because a broker may have forgotten producers whose records are old (V6). The router that saw their
acknowledgements may be dead. The log end is read before the fence; behind the fence only the new records are read.
"""

from __future__ import annotations

from collections.abc import Mapping

from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.log_probes import RecentBatches
from kmigrate.errors import Refused
from kmigrate.model.barrier import barrier_chunks, merge_marks
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import BarrierRecord, ProducerMark, TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT, id_shift
from kmigrate.model.state import State
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog

__all__ = ["BarrierTable"]

_Marks = dict[int, tuple[ProducerMark, ...]]
"""Producer marks by partition."""


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
