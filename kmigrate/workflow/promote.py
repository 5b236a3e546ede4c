"""Promotes one topic: fence, drain, barrier, lag zero, flip; or goes back to mirroring with a reason.

Each step waits for facts and writes one record; nothing is remembered between steps but what the state log
says, so a controller that dies is replaced by one that reads on. Lettered rules:

A  The fence is left only by a record (flip or un-fence), never by a timer of a router.
B  The barrier is read after the drain, and after the markers of routed transactions: the source's log end (replica_id
   −2, V1). The producers are read after it, and
   the end must be the same once more after that (C), so that no mark is newer than the barrier.
C  The flip needs the word of each partition's owner that it stopped exactly at the barrier of this fence, and the
   target's log end equal to it (where offsets are mapped: to what the barrier is there), and the source's log end and
   leader epoch still the same.
D  Any deadline or guard before the flip un-fences; after the flip there is no way but forward.
E  The topic's rules on writing are in force on every broker of the target before the flip (MM-31). They are in the
   record before they are put there, so that the mirror takes them back after an un-fence. Configs come after the
   flip: retention must not begin while there is a way back. An `unsettled` record says that they are still to come.
F  Topics that transactions couple are fenced only when all of them are to be promoted, and flipped only when all stand
   at their barriers: their records follow each other at once, and no transaction begins in between (`router`).
   A group whose positions these transactions commit is handed over before the fence, and opens after the flip.
G  A router that does not acknowledge the fence because it is silent, or left without a word, is overcome by a seal that
   the source broker holds (`sealing`): put on and proven after the others have drained, before the barrier is read.
H  The end of the source's log has a say in the barrier table: the broker may have forgotten producers whose records are
   old (V6), and who else saw their acknowledgements may be dead. It is read before the fence, and behind the fence only
   what has come since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import LATEST, ClusterClient, LogOffset, ProducerState
from kmigrate.cluster.recent import RecentBatches
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.barrier import barrier_chunks, merge_marks
from kmigrate.model.lifecycle import TopicEvent, TopicPhase, advance_topic
from kmigrate.model.records import (
    BarrierRecord,
    MirrorPresence,
    PartitionBarrier,
    PartitionProgress,
    ProducerMark,
    PromoteTerms,
    Record,
    RouterPresence,
    TopicRecord,
    topic_key,
)
from kmigrate.model.routes import DIRECT_LIMIT, id_shift
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.readers import refuse_readers
from kmigrate.workflow.sealing import Sealer, may_come_off, transactional
from kmigrate.workflow.settling import put_in_force, settle, with_promote_rules
from kmigrate.workflow.stragglers import direct_writers
from kmigrate.workflow.transactions import (
    coupled_records,
    not_asked_for,
    not_staged,
    refuse_lost_ids,
    wait_for_ends,
    wait_for_unit,
)

__all__ = ["TopicPromotion"]

_Ends = Mapping[tuple[str, int], LogOffset]


@dataclass(slots=True)
class TopicPromotion:
    """Drives one topic from promote-pending to promoted."""

    link: str
    topic: str
    log: StateLog
    source: ClusterClient
    target: ClusterClient
    source_admin: Admin
    target_admin: Admin
    sealer: Sealer
    straggler_window_s: float = 5.0
    ready: set[tuple[str, str]] = field(default_factory=set)
    """Topics that only wait for the others of their unit, by link; shared by all promotes of a controller (F)."""
    pending: set[tuple[str, str]] = field(default_factory=set)
    """The same before the fence: topics that only wait until their groups are handed over."""
    waits: dict[str, str] = field(default_factory=dict)
    """What each topic waits for, by its record's key; shared by all promotes of a controller, which tells of it."""
    recent: RecentBatches = field(init=False)
    """What the ends of the source's logs say of its producers (H)."""

    def __post_init__(self) -> None:
        self.recent = RecentBatches(self.source)

    async def run(self) -> None:
        """Go on from whatever phase the state log shows; un-fence on failure before the flip (D)."""
        try:
            while (record := self._record()) is not None:
                if may_come_off(self.log, record):
                    await self.sealer.take_off(record)
                    continue
                match record.phase:
                    case TopicPhase.PROMOTE_PENDING:
                        await self._pending(record)
                    case TopicPhase.FENCING:
                        await self._fencing(record)
                    case TopicPhase.FENCED:
                        await self._fenced(record)
                    case TopicPhase.PROMOTED if record.unsettled:
                        await settle(record, self.log, self.target_admin)
                    case _:
                        return
        except KmigrateError as error:
            await self._unfence(error)
        finally:
            self.ready.discard((self.link, self.topic))
            self.pending.discard((self.link, self.topic))
            self.waits.pop(topic_key(self.link, self.topic), None)

    # facts

    def _record(self) -> TopicRecord | None:
        return self.log.state.topic(self.link, self.topic)

    def _terms(self, record: TopicRecord) -> PromoteTerms:
        return record.terms or PromoteTerms(asked_ms=now_ms())

    def _progress(self, record: TopicRecord) -> Mapping[int, PartitionProgress]:
        """Each partition in its present owner's words, given after it had read of this fence (rule C)."""
        fence = record.fence_epoch if record.phase is not TopicPhase.PROMOTE_PENDING else -1
        return progress_of(self.log.state, record, self.log.alive(MirrorPresence), applied=fence)

    def _keys(self, record: TopicRecord) -> list[tuple[str, int]]:
        return [(self.topic, p) for p in range(record.partitions)]

    def _waits_for(self, record: TopicRecord, why: str | None) -> bool | None:
        """Tell what is waited for; True where nothing is."""
        if why:
            self.waits[record.key] = why
            return None
        self.waits.pop(record.key, None)
        return True

    async def _advance(self, record: TopicRecord, event: TopicEvent, changed: TopicRecord) -> None:
        """Write the next phase, unless the record has changed since it was looked at."""

        def decide(state: State) -> Record | None:
            if state.topic(self.link, self.topic) != record:
                return None
            phase = advance_topic(record.phase, event)
            epoch = state.epoch + 1 if event is TopicEvent.FENCE else changed.fence_epoch
            flipped = event is TopicEvent.FLIP
            return replace(changed, phase=phase, since_ms=now_ms(), fence_epoch=epoch, unsettled=flipped)

        await self.log.append(decide)

    # promote-pending

    async def _pending(self, record: TopicRecord) -> None:
        terms = self._terms(record)

        def ready(state: State) -> bool | None:
            why = self._why_not_ready(record, terms)
            if why is None:
                self.pending.add((self.link, self.topic))
            else:
                self.pending.discard((self.link, self.topic))
            return self._waits_for(record, why or not_staged(state, record))

        try:
            await self.log.wait(ready, terms.pending_timeout_s, "the mirror and the routers")
        except WaitTimedOut as late:
            why = self._why_not_ready(record, terms) or not_staged(self.log.state, record) or late.what
            raise Refused("not-ready", f"{record.topic} was not ready to be fenced: {why}") from late
        found = await direct_writers(self.log, self.source, record, self.straggler_window_s)
        if found:
            raise Refused("direct-writers", "; ".join(found))
        await refuse_lost_ids(self.log.state, self.source, self.target, record)
        await refuse_readers(self.log.state, self.link, self.topic, self.source_admin)
        await self._rehearse(record)
        await self._advance(record, TopicEvent.FENCE, replace(record, fenced_ms=now_ms()))

    async def _rehearse(self, record: TopicRecord) -> None:
        """Ask once what will be asked behind the fence, so that connections are open and code is loaded by then."""
        questions = together(self._both_ends(record), self.source.describe_producers(self._keys(record)))
        await together(self._refreshed(), questions)
        ends = await self.source.list_offsets(dict.fromkeys(self._keys(record), LATEST))
        readable = {key: end for key, end in ends.items() if not end.error}
        await self.recent.read_to(readable, self._deadline(record))

    def _why_not_ready(self, record: TopicRecord, terms: PromoteTerms) -> str | None:
        progress = self._progress(record)
        for partition in range(record.partitions):
            seen = progress.get(partition)
            if seen is None:
                return f"no running mirror reports partition {partition}"
            if seen.problem:
                return f"partition {partition} has stopped: {seen.problem}"
            if seen.source_end < 0 or seen.source_end - seen.position > terms.lag_threshold:
                return f"partition {partition} is {max(0, seen.source_end - seen.position)} records behind"
        return self._not_upkept(record) or not_asked_for(self.log.state, record) or self._silent_router(record)

    def _not_upkept(self, record: TopicRecord) -> str | None:
        """The mirror must have compared partitions, configs and rules since this promote was asked for."""
        for presence in self.log.alive(MirrorPresence):
            word = presence.upkeep.get(self.topic) if presence.link == self.link else None
            if word is not None and word.since_ms == record.since_ms:
                return f"the target does not follow the source: {word.problem}" if word.problem else None
        return "the mirror has not compared its partitions, configs and ACLs with the source yet"

    def _silent_router(self, record: TopicRecord) -> str | None:
        """A router that cannot acknowledge a fence, and that no seal overcomes, or not yet (rule G)."""
        alive = {p.instance for p in self.log.alive(RouterPresence)}
        for router in self.log.state.routers():
            if router.instance not in alive and not self.sealer.given_up(router.instance):
                return f"router {router.name} on {router.host} is registered but silent"
        return self._unsealable(record, self.sealer.unheard(record))

    def _unsealable(self, record: TopicRecord, unheard: Mapping[str, str]) -> str | None:
        if not unheard or not transactional(self.log.state, record):
            return None
        names = sorted(set(unheard.values()))
        return (
            f"nobody hears of router {', '.join(names)}, and {record.topic} is written in transactions, so that it "
            f"cannot be sealed in its place: start it again, or, if its process has surely ended: "
            f"kmigrate router forget {names[0]} --dead"
        )

    # fencing

    async def _fencing(self, record: TopicRecord) -> None:
        deadline = self._deadline(record)

        def drained(state: State) -> bool | None:
            return self._waits_for(record, self._undrained(state, record))

        try:
            await self.log.wait(drained, max(0.0, deadline - monotonic()), "every router to drain")
        except WaitTimedOut as late:
            raise Refused(
                "not-drained", f"{self._undrained(self.log.state, record) or late.what} within the fence timeout"
            ) from late
        await wait_for_ends(self.log.state, self.source, record, deadline)
        unheard = self.sealer.unheard(record)
        if unheard or record.seal is not None:
            why = self._unsealable(record, unheard)
            if why is not None:
                raise Refused("not-drained", why)
            if not await self.sealer.put_on(record, unheard, deadline):
                return
        ends, granted = await together(self._ends(record, deadline), with_promote_rules(record, self.target))
        barrier = {p: PartitionBarrier(end.offset, end.leader_epoch) for (_, p), end in ends.items()}
        await self._advance(record, TopicEvent.BARRIER, replace(record, barrier=barrier, granted_acls=granted))

    def _deadline(self, record: TopicRecord) -> float:
        """When this fence is given up, on our monotonic clock: a new controller gives it a full span again."""
        return monotonic() + self._terms(record).fence_timeout_s

    def _undrained(self, state: State, record: TopicRecord) -> str | None:
        presence = {p.instance: p for p in self.log.alive(RouterPresence)}
        for router in state.routers():
            told = presence.get(router.instance)
            ack = told.fences.get(record.key) if told else None
            if told is None and self.sealer.given_up(router.instance):
                continue  # overcome by a seal (rule G)
            if ack is None or ack.epoch != record.fence_epoch:
                return f"router {router.name} on {router.host} has not acknowledged the fence"
            if ack.in_flight:
                return f"router {router.name} still waits for {ack.in_flight} answer(s) of the source or transaction(s)"
        return None

    async def _ends(self, record: TopicRecord, deadline: float) -> dict[tuple[str, int], LogOffset]:
        """The source's log ends after the drain (rule B); read again while a leader is away."""
        while True:
            ends = await self.source.log_ends(self._keys(record))
            away = [f"{topic}-{partition}" for (topic, partition), end in ends.items() if end.error]
            if not away:
                return ends
            if monotonic() > deadline:
                raise Refused("no-barrier", f"the log end of {', '.join(away)} cannot be read")
            await self.source.refresh([self.topic])
            await sleep(0.01)

    async def _read_marks(self, record: TopicRecord) -> dict[int, tuple[ProducerMark, ...]]:
        """The barrier table, read once the barrier stands (rule B)."""
        ends = {
            (self.topic, partition): LogOffset(0, barrier.offset, barrier.leader_epoch)
            for partition, barrier in record.barrier.items()
        }
        told, recent = await together(
            self.source.describe_producers(self._keys(record)), self.recent.read_to(ends, self._deadline(record))
        )
        for (topic, partition), (error, producers) in told.items():
            if error:
                raise Refused("no-barrier", f"the producers of {topic}-{partition} cannot be read (error {error})")
            for producer in producers:
                if producer.txn_start_offset >= 0:
                    raise Refused(
                        "open-transaction",
                        f"producer id {producer.producer_id} has a transaction open on {topic}-{partition}",
                    )
        return self._marks(record, {key: producers for key, (_, producers) in told.items()}, recent)

    async def _write_marks(self, record: TopicRecord, marks: Mapping[int, tuple[ProducerMark, ...]]) -> None:
        """Put the barrier table into the state log, where every router reads it before the flip.

        A new controller may write it again: later marks of the same fence say the same.
        """
        for chunk in barrier_chunks(self.link, self.topic, record.fence_epoch, marks):

            def decide(state: State, wanted: BarrierRecord = chunk) -> Record | None:
                return None if state.records.get(wanted.key) == wanted else wanted

            await self.log.append(decide)

    def _marks(
        self,
        record: TopicRecord,
        producers: Mapping[tuple[str, int], tuple[ProducerState, ...]],
        recent: Mapping[tuple[str, int], tuple[ProducerMark, ...]],
    ) -> dict[int, tuple[ProducerMark, ...]]:
        """Marks by partition from routers, broker and log, in the ids that clients know."""
        link = self.log.state.link(self.link)
        assert link is not None
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
        for presence in self.log.alive(RouterPresence):
            ack = presence.fences.get(record.key)
            if ack is not None and ack.epoch == record.fence_epoch:
                for partition, seen in ack.producers.items():
                    marks.setdefault(partition, []).extend(seen)
        return {p: merge_marks(found) for p, found in marks.items() if found}

    # fenced

    async def _fenced(self, record: TopicRecord) -> None:
        deadline = self._deadline(record)

        def arrived(_: State) -> bool | None:
            return self._waits_for(record, self._not_arrived(record))

        async def arrival() -> None:
            try:
                await self.log.wait(arrived, max(0.0, deadline - monotonic()), "the mirror to reach the barrier")
            except WaitTimedOut as late:
                raise Refused("barrier-not-reached", self._not_arrived(record) or late.what) from late

        rules = put_in_force(record, self.target, self.target_admin, deadline)
        _, (marks, _) = await together(arrival(), together(self._read_marks(record), rules))
        # Writers wait: what is asked once more must follow the reading of the marks (B), not their writing.
        ends, _ = await together(self._prove(record, deadline), self._write_marks(record, marks))
        if coupled_records(self.log.state, record):
            self.ready.add((self.link, self.topic))
            await wait_for_unit(self.log, record, self.ready, deadline)
            ends = await self._prove(record, deadline)
        against = not_staged(self.log.state, record)
        if against is not None:
            raise Refused("coupled-group", against)
        flipped = replace(record, promoted_ms=now_ms(), reason="", target_ends=ends if record.mapped else {})
        await self._advance(record, TopicEvent.FLIP, flipped)

    def _not_arrived(self, record: TopicRecord) -> str | None:
        progress = self._progress(record)
        for partition, barrier in record.barrier.items():
            seen = progress.get(partition)
            if seen is None:
                return f"no running mirror reports partition {partition}"
            if seen.problem:
                return f"partition {partition} has stopped: {seen.problem}"
            if seen.at_barrier != barrier.offset:
                return f"waiting: mirror at {seen.position} of barrier {barrier.offset}, partition {partition}"
        return None

    def _target_ends(self, record: TopicRecord) -> dict[int, int]:
        """Where the target's logs must end now: at the barrier, by the mirror's own word where offsets are mapped."""
        if not record.mapped:
            return {p: barrier.offset for p, barrier in record.barrier.items()}
        progress = self._progress(record)
        return {
            p: seen.target_position if (seen := progress.get(p)) and seen.at_barrier == barrier.offset else -1
            for p, barrier in record.barrier.items()
        }

    async def _prove(self, record: TopicRecord, deadline: float) -> dict[int, int]:
        """Rules B and C: ask both clusters themselves; the target's ends, which are the barrier there."""
        _, ends = await together(self._refreshed(), self._both_ends(record))
        self._refuse_partitions(record)
        while True:
            source_ends, target_ends = ends
            self._refuse_moved(record, source_ends)
            wanted = self._target_ends(record)
            behind = [
                f"the target's log of {topic}-{partition} ends at {end.offset}, not {wanted[partition]}"
                for (topic, partition), end in target_ends.items()
                if end.error or end.offset != wanted[partition]
            ]
            if not behind:
                return wanted
            if monotonic() > deadline:
                raise Refused("target-not-at-barrier", behind[0])
            await self.target.refresh([self.topic])
            await sleep(0.005)
            ends = await self._both_ends(record)

    async def _refreshed(self) -> None:
        await together(self.source.refresh([self.topic]), self.target.refresh([self.topic]))

    async def _both_ends(self, record: TopicRecord) -> tuple[_Ends, _Ends]:
        keys = self._keys(record)
        return await together(self.source.log_ends(keys), self.target.log_ends(keys))

    def _refuse_partitions(self, record: TopicRecord) -> None:
        """Partitions that were added since the fence are not copied: keys would change their partition at the flip."""
        for client in (self.source, self.target):
            info = client.metadata.topics.get(self.topic)
            count = len(info.partitions) if info is not None else 0
            if count != record.partitions:
                raise Refused(
                    "partitions-changed",
                    f"topic {self.topic} has {count} partitions on {client.settings.name} and {record.partitions} "
                    "of it are mirrored",
                )

    def _refuse_moved(self, record: TopicRecord, ends: Mapping[tuple[str, int], LogOffset]) -> None:
        for (topic, partition), end in ends.items():
            barrier = record.barrier[partition]
            if end.error or end.leader_epoch != barrier.leader_epoch:
                raise Refused("source-moved", f"the source's leader of {topic}-{partition} changed after the barrier")
            if end.offset != barrier.offset:
                raise Refused(
                    "source-moved",
                    f"the source log of {topic}-{partition} grew from {barrier.offset} to {end.offset} although "
                    "every router is drained: somebody writes directly",
                )

    # the way back

    async def _unfence(self, error: KmigrateError) -> None:
        """Back to mirroring with the reason, unless the flip is already written (rule D)."""

        def decide(state: State) -> Record | None:
            record = state.topic(self.link, self.topic)
            if record is None or TopicEvent.UNFENCE not in _LEAVE.get(record.phase, ()):
                return None
            return replace(
                record,
                phase=advance_topic(record.phase, TopicEvent.UNFENCE),
                since_ms=now_ms(),
                reason=f"{error.ref}: {error.what}",
                terms=None,
                barrier={},
            )

        await self.log.append(decide)


_LEAVE = dict.fromkeys((TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED), (TopicEvent.UNFENCE,))
