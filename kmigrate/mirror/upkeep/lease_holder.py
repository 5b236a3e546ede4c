"""The work of the lease's holder for a link: bring topics up, keep log starts, and assign partitions to processes.

    initialising ──▶ aligning ──▶ mirroring ──▶ assigned ──▶ … as the state log asks

Every step is derived from the state log and the target's logs, so another process can continue. `engine` copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

from kmigrate.errors import Failed, KmigrateError, Refused, StateLogBroken, Unreachable, WaitTimedOut
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.sharing.assignment import Releases, next_assignment
from kmigrate.mirror.sharing.lease import Lease
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.mirror.upkeep.align import Aligner
from kmigrate.mirror.upkeep.configs import Configs
from kmigrate.mirror.upkeep.hiding import wait_hidden
from kmigrate.mirror.upkeep.source_changes import round_s
from kmigrate.mirror.upkeep.topics import Prepared, TopicMaker
from kmigrate.model.eras import Direction, begun, era_of
from kmigrate.model.lifecycle import (
    COPIED,
    NOT_COPIED_YET,
    PROMOTING,
    ROLLING_BACK,
    TopicEvent,
    TopicPhase,
    advance_topic,
)
from kmigrate.model.records import AssignmentRecord, CopyIdentity, TopicRecord, topic_key
from kmigrate.model.sharing import by_spark
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import TaskOwner

__all__ = ["LeaseHolder"]

_log = logging.getLogger("kmigrate.mirror")
_RETRY_S = 1.0
_LOOK_S = 0.25
"""Interval of the looks at members that nothing is heard of."""
_TIDY_S = 2.0
"""Gap before an assignment that only leaves out topics: many topics may be promoted one after another."""
_COMING_UP_S = 0.25
"""Gap between two assignments while topics come up in turn: each assignment names all partitions of all topics."""


class LeaseHolder:
    """The work for a link that only the holder of the lease does."""

    def __init__(
        self,
        link: MirroredLink,
        lease: Lease,
        membership: Membership,
        maker: TopicMaker,
        aligner: Aligner,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._link = link
        self._lease = lease
        self._membership = membership
        self._maker = maker
        self._aligner = aligner
        self._on_change = on_change
        self._working: dict[str, asyncio.Task[Any]] = {}
        self._rechecking: dict[str, asyncio.Task[Any]] = {}
        self._work = TaskOwner(self._on_failure)
        self._failure: BaseException | None = None
        self._applied = -1
        self._known = State()
        """The state that this process has acted on."""
        self._shares: dict[str, _Share] = {}
        """The facts of each topic that the assignment follows from, in that state."""
        self._shares_changed = 0
        """Number of changes of these facts, without topics that have left."""
        self._left: set[str] = set()
        """Topics that the newest assignment may still name although nothing is assigned any more."""
        self._not_copied_yet: list[str] = []
        """Topics that are still to be created or aligned."""
        self._without_id: list[str] = []
        """Topics whose copy has no producer id since its direction has changed."""
        self._releases = Releases()
        self._shared_at = -_COMING_UP_S
        self._decided_on: object = None
        """The input of the last assignment: the same input gives the same assignment."""
        self._looked_through: tuple[AssignmentRecord | None, bool] = None, False
        """The newest assignment that was looked through, and whether a partition is moving in it."""
        self._claimed: list[TopicRecord] = []
        """Topics with partitions that Spark tasks hold."""
        self.problems: dict[str, str] = {}
        """The problem that blocks a topic, by topic."""
        self.trouble = ""
        """The reason why the state log could not be written, or ''."""

    async def run(self) -> None:
        """Lead until the lease is another process's."""
        try:
            while self._lease.held:
                if self._failure is not None:
                    raise self._failure
                state = self._link.state
                if state.epoch != self._applied or self._is_idle():
                    self._apply(state)
                await self._share_out()
                await self._link.log.changed(_LOOK_S)
        finally:
            await self._work.close()

    def _on_failure(self, error: BaseException) -> None:
        self._failure = self._failure or error

    # partitions

    async def _share_out(self) -> None:
        """Write the assignment that follows from the live members and the mirrored topics, if changed."""
        if not self._membership.hears_itself():
            return
        if self._not_copied_yet and monotonic() - self._shared_at < _COMING_UP_S:
            return
        presences, members, held = self._membership.presences(), self._members(), self._held_by_spark()
        state, assignment = self._link.state, self._link.assignment
        records = self._link.record is None, state.lease(self._lease.what), assignment
        decided_on = self._shares_changed, members, held, records
        tidies = bool(self._left) and monotonic() - self._shared_at >= _TIDY_S
        if decided_on == self._decided_on and not tidies and not self._is_moving(assignment):
            return
        self._decided_on = decided_on
        self._left.clear()

        def decide(state: State) -> AssignmentRecord | None:
            lease = state.lease(self._lease.what)
            if lease is None or lease.holder != self._link.instance or state.link(self._link.name) is None:
                return None
            shares = {record.topic: _share(record) for record in state.topics(self._link.name)}
            shared = {topic: each for topic, each in shares.items() if each is not None and topic not in held}
            before = state.assignment(self._link.name)
            terms = (lease.term, *(share.claimed_term for share in shared.values()))
            made = next_assignment(
                self._link.name,
                before,
                members,
                {topic: share.partitions for topic, share in shared.items()},
                presences,
                term=max(terms),
                pinned={topic for topic, share in shared.items() if share.pinned},
                since=self._releases.since(lease.term, before),
            )
            return None if made is before or not (before or made.owners) else made

        if decide(self._link.state) is None:
            return
        try:
            await self._link.log.append(decide)
            self.trouble = ""
            self._shared_at = monotonic()
        except StateLogBroken:
            raise
        except (Failed, WaitTimedOut) as error:
            self.trouble = error.summary
            self._decided_on = None
            await sleep(_RETRY_S)

    def _held_by_spark(self) -> frozenset[str]:
        """Return the topics of which a Spark task still owns a partition: not released, and not fallen silent."""
        silent = self._membership.silent
        return frozenset(
            record.topic
            for record in self._claimed
            if any(not silent(claim.instance) for claim in record.claims.values())
        )

    def _members(self) -> set[str]:
        """Return this process, those that ask for a share, and former members that neither left nor fell silent."""
        before = self._link.assignment
        shares = {presence.instance: presence.shares for presence in self._membership.presences()}
        for member in before.members if before is not None else ():
            shares.setdefault(member, not self._membership.silent(member))
        return {self._link.instance, *(member for member, asks in shares.items() if asks)}

    def _is_moving(self, assignment: AssignmentRecord | None) -> bool:
        """Return whether a partition is moving; an assignment that names 10,000 topics is looked through once."""
        if assignment is not self._looked_through[0]:
            owners = assignment.owners.values() if assignment is not None else ()
            self._looked_through = assignment, any(min(each, default=0) < 0 for each in owners)
        return self._looked_through[1]

    # topics

    def _is_idle(self) -> bool:
        """Return whether a topic waits for work that is not in progress, because its last try failed."""
        return any(topic not in self._working for topic in (*self._not_copied_yet, *self._without_id))

    def _apply(self, state: State) -> None:
        before, link = dict(self.problems), self._link.name
        self._claimed = state.topics_that(_is_claimed, link)
        coming_up, without_id = state.topics_that(_comes_up, link), state.topics_that(_waits_for_id, link)
        self._not_copied_yet = [record.topic for record in coming_up]
        self._without_id = [record.topic for record in without_id]
        for record in coming_up:
            step = self._prepare if record.phase is TopicPhase.INITIALISING else self._align
            self._start(record.topic, step(record))
        for record in without_id:
            if (direction := _lacks_id(record)) is not None:
                self._start(record.topic, self._begin_era(record, direction))
        self._follow_changes(state)
        for topic in [topic for topic in self.problems if _is_rechecked(state.topic(link, topic))]:
            del self.problems[topic]
        self._cancel_forgotten(state)
        self._known, self._applied = state, state.epoch
        if self.problems != before:
            self._on_change()

    def _follow_changes(self, state: State) -> None:
        """Take in the topics with a changed record, and all topics after a change of the link."""
        link, prefix = self._link.name, topic_key(self._link.name, "")
        changed = state.records.changed_since(self._known.records, "topic")
        names = {key.removeprefix(prefix) for key in changed if key.startswith(prefix)}
        if state.link(link) is not self._known.link(link):
            names.update(record.topic for record in state.topics(link))
        for name in names:
            record = state.topic(link, name)
            self._note_share(name, record)
            self._keep_rechecked(name, record)

    def _note_share(self, topic: str, record: TopicRecord | None) -> None:
        """Note what the assignment follows from."""
        share = _share(record) if record is not None else None
        if share is None:
            if self._shares.pop(topic, None) is not None:
                self._left.add(topic)
        elif share != self._shares.get(topic):
            self._shares[topic] = share
            self._shares_changed += 1

    def _keep_rechecked(self, topic: str, record: TopicRecord | None) -> None:
        """Recheck the log starts of a topic for as long as the topic is copied."""
        if record is None or not _is_rechecked(record):
            if (recheck := self._rechecking.pop(topic, None)) is not None:
                recheck.cancel()
                self.problems.pop(topic, None)
        elif topic not in self._rechecking and (not record.mapped or self._link.link_settings.follow_log_start):
            self._rechecking[topic] = self._work.start(self._recheck(record))

    @property
    def working(self) -> Set[str]:
        """Keys of the records of topics that are being created or aligned just now."""
        return {topic_key(self._link.name, topic) for topic in self._working}

    def _cancel_forgotten(self, state: State) -> None:
        """Stop aligning forgotten topics, and drop their problems; let a topic that is being created be created.

        Nobody can call a CreateTopics request back, and the topic's record then holds the configs to restore.
        """
        link = self._link.name
        for topic in [topic for topic in self._working if state.topic(link, topic) is None]:
            record = state.topic(link, topic, forgotten=True)
            if record is None or record.phase is not TopicPhase.INITIALISING:
                self._working[topic].cancel()
        for topic in [topic for topic in self.problems if state.topic(link, topic) is None]:
            del self.problems[topic]

    def _start(self, topic: str, step: Coroutine[Any, Any, None]) -> None:
        """Do a step of a topic, unless a step is in progress; a failure is reported and tried again."""
        if topic in self._working:
            step.close()
            return

        async def guarded() -> None:
            try:
                await step
                self.problems.pop(topic, None)
            except StateLogBroken:
                raise
            except (Refused, Failed) as error:
                await self._note(topic, error)
            except WaitTimedOut as late:
                self.problems[topic] = late.summary
                await sleep(_RETRY_S)
            except Exception as error:  # an unforeseen error: the other topics go on, and the error is reported
                self._report_bug(topic, error)
                await sleep(_RETRY_S)
            finally:
                self._working.pop(topic, None)

        self._working[topic] = self._work.start(guarded(), f"topic-{topic}")

    def _report_bug(self, topic: str, error: Exception) -> None:
        problem = f"internal-error: {error!r}"
        if self.problems.get(topic) != problem:
            _log.error("topic %s: what the mirror does for it failed", topic, exc_info=error)
        self.problems[topic] = problem
        self._on_change()

    async def _note(self, topic: str, error: KmigrateError) -> None:
        """Note why a topic is blocked, in its record and in this process's presence; then wait before the next try."""
        reason = error.summary
        self.problems[topic] = reason
        self._on_change()

        def noted(record: TopicRecord) -> TopicRecord | None:
            return (
                None
                if record.reason == reason or record.phase not in NOT_COPIED_YET
                else replace(record, reason=reason)
            )

        if not isinstance(error, Unreachable):
            try:
                await self._link.change_topic(topic, noted)
            except (Failed, WaitTimedOut) as failure:
                self.trouble = failure.summary
        await sleep(_RETRY_S)

    async def _prepare(self, record: TopicRecord) -> None:
        async def note(configs: Configs) -> bool:
            """Write the configs to restore into the record; return False if another process was faster.

            If this process dies, the next must not take the relaxed configs for the topic's own.
            """

            def noted(current: TopicRecord) -> TopicRecord | None:
                if current.phase is not TopicPhase.INITIALISING or _noted(current) != _noted(record):
                    return None
                changed = replace(current, restore_configs=configs.restore, drop_configs=configs.drop)
                return None if changed == current else changed

            state = await self._link.change_topic(record.topic, noted, forgotten=True)
            known = state.topic(self._link.name, record.topic, forgotten=True)
            if known is None or known.phase is not TopicPhase.INITIALISING:
                return False
            return _noted(known) == (configs.restore, configs.drop)  # else another process was faster: look anew

        prepared = await self._maker.prepare(record, note)
        if prepared is None:
            return
        now = now_ms()

        def created(current: TopicRecord) -> TopicRecord | None:
            return _created(current, prepared, now) if current.phase is TopicPhase.INITIALISING else None

        await self._link.change_topic(record.topic, created, forgotten=True)

    async def _align(self, record: TopicRecord) -> None:
        if record.fills:
            await wait_hidden(self._link.log, record.topic, self._link.state.epoch)
        if not record.mapped:
            await self._aligner.align(record)
        now = now_ms()

        def aligned(current: TopicRecord) -> TopicRecord | None:
            if current.phase is not TopicPhase.ALIGNING:
                return None
            phase = advance_topic(current.phase, TopicEvent.ALIGNED)
            return replace(current, phase=phase, since_ms=now, reason="")

        await self._link.change_topic(record.topic, aligned)

    async def _begin_era(self, record: TopicRecord, direction: Direction) -> None:
        """Give a topic's copy a producer id of its own at the cluster to which the copy writes."""
        written = self._link.source if direction is Direction.BACK else self._link.target
        identity = CopyIdentity(*await written.init_producer_id())
        await self._link.change_topic(record.topic, lambda current: begun(current, direction, identity))

    async def _recheck(self, record: TopicRecord) -> None:
        """Correct log starts again and again: a broker that is killed within a minute may forget a log start (W6).

        With the leader moved or away, the log start is unknown, and the copying process reports that. So the leader is
        only asked again soon: a noted problem would delay a promote until the next look, even behind its fence.
        """
        soon = _RETRY_S
        source_starts: Mapping[int, int] = {}
        while True:
            record = self._link.topic(record.topic) or record  # partitions may have been added
            pause = self._link.settings.recheck_s
            if self._link.link_settings.follow_log_start:
                pause = min(pause, round_s(self._link.settings.follow_s, len(self._link.topics)))
            try:
                source_starts = await self._aligner.recheck(record, source_starts)
                self.problems.pop(record.topic, None)
                soon = _RETRY_S
            except Unreachable:
                pause = min(soon, pause)
                soon = pause * 2
            except StateLogBroken:
                raise
            except KmigrateError as error:
                self.problems[record.topic] = error.summary
            except Exception as error:  # an unforeseen error is reported, and the look repeated
                self._report_bug(record.topic, error)
            await sleep(pause)


def _lacks_id(record: TopicRecord) -> Direction | None:
    """Return the direction of a copy that waits for its producer id; None if the copy needs no producer id."""
    era = era_of(record, None)
    return era.direction if era is not None and not era.is_first and era.identity is None else None


class _Share(NamedTuple):
    """The facts of a topic's record that the assignment follows from."""

    partitions: int
    claimed_term: int
    pinned: bool
    """True during a promote or rollback, in which no partition moves."""


def _share(record: TopicRecord) -> _Share | None:
    """Return what the assignment follows from; None for a topic that is not assigned."""
    if not record.copied or record.mapped or by_spark(record):
        return None
    return _Share(record.partitions, record.claimed_term, record.phase in PROMOTING | ROLLING_BACK)


def _is_claimed(record: TopicRecord) -> bool:
    return bool(record.claims)


def _comes_up(record: TopicRecord) -> bool:
    """Return whether a topic is still to be created or aligned."""
    return record.phase in NOT_COPIED_YET


def _waits_for_id(record: TopicRecord) -> bool:
    return record.phase not in NOT_COPIED_YET and _lacks_id(record) is not None


def _is_rechecked(record: TopicRecord | None) -> bool:
    """Return whether a topic is copied from the source, so that the log starts are rechecked."""
    return record is not None and record.phase in COPIED and _lacks_id(record) is None


def _noted(record: TopicRecord) -> tuple[Mapping[str, str], tuple[str, ...]]:
    return record.restore_configs, record.drop_configs


def _created(record: TopicRecord, prepared: Prepared, now: int) -> TopicRecord:
    return replace(
        record,
        phase=advance_topic(record.phase, TopicEvent.CREATED),
        since_ms=now,
        reason="",
        partitions=prepared.partitions,
        source_topic_id=prepared.source_topic_id,
        target_topic_id=prepared.target_topic_id,
        starts=prepared.starts,
        began=prepared.began,
        began_ms=now,
        mapped=prepared.target_starts is not None,
        target_starts=prepared.target_starts or {},
        restore_configs=prepared.configs.restore,
        drop_configs=prepared.configs.drop,
        compacted=prepared.compacted,
        cleaned_to={},
        aligning=(),
        recreate=False,
    )
