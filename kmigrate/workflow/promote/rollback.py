"""Rolls one promoted topic back: the promote in the other direction, or promoted as before with a reason.

The mirror copies the topic from the target to the source since the flip of its promote (`TopicRecord.way_back`). The
steps and the records are those of a promote (`promote.topic`), with these differences:

A  No seal replaces a router: each registered router has to acknowledge the fence, and no process of a router may have
   left without notice. Otherwise the rollback is given up, and names that router.
B  The barrier and the producers are read at the target. The last check wants the source's log to end at the barrier.
C  If the topic is written in transactions, no transaction begins on the topic from a record before the fence on
   (`WayBack.closing`). The fence follows once the open transactions have ended, so that their clients need no batch
   that a fence would hold. Behind the fence the target is asked once more before the barrier is read. Topics and
   groups that transactions couple are rolled back together (`base.unit`). Between the end of the transactions and the
   fence, the positions of the groups go to the source (`groups.rollback`).
D  The flip raises the topic's generation, so that the source knows no producer under its new id, and begins a new era
   of the copy to the target. The barrier table guards the first writes to the source. Transactional identities from
   before the flip end there (`TopicRecord.turned_epoch`).
E  Deny entries that kept other writers out of the source (`denying`) are gone at every broker before the flip. A record
   that another writer adds after the last check is behind the barrier, and is mirrored like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.lifecycle import ROLLBACK_BEHIND_FENCE, ROLLING_BACK, TopicEvent, TopicPhase, advance_topic
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.record_json import Record
from kmigrate.model.records import (
    CopyEngine,
    PromotedUnit,
    ProvenTopic,
    RollbackTerms,
    TopicRecord,
    WayBack,
    topic_key,
)
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.unit import PromoteProgress, Unit, decided
from kmigrate.workflow.promote.barrier import BarrierTable, FinalCheck
from kmigrate.workflow.promote.denying import lift, lifted, refuse_unliftable
from kmigrate.workflow.promote.fence import (
    barrier_at,
    ends_after_drain,
    not_arrived,
    not_caught_up,
    rehearse,
    silent_router,
    undrained,
    unreported_router,
)
from kmigrate.workflow.promote.fence_hook import FenceHook, NoHook
from kmigrate.workflow.promote.fence_rounds import FenceRounds
from kmigrate.workflow.promote.sealing import strays
from kmigrate.workflow.promote.transactions import (
    is_transactional,
    left_behind,
    open_on,
    unrecorded_writers,
    wait_until_none_open,
)

__all__ = ["MOST_ROLLBACKS", "TopicRollback", "given_back", "rolled_back", "stray_router"]

MOST_ROLLBACKS = 63
"""Highest generation of a topic: a route's shift of producer ids has six bits for the generation."""
_IN_FLIGHT = "answer(s) of the target"
_BEGINNING = "transaction(s) that begin at the target"


@dataclass(slots=True)
class TopicRollback:
    """Drives one topic from rollback-pending to mirroring."""

    link: str
    topic: str
    clusters: LinkClusters
    progress: PromoteProgress = field(default_factory=PromoteProgress)
    """Reasons to wait; shared by all promotes and rollbacks of a controller."""
    rounds: FenceRounds = field(default_factory=FenceRounds)
    """Order of the fences, shared by all promotes and rollbacks of a controller."""
    hook: FenceHook = field(default_factory=NoHook)
    key: str = field(init=False)
    log: StateLog = field(init=False)
    target: ClusterClient = field(init=False)
    table: BarrierTable = field(init=False)
    check: FinalCheck = field(init=False)

    def __post_init__(self) -> None:
        self.key = topic_key(self.link, self.topic)
        self.log, self.target = self.clusters.log, self.clusters.target
        self.table = BarrierTable(self.log, self.target)
        self.check = FinalCheck(self.topic, self.target, self.clusters.source)

    async def run(self) -> None:
        """Go on from the phase in the state log; on failure un-fence: the topic is promoted as before."""
        try:
            while (record := self._rolling_back(self.log.state)) is not None:
                self._keep_turn(record)
                if decided(self.log.state, record) is not None:
                    await self._flip(record)
                    continue
                way = record.way_back
                if way is None or not way.open:
                    raise Refused("no-way-back", way.ended if way is not None else "the topic has no way back")
                match record.phase:
                    case TopicPhase.ROLLBACK_PENDING:
                        await self._pending(record)
                    case TopicPhase.ROLLBACK_FENCING:
                        await self._fencing(record, way)
                    case _:
                        await self._fenced(record)
        except KmigrateError as error:
            if self._may_go_back(self.log.state) is None:
                raise
            await self._unfence(error)
        finally:
            self.progress.leave(self.key)
            self.rounds.over(self.key)

    # facts

    def _record(self, state: State) -> TopicRecord | None:
        return state.topic(self.link, self.topic)

    def _rolling_back(self, state: State) -> TopicRecord | None:
        record = self._record(state)
        return record if record is not None and record.phase in ROLLING_BACK else None

    def _may_go_back(self, state: State) -> TopicRecord | None:
        """Return the record of a rollback that may be given up: no flip of the topic's unit has decided."""
        record = self._rolling_back(state)
        return record if record is not None and decided(state, record) is None else None

    @staticmethod
    def _terms(record: TopicRecord) -> RollbackTerms:
        terms = record.way_back.terms if record.way_back is not None else None
        return terms or RollbackTerms(asked_ms=now_ms())

    def _deadline(self, record: TopicRecord) -> float:
        """Return when this fence is given up; a new controller gives the fence a full span again."""
        return monotonic() + self._terms(record).fence_timeout_s

    def _copied(self, record: TopicRecord) -> Mapping[int, PartitionProgress]:
        """Return each partition as its present owner reports, after the owner has read of this fence."""
        fence = record.newest_fence if record.phase in ROLLBACK_BEHIND_FENCE else -1
        return progress_of(self.log.state, record, self.log.alive(MirrorPresence), applied=fence)

    async def _advance(self, record: TopicRecord, event: TopicEvent, way_back: WayBack) -> None:
        """Write the next phase, unless the record has changed since it was looked at."""

        def decide(state: State) -> Record | None:
            if self._record(state) != record:
                return None
            way = replace(way_back, fence_epoch=state.epoch + 1) if event is TopicEvent.FENCE else way_back
            return replace(record, phase=advance_topic(record.phase, event), since_ms=now_ms(), way_back=way)

        await self.log.append(decide)

    def _keep_turn(self, record: TopicRecord) -> None:
        """Keep the turn of a topic that is fenced or closing, whoever decided that."""
        if record.phase in ROLLBACK_BEHIND_FENCE or _is_closing(record):
            self.rounds.go(self.key)
        else:
            self.rounds.over(self.key)

    # rollback-pending

    async def _pending(self, record: TopicRecord) -> None:
        _refuse_left_behind(self.log.state, record)
        if not await self._ready(record):
            return  # the next pass looks at the record anew
        if self.hook.due_before_fence(record):
            self.progress.note(self.key, "the hook before-fence")
            await self.hook.before_fence(record)
            return
        if not await self._turn(record):
            return
        if names := await unrecorded_writers(self.log.state, self.target, record):
            raise Refused("no-way-back", names)
        await refuse_unliftable(self.clusters.source, record)
        await rehearse(self.target, record, self.table, self.check, self._deadline(record))
        way, deadline = record.way_back, self._deadline(record)
        if way is None or not await self._transactions_ended(record, way, deadline):
            return
        if await self._unit_closed(record, deadline):
            await self._advance(record, TopicEvent.FENCE, replace(way, closing=False, fenced_ms=self.log.now_ms()))

    async def _transactions_ended(self, record: TopicRecord, way: WayBack, deadline: float) -> bool:
        """Let no transaction begin, and wait until none is open; return False where the record has changed (rule C)."""
        if not is_transactional(self.log.state, record):
            return True
        if not way.closing:
            await self._close(record, way)
            return False
        if not await self._all_closed(record, deadline):
            return False
        self.progress.note(self.key, "open transactions to end")
        await wait_until_none_open(self.target, record, deadline)
        self.progress.note(self.key, None)
        return self._record(self.log.state) == record

    async def _close(self, record: TopicRecord, way: WayBack) -> None:
        """Write the record since which no transaction begins on the topic."""

        def decide(state: State) -> Record | None:
            if self._record(state) != record:
                return None
            return replace(record, way_back=replace(way, closing=True, fence_epoch=state.epoch + 1))

        await self.log.append(decide)

    async def _all_closed(self, record: TopicRecord, deadline: float) -> bool:
        """Wait until no router lets a transaction begin; return False where the record has changed."""

        def not_closed(state: State) -> str | None:
            if self._record(state) != record:
                return None
            return undrained(self.log, record, _none_given_up, _BEGINNING)

        what = "every router to let no transaction begin"
        try:
            await self.progress.wait(self.log, self.key, not_closed, deadline - monotonic(), what)
        except WaitTimedOut as late:
            raise Refused("not-drained", f"{late.what} within the fence timeout") from late
        return self._record(self.log.state) == record

    async def _ready(self, record: TopicRecord) -> bool:
        """Wait until the topic can be fenced; return False where the record has changed or is gone."""

        def not_ready(state: State) -> str | None:
            if self._record(state) != record:
                return None
            why = self._why_not_ready(record)
            (self.progress.ready.discard if why else self.progress.ready.add)(self.key)
            return why or self.progress.not_ready_with(Unit.of(state, record))

        terms = self._terms(record)
        timeout = terms.fence_timeout_s if _is_closing(record) else terms.pending_timeout_s
        try:
            await self.progress.wait(self.log, self.key, not_ready, timeout, "the mirror and the routers")
        except WaitTimedOut as late:
            raise Refused("not-ready", f"{record.topic} was not ready to be fenced: {late.what}") from late
        return self._record(self.log.state) == record

    def _why_not_ready(self, record: TopicRecord) -> str | None:
        behind = not_caught_up(record, self._copied(record), self._terms(record).lag_threshold, "target")
        state = self.log.state
        unit = _whole_unit(state, record) if _is_closing(record) else Unit.of(state, record)
        return (
            behind
            or _denials_arriving(record)
            or unit.not_asked_for()
            or silent_router(self.log, _none_given_up)
            or stray_router(self.log.state)
        )

    async def _turn(self, record: TopicRecord) -> bool:
        """Wait for this topic's turn; return False where by then the topic is not ready, or its record has changed."""
        if _is_closing(record):
            return True
        self.progress.note(self.key, "its turn: other topics are fenced before it")
        unit = Unit.of(self.log.state, record)
        if unit.groups:
            self.rounds.go(self.key)  # members of the groups may have given back what they read
            return True
        partitions = record.partitions + sum(mate.partitions for mate in unit.topics)
        waited = await self.rounds.take(self.key, partitions, unit.keys)
        self.progress.note(self.key, None)
        return not waited or (self._record(self.log.state) == record and self._why_not_ready(record) is None)

    async def _unit_closed(self, record: TopicRecord, deadline: float) -> bool:
        """Wait until the unit has no open transaction, and staged groups; False where the record has changed."""
        self.progress.closed.add(self.key)

        def not_closed(state: State) -> str | None:
            if self._record(state) != record:
                return None
            _refuse_left_behind(state, record)
            unit = _whole_unit(state, record)
            return self.progress.not_closed_with(unit) or unit.not_staged()

        try:
            await self.progress.wait(self.log, self.key, not_closed, deadline - monotonic(), "its unit")
        except WaitTimedOut as late:
            closed = self.progress.not_closed_with(Unit.of(self.log.state, record)) is None
            ref = "coupled-group" if closed else "open-transaction"
            raise Refused(ref, f"{record.topic} was not fenced: {late.what}") from late
        return self._record(self.log.state) == record

    # rollback-fencing

    async def _fencing(self, record: TopicRecord, way: WayBack) -> None:
        deadline = self._deadline(record)

        def not_drained(state: State) -> str | None:
            if self._record(state) != record:
                return None
            if trouble := unreported_router(self.log) or stray_router(state):
                raise Refused("not-drained", trouble)  # writers would wait for that router until the fence timeout
            return undrained(self.log, record, _none_given_up, _IN_FLIGHT)

        try:
            await self.progress.wait(self.log, self.key, not_drained, deadline - monotonic(), "every router to drain")
        except WaitTimedOut as late:
            raise Refused("not-drained", f"{late.what} within the fence timeout") from late
        if self._record(self.log.state) != record:
            return
        ends, found = await together(ends_after_drain(self.target, record, deadline), open_on(self.target, record))
        if found:
            await wait_until_none_open(self.target, record, deadline)
            ends = await ends_after_drain(self.target, record, deadline)
        changed = replace(way, barrier=barrier_at(ends), barrier_ms=self.log.now_ms())
        await together(
            self.table.read_early(replace(record, way_back=changed), deadline),
            self._advance(record, TopicEvent.BARRIER, changed),
        )

    # rollback-fenced

    async def _fenced(self, record: TopicRecord) -> None:
        deadline = self._deadline(record)

        async def arrival() -> bool:
            """Return False where the record has changed."""

            def away(state: State) -> str | None:
                return not_arrived(record, self._copied(record)) if self._record(state) == record else None

            what = "the mirror to reach the barrier"
            try:
                await self.progress.wait(self.log, self.key, away, deadline - monotonic(), what)
            except WaitTimedOut as late:
                raise Refused("barrier-not-reached", late.what) from late

            if self._record(self.log.state) != record:
                return False
            self.progress.at_barrier.add(self.key)
            await self.progress.wait_for_unit(self.log, record, deadline)
            return True

        barrier = {p: each.offset for p, each in record.newest_barrier.items()}
        marks = await self.table.marks_of(record, deadline)  # before the log ends are asked for again
        checked = self.check.run(record, lambda: barrier, deadline, arrival())
        ends, _ = await together(checked, self.table.write(record, marks))
        if ends is None:
            return
        await self._let_writers_in(record, deadline)
        self.progress.proven[self.key] = record, ProvenTopic(record.newest_fence)
        await self.progress.wait_proven(self.log, record, deadline)
        await self._flip(record)

    async def _let_writers_in(self, record: TopicRecord, deadline: float) -> None:
        """Delete the deny entries at the source, and see that no broker there has any of them (rule E)."""
        if record.denied is not None and record.denied.may_exist:
            await lift(self.clusters.source, self.clusters.source_admin, record.denied.entries, deadline)

    async def _flip(self, record: TopicRecord) -> None:
        """Write the record that decides for the unit, or follow the record that has decided."""

        def decide(state: State) -> Record | None:
            if self._record(state) != record:
                return None
            back = replace(rolled_back(record, self.log.now_ms()), turned_epoch=state.epoch + 1)
            if decided(state, record) is not None:
                return back
            _refuse_left_behind(state, record)
            unit = self.progress.unit_to_flip(state, record)
            return replace(back, unit=unit) if unit is not None else None

        await self.log.append(decide)

    async def _unfence(self, error: KmigrateError) -> None:
        """Return to promoted with the reason."""

        def decide(state: State) -> Record | None:
            record = self._may_go_back(state)
            return given_back(record, error.summary, error.next_step) if record is not None else None

        await self.log.append(decide)


def rolled_back(record: TopicRecord, at_ms: int) -> TopicRecord:
    """Return the record after the flip of a rollback: the topic is mirrored, in a new era."""
    way = record.way_back
    if way is None:
        raise Refused("no-way-back", f"topic {record.topic} has no way back")
    former = (way.copy.data_id,) if way.copy is not None else ()
    at_target = (record.copy.data_id,) if record.copy is not None else ()
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.FLIP),
        since_ms=now_ms(),
        reason="",
        way_on="",
        terms=None,
        generation=record.generation + 1,
        fence_epoch=way.fence_epoch,
        fenced_ms=way.fenced_ms,
        barrier_ms=way.barrier_ms,
        promoted_ms=0,
        barrier={},
        stops={},
        unit=PromotedUnit(),
        engine=CopyEngine.DAEMON,
        claims={},
        way_back=None,
        copy=None,
        resumed={p: each.offset for p, each in way.barrier.items()},
        rolled_back_epoch=way.fence_epoch,
        rolled_back_ms=at_ms,
        former_copies=(*record.former_copies, *former),
        former_copies_at_target=(*record.former_copies_at_target, *at_target),
        denied=lifted(record.denied, at_ms),
    )


def given_back(record: TopicRecord, reason: str, way_on: str = "") -> TopicRecord:
    """Return the record of a topic whose rollback is given up: promoted as before, with the reason."""
    way = record.way_back
    if way is not None:
        way = replace(way, closing=False, terms=None, barrier={}, reason=reason, way_on=way_on)
    denied = record.denied
    if denied is not None and denied.may_exist and record.phase is TopicPhase.ROLLBACK_FENCED:
        denied = replace(denied, in_force=False)  # the rollback may have deleted some of the entries
    phase = advance_topic(record.phase, TopicEvent.UNFENCE)
    return replace(record, phase=phase, since_ms=now_ms(), way_back=way, denied=denied)


def _denials_arriving(record: TopicRecord) -> str | None:
    """Return that deny entries are on their way to the source: nobody knows when they arrive."""
    if record.denied is None or not record.denied.arriving:
        return None
    return f"the ACLs that keep {record.denied.names} out of the source are not in force yet"


def stray_router(state: State) -> str | None:
    """Name a router of which a process left without notice: nobody knows what that process has sent to the target."""
    names = sorted(set(strays(state).values()))
    return f"a process of router {', '.join(names)} has left without notice" if names else None


def _refuse_left_behind(state: State, record: TopicRecord) -> None:
    if left := left_behind(state, record):
        raise Refused("no-way-back", left, next_step="its promote is final; the topic stays at the target")


def _is_closing(record: TopicRecord) -> bool:
    return record.way_back is not None and record.way_back.closing


def _whole_unit(state: State, record: TopicRecord) -> Unit:
    """Return the rest of a topic's unit; refuse a unit of which a part is not rolled back, or was given up."""
    unit = Unit.of(state, record)
    if against := unit.not_asked_for():
        raise Refused("coupled-topics", against)
    return unit


def _none_given_up(_: str) -> bool:
    return False
