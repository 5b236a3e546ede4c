"""Promotes one topic: fence, drain, barrier, lag zero, flip; or goes back to mirroring with a reason.

Each step waits for facts and writes one record. Only the state log remembers anything between steps, so another
controller can go on. Lettered rules:

A  The fence is left only by a record (flip or un-fence), never by a timer of a router.
B  The barrier is read after the drain and the markers of routed transactions: the source's log end (replica_id −2, V1),
   confirmed by its replicas (`cluster.leaders`). The producers are read after a log end that is the same as the
   barrier. Then the log end must be the same once more (C), so that no mark is newer than the barrier.
C  The flip needs three facts (`FinalCheck`). Each partition's owner reports that the mirror stopped exactly at this
   fence's barrier. The target's log end is the barrier, or the barrier's mapped position. The source's log end and
   leader epoch are still the same. Log ends may be read beside the wait for the mirror, 0.1 s before its report.
D  Any deadline or guard before the flip un-fences, and until the fence a person may take the promote back. After the
   flip, or the first flip of its unit, there is no way but forward (`outcome`).
E  The topic's ACLs for writing are in force on every broker of the target before the flip, and in the record before
   that: the mirror takes them back after an un-fence. Configs come after the flip, as an `unsettled` record says:
   retention must not begin while there is a way back.
F  Coupled topics are fenced only when all of them are to be promoted and ready, and are flipped together (`unit`). A
   group whose offsets their transactions commit is handed over before the fence, and opens after the flip.
G  Where a router is silent, or left without notice, a seal replaces its acknowledgement (`sealing`). The seal is put on
   and proven after the other routers have drained, before the barrier is read.
H  The barrier table (`promote.barrier`) is in the state log before the flip: routers read the table there.
I  Where a topic is written in transactions, no transaction begins on the topic from a record before the fence on
   (`TopicRecord.closing`), and the fence follows once the open transactions have ended: producers without transactions
   wait for none of them. Behind the fence the source is asked once more. A silent router is left to the fence (G).
J  Many topics are fenced in rounds, with rests in which their writers catch up (`promote.fence_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import open_writers
from kmigrate.errors import KmigrateError, Refused, WaitTimedOut
from kmigrate.model.lifecycle import BEHIND_FENCE, PROMOTING, TopicEvent, TopicPhase, advance_topic
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.record_json import Record
from kmigrate.model.records import PromoteTerms, ProvenTopic, TopicRecord, topic_key
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import together
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import LinkClusters
from kmigrate.workflow.base.open_transactions import begun_elsewhere, refuse_lost_ids, wait_for_ends
from kmigrate.workflow.base.unit import PromoteProgress, Unit, decided
from kmigrate.workflow.groups.readers import ReaderLooks
from kmigrate.workflow.promote.barrier import BarrierTable, FinalCheck, LogEnds
from kmigrate.workflow.promote.direct_writers import direct_writers
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
from kmigrate.workflow.promote.outcome import (
    flipped,
    flipped_as_decided,
    given_up,
    go_forward,
    no_way_back,
    put_in_force,
    turned,
    with_promote_rules,
)
from kmigrate.workflow.promote.sealing import Sealer, may_come_off
from kmigrate.workflow.promote.transactions import is_transactional

__all__ = ["TopicPromotion"]

_LOOK_S = 0.1
_IN_FLIGHT = "answer(s) of the source or transaction(s)"
_BEGINNING = "transaction(s) that begin at the source"
_SHORT_S = 1.0
"""Seconds after which an open transaction counts as hanging; a transaction that begins behind may hang as well."""


@dataclass(slots=True)
class TopicPromotion:
    """Drives one topic from promote-pending to promoted."""

    link: str
    topic: str
    clusters: LinkClusters
    sealer: Sealer
    straggler_window_s: float = 5.0
    progress: PromoteProgress = field(default_factory=PromoteProgress)
    """Progress of coupled topics (F), and reasons to wait; shared by all promotes of a controller."""
    rounds: FenceRounds = field(default_factory=FenceRounds)
    """Order of the fences, shared by all promotes of a controller (J)."""
    readers: ReaderLooks = field(default_factory=ReaderLooks)
    """Looks at the members of groups, shared by all promotes of a controller."""
    hook: FenceHook = field(default_factory=NoHook)
    """Hook before the fence; the topic counts as not ready to its unit until the hook has ended."""
    key: str = field(init=False)
    log: StateLog = field(init=False)
    source: ClusterClient = field(init=False)
    table: BarrierTable = field(init=False)
    check: FinalCheck = field(init=False)

    def __post_init__(self) -> None:
        self.key = topic_key(self.link, self.topic)
        self.log, self.source = self.clusters.log, self.clusters.source
        self.table = BarrierTable(self.log, self.source)
        self.check = FinalCheck(self.topic, self.source, self.clusters.target)

    async def run(self) -> None:
        """Go on from the phase in the state log; on failure un-fence (D), or raise where there is no way back."""
        try:
            while (record := self._record(self.log.state)) is not None:
                self._keep_turn(record)
                if may_come_off(self.log, record):
                    await self.sealer.take_off(record)
                    continue
                if no_way_back(self.log.state, record):
                    await go_forward(record, self.log, self.clusters.target_admin)
                    continue
                match record.phase:
                    case TopicPhase.PROMOTE_PENDING:
                        await self._pending(record)
                    case TopicPhase.FENCING:
                        await self._fencing(record)
                    case TopicPhase.FENCED:
                        await self._fenced(record)
                    case _:
                        return
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

    def _terms(self, record: TopicRecord) -> PromoteTerms:
        return record.terms or PromoteTerms(asked_ms=now_ms())

    def _copied(self, record: TopicRecord) -> Mapping[int, PartitionProgress]:
        """Return each partition as its present owner reports, after the owner has read of this fence (rule C)."""
        fence = record.fence_epoch if record.phase is not TopicPhase.PROMOTE_PENDING else -1
        return progress_of(self.log.state, record, self.log.alive(MirrorPresence), applied=fence)

    async def _advance(self, record: TopicRecord, event: TopicEvent, changed: TopicRecord) -> None:
        """Write the next phase, unless the record has changed since it was looked at."""

        def decide(state: State) -> Record | None:
            if self._record(state) != record:
                return None
            phase = advance_topic(record.phase, event)
            epoch = state.epoch + 1 if event is TopicEvent.FENCE else changed.fence_epoch
            return replace(changed, phase=phase, since_ms=now_ms(), fence_epoch=epoch)

        await self.log.append(decide)

    # promote-pending

    async def _pending(self, record: TopicRecord) -> None:
        if record.closing:
            await self._fence_when_ended(record)
            return
        if self.hook.due_before_fence(record):
            await self._run_hook(record)
            return  # the next pass looks at the record anew
        if not await self._ready(record) or not await self._transactions_end_soon(record):
            return
        if not await self._none_begun_elsewhere(record) or not await self._turn(record):
            return
        await self._refuse_direct_writers(record)
        await refuse_lost_ids(self.log.state, self.source, self.clusters.target, record)
        await self.readers.refuse(self.log.state, self.link, self.topic, self.source)
        await rehearse(self.source, record, self.table, self.check, self._deadline(record))
        if is_transactional(self.log.state, record) and not self.sealer.unheard(record) and record.seal is None:
            await self._close(record)
        else:
            await self._fence(record)

    async def _fence(self, record: TopicRecord) -> None:
        await self._advance(record, TopicEvent.FENCE, replace(record, fenced_ms=self.log.now_ms()))

    async def _close(self, record: TopicRecord) -> None:
        """Write the record since which no transaction begins on the topic (I)."""

        def decide(state: State) -> Record | None:
            return replace(record, closing=True, fence_epoch=state.epoch + 1) if self._record(state) == record else None

        await self.log.append(decide)

    async def _fence_when_ended(self, record: TopicRecord) -> None:
        """Write the fence once the unit's open transactions have ended (I); Refused where they outlast a fence."""
        deadline = self._deadline(record)

        def beginning(state: State) -> str | None:
            same = self._record(state) == record
            return undrained(self.log, record, self.sealer.given_up, _BEGINNING) if same else None

        def not_closed(state: State) -> str | None:
            if self._record(state) != record:
                return None
            unit = Unit.of(state, record)
            if against := unit.not_asked_for():
                raise Refused("coupled-topics", against)
            return self.progress.not_closed_with(unit)

        try:
            what = "every router to let no transaction begin"
            await self.progress.wait(self.log, self.key, beginning, deadline - monotonic(), what)
            self.progress.note(self.key, "open transactions to end")
            await wait_for_ends(self.log.state, self.source, record, deadline)
            self.progress.closed.add(self.key)
            await self.progress.wait(self.log, self.key, not_closed, deadline - monotonic(), "its unit")
        except (Refused, WaitTimedOut) as late:
            if self._record(self.log.state) != record:
                return  # a person has taken the promote back
            raise await self._refusal(record, late) from None
        if await self._ready(record):
            await self._fence(record)

    async def _transactions_end_soon(self, record: TopicRecord) -> bool:
        """Wait, where a seal is to come, until no transaction on the topic is open for long; False: the record changed.

        A client that hangs on a silent router keeps its transaction open, and a fence would have all other writers
        wait. The members of a group that is promoted with the topic wait already.
        """
        state = self.log.state
        if not is_transactional(state, record) or Unit.of(state, record).groups or not self.sealer.unheard(record):
            return True
        deadline = monotonic() + self._terms(record).pending_timeout_s
        seen: dict[tuple[str, int], float] = {}
        calm_since = monotonic()
        while self._record(self.log.state) == record:
            self.progress.ready.discard(self.key)
            found = await open_writers(self.source, record.topic, record.partitions)
            now = monotonic()
            seen = {(name, began): seen.get((name, began), now) for name, all_ in found.items() for began in all_}
            names = ", ".join(sorted({name for (name, _), since in seen.items() if now - since >= _SHORT_S}))
            if names:
                calm_since = now
                self.progress.note(self.key, f"the open transaction of {names}, which may hang on a router")
                if now > deadline:
                    raise Refused("open-transaction", f"{names} has had one open on {record.topic} for long")
            elif now - calm_since >= 2 * _SHORT_S:
                return await self._ready(record)
            await sleep(_LOOK_S)
        return False

    async def _direct_writers(self, record: TopicRecord) -> list[str]:
        if self._terms(record).accept_direct:
            return []
        return await direct_writers(self.log, self.source, record, self.straggler_window_s)

    async def _refuse_direct_writers(self, record: TopicRecord) -> None:
        found = await self._direct_writers(record)
        if found:
            raise Refused("direct-writers", "; ".join(found))

    async def _none_begun_elsewhere(self, record: TopicRecord) -> bool:
        """Return True where no transaction begun past the routers is open; otherwise wait: no router can end one.

        No copy comes to a barrier behind it. Its marker is a write past the routers: wait until none is recent.
        """
        deadline = monotonic() + self._terms(record).pending_timeout_s
        waited = False
        while self._record(self.log.state) == record:
            ref = "open-transaction"
            found = await begun_elsewhere(self.log.state, self.source, record, self.log.now_ms())
            if found and not waited:
                await self._refuse_direct_writers(record)
            if not found and waited:
                ref, found = "direct-writers", await self._direct_writers(record)
            if not found:
                return not waited
            waited = True
            self.progress.ready.discard(self.key)
            self.progress.note(self.key, "; ".join(found))
            if monotonic() > deadline:
                raise Refused(ref, "; ".join(found))
            await sleep(_LOOK_S)
        return False

    async def _turn(self, record: TopicRecord) -> bool:
        """Wait for this topic's turn (J); return False where by then the topic is not ready, or in another unit."""
        unit = Unit.of(self.log.state, record)
        if unit.groups:
            self.rounds.go(self.key)  # the members of the groups wait already
            return True
        partitions = record.partitions + sum(mate.partitions for mate in unit.topics)
        self.progress.note(self.key, "its turn: other topics are fenced before it")
        waited = await self.rounds.take(self.key, partitions, unit.keys)
        self.progress.note(self.key, None)
        if not waited:
            return True
        now = Unit.of(self.log.state, record)
        same = not now.groups and now.keys == unit.keys and self._record(self.log.state) == record
        return same and self._why_not_ready(record, now) is None

    def _keep_turn(self, record: TopicRecord) -> None:
        """Keep the turn of a fenced or closing topic, whoever wrote that; otherwise leave: others wait unfenced."""
        if record.phase in BEHIND_FENCE or record.closing:
            self.rounds.go(self.key)
        else:
            self.rounds.over(self.key)

    async def _ready(self, record: TopicRecord) -> bool:
        """Wait until the topic can be fenced; return False where the record has changed or is gone."""

        def not_ready(state: State) -> str | None:
            if self._record(state) != record:
                return None
            unit = Unit.of(state, record)
            why = self._why_not_ready(record, unit)
            (self.progress.ready.discard if why else self.progress.ready.add)(self.key)
            return why or unit.not_staged() or self.progress.not_ready_with(unit)

        return await self._wait_ready(record, not_ready)

    async def _wait_ready(self, record: TopicRecord, not_ready: Callable[[State], str | None]) -> bool:
        """Wait until nothing is named any more; return whether the record is still the same."""
        terms = self._terms(record)
        timeout = terms.fence_timeout_s if record.closing else terms.pending_timeout_s
        try:
            await self.progress.wait(self.log, self.key, not_ready, timeout, "the mirror and the routers")
        except WaitTimedOut as late:
            raise Refused("not-ready", f"{record.topic} was not ready to be fenced: {late.what}") from late
        return self._record(self.log.state) == record

    async def _run_hook(self, record: TopicRecord) -> None:
        """Run the hook once the topic could be fenced alone; its unit waits for the topic until the hook has ended."""

        def not_ready(state: State) -> str | None:
            return self._why_not_ready(record, Unit.of(state, record)) if self._record(state) == record else None

        if await self._wait_ready(record, not_ready):
            self.progress.note(self.key, "the hook before-fence")
            await self.hook.before_fence(record)
            self.progress.note(self.key, None)

    def _why_not_ready(self, record: TopicRecord, unit: Unit) -> str | None:
        behind = not_caught_up(record, self._copied(record), self._terms(record).lag_threshold, "source")
        silent = silent_router(self.log, self.sealer.given_up)
        return behind or self._not_upkept(record) or unit.not_asked_for() or silent

    def _not_upkept(self, record: TopicRecord) -> str | None:
        """Return why the mirror has not compared partitions, configs and ACLs since this promote's request, or None."""
        for mirror in self.log.alive(MirrorPresence):
            report = mirror.upkeep.get(self.topic) if mirror.link == self.link else None
            if report is not None and report.since_ms == record.since_ms:
                return f"the target does not follow the source: {report.problem}" if report.problem else None
        return "the mirror has not compared its partitions, configs and ACLs with the source yet"

    # fencing

    async def _fencing(self, record: TopicRecord) -> None:
        deadline = self._deadline(record)

        def not_drained(_: State) -> str | None:
            if trouble := unreported_router(self.log):
                raise Refused("not-drained", trouble)  # writers would wait for that router until the fence timeout
            return undrained(self.log, record, self.sealer.given_up, _IN_FLIGHT)  # a seal replaces it (rule G)

        try:
            await self.progress.wait(self.log, self.key, not_drained, deadline - monotonic(), "every router to drain")
        except WaitTimedOut as late:
            raise await self._refusal(record, late) from late
        ends, markers_after = None, False
        if record.seal is None and not self.sealer.unheard(record):
            ends, waited = await together(
                ends_after_drain(self.source, record, deadline),
                wait_for_ends(self.log.state, self.source, record, deadline),
            )
            markers_after = waited or (is_transactional(self.log.state, record) and not record.closing)
        unheard = self.sealer.unheard(record)
        if unheard or record.seal is not None:
            if not await self.sealer.put_on(record, unheard, deadline):
                return
            ends, markers_after = None, False
        if ends is None:
            ends = await ends_after_drain(self.source, record, deadline)
        await self._write_barrier(record, ends, deadline, markers_after=markers_after)

    async def _write_barrier(self, record: TopicRecord, ends: LogEnds, deadline: float, *, markers_after: bool) -> None:
        """Write the barrier, and read the marks below the barrier meanwhile.

        `markers_after`: markers of routed transactions may lie behind these ends, so the ends are asked for again.
        Marks below the first ends count only if the ends are the same (rule B).
        """

        async def written() -> None:
            granted = with_promote_rules(record, self.clusters.target)
            if markers_after:
                last, rules = await together(ends_after_drain(self.source, record, deadline), granted)
            else:
                last, rules = ends, await granted
            changed = replace(record, barrier=barrier_at(last), barrier_ms=self.log.now_ms(), granted_acls=rules)
            await self._advance(record, TopicEvent.BARRIER, changed)

        await together(self.table.read_early(replace(record, barrier=barrier_at(ends)), deadline), written())

    async def _refusal(self, record: TopicRecord, late: Refused | WaitTimedOut) -> Refused:
        """Return the refusal that names the transactions which outlast the fence, or else what was late."""
        if isinstance(late, WaitTimedOut):
            late = Refused("not-drained", f"{late.what} within the fence timeout")
        return await self._open_at_fence(record) or late

    async def _open_at_fence(self, record: TopicRecord) -> Refused | None:
        """Return the refusal that names the transactions which outlast the fence; None where the source tells none."""
        try:
            names = sorted(await open_writers(self.source, record.topic, record.partitions))
        except KmigrateError:
            return None
        if not names:
            return None
        return Refused(
            "open-transaction",
            f"{', '.join(names)} has a transaction open on {record.topic} at the source for longer than the fence may "
            f"last ({self._terms(record).fence_timeout_s:g} s)",
            next_step="end that transaction, or wait until the source ends it (transaction.timeout.ms); where "
            f"transactions are that long by design: kmigrate link alter {record.link} --set fence_timeout_s=60",
        )

    def _deadline(self, record: TopicRecord) -> float:
        """Return when this fence is given up; a new controller gives the fence a full span again."""
        return monotonic() + self._terms(record).fence_timeout_s

    # fenced

    async def _fenced(self, record: TopicRecord) -> None:
        deadline = self._deadline(record)

        async def arrival() -> bool:
            what = "the mirror to reach the barrier"
            try:
                await self.progress.wait(
                    self.log,
                    self.key,
                    lambda _: not_arrived(record, self._copied(record)),
                    deadline - monotonic(),
                    what,
                )
            except WaitTimedOut as late:
                raise Refused("barrier-not-reached", late.what) from late

            self.progress.at_barrier.add(self.key)
            await self.progress.wait_for_unit(self.log, record, deadline)
            return True

        marks = await self.table.marks_of(record, deadline)  # before the log ends are asked for again (rule B)
        rules = put_in_force(record, self.clusters.target, self.clusters.target_admin, deadline)
        checked = self.check.run(record, partial(self._target_ends, record), deadline, arrival())
        ends, _ = await together(checked, together(self.table.write(record, marks), rules))
        if ends is None:
            return
        self.progress.proven[self.key] = record, ProvenTopic(record.fence_epoch, ends if record.mapped else {})
        await self.progress.wait_proven(self.log, record, deadline)
        await self._flip(record)

    async def _flip(self, record: TopicRecord) -> None:
        """Write the record that decides for the unit, or follow the record that has decided (rule F)."""

        def decide(state: State) -> Record | None:
            if self._record(state) != record:
                return None
            if decided(state, record) is not None:
                return flipped_as_decided(record, self.log.now_ms(), state)
            unit = self.progress.unit_to_flip(state, record)
            if unit is None:
                return None
            promoted = flipped(record, self.log.now_ms(), self.progress.proven[self.key][1])
            return replace(turned(promoted, state), unit=unit)

        await self.log.append(decide)

    def _target_ends(self, record: TopicRecord) -> dict[int, int]:
        """Return where the target's logs must end: at the barrier, or where mapped at the mirror's position."""
        if not record.mapped:
            return {p: barrier.offset for p, barrier in record.barrier.items()}
        copied = self._copied(record)
        return {
            p: seen.target_position if (seen := copied.get(p)) and seen.at_barrier == barrier.offset else -1
            for p, barrier in record.barrier.items()
        }

    # the way back

    def _may_go_back(self, state: State) -> TopicRecord | None:
        record = self._record(state)
        going = record is not None and record.phase in PROMOTING and decided(state, record) is None
        return record if going else None

    async def _unfence(self, error: KmigrateError) -> None:
        """Return to mirroring with the reason, unless a flip has decided already (rule D)."""

        def decide(state: State) -> Record | None:
            record = self._may_go_back(state)
            return given_up(record, error.summary, error.next_step) if record is not None else None

        await self.log.append(decide)
