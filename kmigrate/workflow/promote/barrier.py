"""Proves a topic's barrier: the barrier table, and the last check of both clusters before the flip.

In a promote the source is the written cluster and the target has the copy; in a rollback the other way round.

The table has the last sequence of each producer below the barrier, by the three witnesses of docs/promote.md. A
router's report counts only for a producer that brokers (V6) and log ends do not know, because the report may be old.
After a billion further records through another router the old sequence would look like the newer sequence.
The same holds for the marks of the flip before: a producer that has been silent since is in that table alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.leaders import refuse_unwitnessed, witnessed_ends
from kmigrate.cluster.log_probes import RecentBatches
from kmigrate.errors import KmigrateError, Refused
from kmigrate.model.barrier import barrier_chunks, merge_marks
from kmigrate.model.presences import RouterPresence
from kmigrate.model.record_json import Record
from kmigrate.model.records import BarrierRecord, PartitionBarrier, ProducerMark, TopicRecord
from kmigrate.model.routes import DIRECT_LIMIT, newest_gate, written_shift
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.net.retry import Backoff
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog

__all__ = ["BarrierTable", "FinalCheck", "LogEnds", "in_time"]

_LAST_ANSWER_S = 1.0
_RECENT_S = 0.1
"""Greatest age of log ends that count for a flip, in seconds."""
_Answer = TypeVar("_Answer")

_Marks = dict[int, tuple[ProducerMark, ...]]
"""Producer marks by partition."""
LogEnds = Mapping[tuple[str, int], LogOffset]
"""Log ends by topic and partition."""


async def in_time(asking: Coroutine[Any, Any, _Answer], client: ClusterClient, deadline: float) -> _Answer:
    """Return a cluster's answer; a cluster that is silent until the fence's deadline is refused by name.

    A request waits longer for its answer than writers may wait behind a fence. A question that is repeated until the
    deadline has time for its last answer.
    """
    try:
        async with asyncio.timeout(max(_LAST_ANSWER_S, deadline - monotonic())):
            return await asking
    except TimeoutError:
        what = f"cluster {client.settings.name} has not answered within the fence timeout"
        raise Refused("cluster-silent", what) from None


class BarrierTable:
    """Reads and writes the barrier table of one topic."""

    def __init__(self, log: StateLog, written: ClusterClient) -> None:
        self._log = log
        self._written = written
        self.recent = RecentBatches(written)
        """The producers found in the last batches of the written cluster's logs."""
        self._early: tuple[int, Mapping[int, PartitionBarrier], _Marks] | None = None
        """A fence, its barrier, and the marks that were read while the barrier's record was written."""

    async def read_early(self, record: TopicRecord, deadline: float) -> None:
        """Read the marks below a barrier whose record is being written, and keep the marks for `marks_of`."""
        self._early = record.newest_fence, record.newest_barrier, await self.read(record, deadline)

    async def marks_of(self, record: TopicRecord, deadline: float) -> _Marks:
        """Return the marks below a barrier that were read early, or marks that are read now."""
        early, self._early = self._early, None
        if early is not None and early[:2] == (record.newest_fence, record.newest_barrier):
            return early[2]
        return await self.read(record, deadline)

    async def read(self, record: TopicRecord, deadline: float) -> _Marks:
        """Return the producer marks below the barrier, which must be known; Refused for an open transaction."""
        ends = {
            (record.topic, partition): LogOffset(0, barrier.offset, barrier.leader_epoch)
            for partition, barrier in record.newest_barrier.items()
        }
        described, recent = await together(
            self._written.describe_producers(record.topic_partitions), self.recent.read_to(ends, deadline)
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
        back = record.at_target
        for chunk in barrier_chunks(record.link, record.topic, record.newest_fence, marks, back=back):

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
        shift = written_shift(link, record)
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
        stored_ids = {partition: {mark.producer_id for mark in found} for partition, found in marks.items()}
        for presence in self._log.alive(RouterPresence):
            ack = presence.fences.get(record.key)
            for partition, seen in ack.producers.items() if ack and ack.epoch == record.newest_fence else ():
                known = stored_ids.get(partition, set())
                marks.setdefault(partition, []).extend(mark for mark in seen if mark.producer_id not in known)
        for partition, former in newest_gate(self._log.state, record).items():
            known = {mark.producer_id for mark in marks.setdefault(partition, [])}
            marks[partition].extend(mark for mark in former if mark.producer_id not in known)
        return {p: merge_marks(found) for p, found in marks.items() if found}


@dataclass(frozen=True, slots=True)
class FinalCheck:
    """Checks that the written log still ends at the barrier, and that the copy's log ends there (rules B, C)."""

    topic: str
    written: ClusterClient
    """The cluster that took the writes before the fence: a promote's source, a rollback's target."""
    copy: ClusterClient

    async def refresh(self, deadline: float) -> None:
        await together(*(in_time(each.refresh([self.topic]), each, deadline) for each in (self.written, self.copy)))

    async def ends(self, record: TopicRecord, deadline: float) -> tuple[LogEnds, LogEnds]:
        """Return the log ends of both clusters; the written cluster's ends are confirmed by all replicas."""
        keys = record.topic_partitions
        return await together(
            in_time(witnessed_ends(self.written, keys), self.written, deadline),
            in_time(self.copy.log_ends(keys), self.copy, deadline),
        )

    async def run(
        self,
        record: TopicRecord,
        wanted: Callable[[], dict[int, int]],
        deadline: float,
        arrival: Coroutine[Any, Any, bool],
    ) -> dict[int, int] | None:
        """Return the copy's ends at the barrier; `wanted` returns by partition where the copy's log must end.

        The clusters are asked while `arrival` waits for the mirror; answers from long before the arrival do not count.
        Return None where `arrival` returns False.
        """
        asked = monotonic()
        ends, arrived = await together(self._early(record, deadline), arrival)
        if not arrived:
            return None
        if ends is None or monotonic() - asked > _RECENT_S:
            ends = await self._ask(record, deadline)
        self._refuse_partitions(record)
        tries = Backoff(0.005, within_s=deadline - monotonic())
        while True:
            written_ends, copy_ends = ends
            self._refuse_moved(record, written_ends)
            at_barrier = wanted()
            copy = "source" if record.at_target else "target"
            elsewhere = [
                f"the {copy}'s log of {topic}-{partition} ends at {end.offset}, not {at_barrier[partition]}"
                for (topic, partition), end in copy_ends.items()
                if end.error or end.offset != at_barrier[partition]
            ]
            if not elsewhere:
                return at_barrier
            await self.copy.refresh([self.topic])
            ref = "source-not-at-barrier" if record.at_target else "target-not-at-barrier"
            await tries.pause(Refused(ref, elsewhere[0]))
            ends = await self.ends(record, deadline)

    async def _ask(self, record: TopicRecord, deadline: float) -> tuple[LogEnds, LogEnds]:
        _, ends = await together(self.refresh(deadline), self.ends(record, deadline))
        return ends

    async def _early(self, record: TopicRecord, deadline: float) -> tuple[LogEnds, LogEnds] | None:
        """Return the log ends before the mirror's arrival is known; None for a failure, which does not count yet."""
        try:
            async with asyncio.timeout(_RECENT_S):
                return await self._ask(record, deadline)
        except (KmigrateError, TimeoutError):
            return None

    def _refuse_partitions(self, record: TopicRecord) -> None:
        """Refuse partitions added since the fence: they are not copied, and keys would change their partition."""
        for client in (self.written, self.copy):
            info = client.metadata.topics.get(self.topic)
            count = len(info.partitions) if info is not None else 0
            if count != record.partitions:
                raise Refused(
                    "partitions-changed",
                    f"topic {self.topic} has {count} partitions on {client.settings.name} and {record.partitions} "
                    "of it are mirrored",
                )

    def _refuse_moved(self, record: TopicRecord, ends: LogEnds) -> None:
        refuse_unwitnessed(self.written, ends)
        back = record.at_target
        accepted = not back and record.terms is not None and record.terms.accept_direct
        ref = "target-moved" if back else "source-moved"
        written = "target" if back else "source"
        for (topic, partition), end in ends.items():
            barrier = record.newest_barrier[partition]
            if end.error or end.leader_epoch != barrier.leader_epoch:
                raise Refused(ref, f"the {written}'s leader of {topic}-{partition} changed after the barrier")
            if end.offset < barrier.offset or (end.offset > barrier.offset and not accepted):
                raise Refused(
                    ref,
                    f"the {written} log of {topic}-{partition} grew from {barrier.offset} to {end.offset} although "
                    "every router is drained: somebody writes directly",
                )
