"""A link's mirror in one process: stands by or copies, as the state log says.

    stand by ──lease vacant──▶ activate (identity, cluster ids, expiration) ──▶ follow the topics' phases
        ▲                                                                              │
        └───────────────────────────── another holder ─────────────────────────────────┘

Intents come from the state log (topics to mirror, fences, barriers); facts go back into it (created, aligned)
and into the presence log (progress). A crash at any point loses nothing: every step is derived anew from the
state log and the target's own logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, KmigrateError, Refused, StateLogBroken, Unreachable, WaitTimedOut
from kmigrate.mirror.activation import activate
from kmigrate.mirror.align import Aligner
from kmigrate.mirror.copier import Copier, MirroredTopic
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane
from kmigrate.mirror.lease import Lease
from kmigrate.mirror.mending import MapStore
from kmigrate.mirror.metrics import LinkMeter
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.stops import StopKeeper
from kmigrate.mirror.topics import Prepared, TopicMaker
from kmigrate.mirror.upkeep import Upkeep
from kmigrate.model.lifecycle import TopicEvent, TopicPhase, advance_topic
from kmigrate.model.records import MirrorPresence, PartitionProgress, TopicRecord
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.state.log import StateLog
from kmigrate.state.offset_maps import OffsetMaps

__all__ = ["MirrorEngine"]

_PROMOTING = frozenset({TopicPhase.PROMOTE_PENDING, TopicPhase.FENCING, TopicPhase.FENCED})
_COPIED = _PROMOTING | {TopicPhase.MIRRORING}
_RETRY_S = 1.0
_URGENT_GAP_S = 0.01


class _LeaseLostError(Exception):
    """Another process holds the lease now."""


class MirrorEngine:
    """Mirrors one link; any number of processes may run one, one of them copies."""

    def __init__(
        self,
        link_name: str,
        source: ClusterClient,
        target: ClusterClient,
        source_admin: Admin,
        target_admin: Admin,
        log: StateLog,
        instance: str,
        settings: MirrorSettings,
    ) -> None:
        self._link = link_name
        self._source = source
        self._target = target
        self._source_admin = source_admin
        self._target_admin = target_admin
        self._log = log
        self._instance = instance
        self._settings = settings
        self._lease = Lease(log, link_name, instance, settings.lease_s)
        self._stops = StopKeeper(log, link_name)
        self._maker = TopicMaker(source, target, source_admin, target_admin, settings)
        self._maps = OffsetMaps(target)
        self._copier: Copier | None = None
        self._upkeep: Upkeep | None = None
        self._working: dict[str, asyncio.Task[Any]] = {}
        self._rechecking: dict[str, asyncio.Task[Any]] = {}
        self._problems: dict[str, str] = {}
        self._trouble = ""
        self._applied = -1
        self._speak = asyncio.Event()
        self._at_once = False
        self._told: dict[tuple[str, int], int] = {}
        self.meter = LinkMeter(source.settings.name, target.settings.name)
        self.meter.holds_lease = lambda: self._lease.held

    async def run(self) -> None:
        """Until cancelled; raises what a person must mend (another cluster at the address, a broken state log)."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._announce())
                group.create_task(self._lead())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._leave()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(2):
                await self._lease.release()
        except (KmigrateError, TimeoutError):
            return  # the lease then runs out by itself

    # lease

    async def _lead(self) -> None:
        while True:
            try:
                if await self._lease.take_if_vacant():
                    await self._serve()
            except _LeaseLostError:
                continue
            except (Unreachable, WaitTimedOut) as error:
                self._trouble = f"{error.ref}: {error.what}"
                await sleep(_RETRY_S)
            await self._log.changed(0.25)

    async def _serve(self) -> None:
        """Copy for as long as the lease is ours."""
        self._speak.set()
        pipelining = await activate(self._link, self._source, self._target, self._target_admin, self._log)
        link = self._log.state.link(self._link)
        if link is None or link.copy is None:
            return
        self._trouble = ""
        holes = HoleMaker(
            self._target,
            link.copy,
            term=self._lease.term,
            link_uuid=link.uuid,
            filler=self._settings.hole_filler,
        )
        copier = Copier(
            self._source,
            self._target,
            link.copy,
            holes,
            self._settings,
            maps=MapStore(self._maps, link.uuid, self._lease.term),
            may_fill=self._lease.confirmed,
            pipelining=pipelining,
            request_limit=await self._request_limit(),
            on_move=self._moved,
            meter=self.meter,
        )
        aligner = Aligner(self._target, link.copy, self._settings)
        upkeep = Upkeep(
            self._link,
            self._source,
            self._target,
            self._source_admin,
            self._target_admin,
            self._log,
            self._maker,
            aligner,
            self._settings,
            may_act=self._lease.confirmed,
            added=lambda: copier.added,
            on_word=self._speak_at_once,
        )
        work = TaskOwner()
        self._copier, self._upkeep = copier, upkeep
        self.meter.lanes = copier.lanes
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(copier.run())
                group.create_task(self._stops.run(copier.lanes))
                group.create_task(self._follow(copier, aligner, work))
                group.create_task(upkeep.run())
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self._copier = self._upkeep = None
            self.meter.lanes = {}
            await work.close()
            self._working.clear()
            self._rechecking.clear()

    async def _request_limit(self) -> int:
        """Size of the largest request that the target's brokers take; theirs by default where they do not say (A6)."""
        node = next(iter(self._target.metadata.brokers))
        told = await self._target_admin.broker_config(node, "socket.request.max.bytes")
        return int(told.value) if told is not None and told.value.isdigit() else 100 << 20

    # topics

    async def _follow(self, copier: Copier, aligner: Aligner, work: TaskOwner) -> None:
        """Do what the topics' phases ask for, after every change of the state."""
        while True:
            if not self._lease.held:
                raise _LeaseLostError
            state = self._log.state
            if state.epoch != self._applied or self._idle(state):
                self._apply(state, copier, aligner, work)
            await self._log.changed(1.0)

    def _idle(self, state: State) -> bool:
        """Whether a topic waits for work that nobody is doing (its last try failed)."""
        waiting = {TopicPhase.INITIALISING, TopicPhase.ALIGNING}
        return any(r.phase in waiting and r.topic not in self._working for r in state.topics(self._link))

    def _apply(self, state: State, copier: Copier, aligner: Aligner, work: TaskOwner) -> None:
        mirrored: list[MirroredTopic] = []
        for record in state.topics(self._link):
            if record.phase is TopicPhase.INITIALISING:
                self._start(record.topic, self._prepare(record), work)
            elif record.phase is TopicPhase.ALIGNING:
                self._start(record.topic, self._align(record, aligner), work)
            elif record.phase in _COPIED:
                mirrored.append(_mirrored(record))
                self._problems.pop(record.topic, None)
                if record.topic not in self._rechecking and not record.mapped:
                    self._rechecking[record.topic] = work.start(self._recheck(record, aligner))
        copying = {topic.topic for topic in mirrored}
        for topic in [topic for topic in self._rechecking if topic not in copying]:
            self._rechecking.pop(topic).cancel()
        copier.assign(mirrored)
        link = state.link(self._link)
        copier.limit(link.throttle if link is not None else 0)
        self._applied = state.epoch
        self._at_once = self._at_once or any(topic.urgent for topic in mirrored)
        self._speak.set()

    def _start(self, topic: str, step: Coroutine[Any, Any, None], work: TaskOwner) -> None:
        """Do one step of a topic, unless it is being done; a failure is told and tried again."""
        if topic in self._working:
            step.close()
            return

        async def guarded() -> None:
            try:
                await step
                self._problems.pop(topic, None)
            except StateLogBroken:
                raise
            except Refused as refused:
                await self._note(topic, refused)
            except Failed as error:
                await self._note(topic, error)
            except WaitTimedOut as late:
                self._problems[topic] = f"{late.ref}: {late.what}"
                await sleep(_RETRY_S)
            finally:
                self._working.pop(topic, None)

        self._working[topic] = work.start(guarded(), f"topic-{topic}")

    async def _note(self, topic: str, error: KmigrateError) -> None:
        """Say why a topic does not get on, in its record and in our presence; then wait before the next try."""
        reason = f"{error.ref}: {error.what}"
        self._problems[topic] = reason
        self._speak.set()

        def decide(state: State) -> TopicRecord | None:
            record = state.topic(self._link, topic)
            if record is None or record.reason == reason or record.phase in _COPIED:
                return None
            return replace(record, reason=reason)

        if isinstance(error, Refused) or not isinstance(error, Unreachable):
            try:
                await self._log.append(decide)
            except (Failed, WaitTimedOut) as failure:
                self._trouble = f"{failure.ref}: {failure.what}"
        await sleep(_RETRY_S)

    async def _prepare(self, record: TopicRecord) -> None:
        prepared = await self._maker.prepare(record)
        now = now_ms()

        def decide(state: State) -> TopicRecord | None:
            current = state.topic(self._link, record.topic)
            if current is None or current.phase is not TopicPhase.INITIALISING:
                return None
            return _created(current, prepared, now)

        await self._log.append(decide)

    async def _align(self, record: TopicRecord, aligner: Aligner) -> None:
        if not record.mapped:
            await aligner.align(record)
        now = now_ms()

        def decide(state: State) -> TopicRecord | None:
            current = state.topic(self._link, record.topic)
            if current is None or current.phase is not TopicPhase.ALIGNING:
                return None
            phase = advance_topic(current.phase, TopicEvent.ALIGNED)
            return replace(current, phase=phase, since_ms=now, reason="")

        await self._log.append(decide)

    async def _recheck(self, record: TopicRecord, aligner: Aligner) -> None:
        """Log starts again and again while mirroring: a broker killed within a minute may forget one (W6)."""
        while True:
            record = self._log.state.topic(self._link, record.topic) or record  # partitions may have been added
            try:
                await aligner.cut(record)
                self._problems.pop(record.topic, None)
            except Failed as error:
                self._problems[record.topic] = f"{error.ref}: {error.what}"
            await sleep(self._settings.recheck_s)

    # presence

    def _moved(self, lane: Lane) -> None:
        """A lane got on: say so at once where somebody waits for it."""
        if not lane.urgent:
            return
        barrier = lane.at_barrier
        if barrier != self._told.get(lane.key, -1):
            self._told[lane.key] = barrier
            self._at_once = True
        self._speak.set()

    def _speak_at_once(self) -> None:
        self._at_once = True
        self._speak.set()

    async def _announce(self) -> None:
        interval = self._settings.presence_ms / 1000
        while True:
            self._speak.clear()
            self._at_once = False
            sent = monotonic()
            try:
                await self._log.announce(self._presence())
                self._lease.said(sent)
                self.meter.said_at = sent
            except Unreachable as error:
                self._trouble = f"{error.ref}: {error.what}"
                await sleep(0.1)
            await self._until_due(sent, interval)

    async def _until_due(self, sent: float, interval: float) -> None:
        """Wait for the interval, an urgent change, or (a little longer) any change."""
        try:
            async with asyncio.timeout(max(0.0, sent + interval - monotonic())):
                await self._speak.wait()
        except TimeoutError:
            return
        while not self._at_once and monotonic() < sent + _URGENT_GAP_S:
            await sleep(0.002)

    def _presence(self) -> MirrorPresence:
        topics: dict[str, dict[int, PartitionProgress]] = {}
        copier = self._copier
        if copier is not None:
            for lane in copier.lanes.values():
                topics.setdefault(lane.topic, {})[lane.partition] = lane.progress()
        if self._lease.held:
            for record in self._log.state.topics(self._link):
                problem = self._problems.get(record.topic) or ("" if record.topic in topics else self._trouble)
                first = topics.setdefault(record.topic, {}).get(0, PartitionProgress(-1))
                if problem and not first.problem:
                    topics[record.topic][0] = replace(first, problem=problem)
        return MirrorPresence(
            instance=self._instance,
            link=self._link,
            applied=self._applied,
            active=self._lease.held,
            interval_ms=self._settings.presence_ms,
            topics=topics,
            upkeep=self._upkeep.words if self._upkeep is not None else {},
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        """What concerns no single topic."""
        upkeep = self._upkeep.notes if self._upkeep is not None else ()
        trouble = self._copier.trouble if self._copier is not None else ""
        return (*upkeep, trouble) if trouble else upkeep


def _mirrored(record: TopicRecord) -> MirroredTopic:
    fenced = record.phase is TopicPhase.FENCED
    return MirroredTopic(
        topic=record.topic,
        source_topic_id=record.source_topic_id,
        target_topic_id=record.target_topic_id,
        starts=record.starts,
        barriers={p: barrier.offset for p, barrier in record.barrier.items()} if fenced else {},
        compacted=record.compacted or "compact" in record.restore_configs.get("cleanup.policy", ""),
        urgent=record.phase in _PROMOTING,
        paused=record.paused,
        stops=record.stops,
        losses=record.losses,
        target_starts=record.target_starts if record.mapped else None,
    )


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
        mapped=prepared.target_starts is not None,
        target_starts=prepared.target_starts or {},
        restore_configs=prepared.configs.restore,
        drop_configs=prepared.configs.drop,
        compacted=prepared.compacted,
    )
