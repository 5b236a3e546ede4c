"""One try of a Spark task: the mirror's own copier copies the task's partitions up to their ends.

    open ──▶ claim, copy, report ──▶ every partition at its end, stopped, or taken from Spark ──▶ release the claims

A try is a mirror process that distributes no partitions; its own come from the driver's plan, not from the link's
assignment. Each partition's position is read from the target's own log. So a try may be killed, repeated, or run twice
at the same time (M1). A try ends by itself, even if its topic is promoted or handed over meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import KmigrateError, Refused, StateLogBroken, Unreachable
from kmigrate.mirror.bulk.claims import Claims
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, mirrored_topic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.lanes import progress_of, target_losses
from kmigrate.mirror.copy.throttle import part_of_limit
from kmigrate.mirror.partition.lane import Key
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.sharing.membership import Membership
from kmigrate.mirror.upkeep.stops import StopKeeper
from kmigrate.model.eras import Direction, Era
from kmigrate.model.lifecycle import COPIED
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import CopyEngine, CopyIdentity, LinkRecord, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.sharing import by_spark
from kmigrate.model.state import State
from kmigrate.net.clock import boottime, sleep, steady_ms
from kmigrate.net.tasks import accompanied
from kmigrate.state.log import StateLog

__all__ = ["ENDLESS", "BulkJob", "BulkTry", "Copied", "copy_ranges"]

ENDLESS = -1
"""The end of a range that is copied until its topic is no longer copied by Spark."""
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class BulkJob:
    """The instructions for every task of a job; they travel to executors, secrets of the settings included."""

    link: str
    source: ClusterSettings
    target: ClusterSettings
    settings: MirrorSettings
    pipelining: bool
    request_limit: int
    throttle: int = 0
    """Maximum number of bytes per second that a task reads; 0 is no limit."""
    partitions: Mapping[str, int] = field(default_factory=dict)
    """Number of partitions of each topic that is copied without end; if the number grows, the job is planned anew."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a partition in a try."""

    topic: str
    partition: int
    position: int
    size: int
    """Bytes of the batches that this try wrote, without those of other tries."""
    problem: str = ""
    left: bool = False
    """True if the topic was meanwhile promoted, handed over or deleted, or has got more partitions."""


async def copy_ranges(job: BulkJob, ends: Mapping[Key, int], instance: str) -> list[Copied]:
    """Copy each partition up to its end, under a separate instance name."""
    async with AsyncExitStack() as stack:
        source, target, state = [
            await stack.enter_async_context(ClusterClient(each)) for each in (job.source, job.target, job.target)
        ]
        log = await stack.enter_async_context(StateLog(state))
        return await BulkTry(job, ends, instance, source, target, log).run()


class BulkTry:
    """A try of a Spark task: a copier, its claims and its presence record."""

    def __init__(
        self,
        job: BulkJob,
        ends: Mapping[Key, int],
        instance: str,
        source: ClusterClient,
        target: ClusterClient,
        log: StateLog,
    ) -> None:
        self._job = job
        self._ends = dict(ends)
        self._topics = sorted({topic for topic, _ in ends})
        self._instance = instance
        self._log = log
        self._membership = Membership(log, job.link, instance, job.settings.lease_s)
        self._claims = Claims(self._membership)
        self._ended: dict[Key, Copied] = {}
        self._applied = -1
        self._trouble = ""
        link, identity = self._activated()
        self._identity = identity
        context = CopyContext(
            source,
            target,
            identity,
            HoleMaker(
                target,
                identity,
                link_uuid=link.uuid,
                filler=job.settings.hole_filler,
                windows=job.settings.windows,
                long_windows=job.settings.long_windows,
            ),
            job.settings,
            link_settings=self._link_settings,
            owner_term=lambda key: self._claims.term(*key),
            may_write=self._may_write,
            pipelining=job.pipelining,
            request_limit=job.request_limit,
        )
        self.copier = Copier(context)

    def _may_write(self) -> bool:
        """Return whether this try has acted on all decisions that others may have made about its partitions."""
        return self._applied == self._log.state.epoch and self._membership.may_write()

    def _link_settings(self) -> LinkSettings:
        link = self._log.state.link(self._job.link)
        return link.settings if link is not None else LinkSettings()

    def _activated(self) -> tuple[LinkRecord, CopyIdentity]:
        link = self._log.state.link(self._job.link)
        if link is None or link.copy is None:
            raise Refused(
                "link-not-activated",
                f"no mirror process has taken up link {self._job.link} yet",
                still_true="nothing was copied",
                next_step=f"kmigrate run, or kmigrate mirror run --link {self._job.link} alone",
            )
        return link, link.copy

    async def run(self) -> list[Copied]:
        """Copy until every partition has ended."""
        copier = self.copier
        self._apply(self._log.state)
        stops = StopKeeper(self._log, self._job.link, self._instance)
        await accompanied(
            self._follow(),
            copier.run(),
            self._announce(),
            self._membership.come_back(),
            self._claim(),
            stops.run(copier.lanes),
        )
        await self._release()
        return [self._ended[key] for key in sorted(self._ended)]

    async def _follow(self) -> None:
        """Apply every change of the state log until all partitions have ended."""
        while True:
            state = self._log.state
            if state.epoch != self._applied:
                self._apply(state)
            self._look(state)
            if self._ended.keys() >= self._ends.keys():
                return
            await self._log.changed(_LOOK_S)

    def _apply(self, state: State) -> None:
        mirrored, partitions = [], 0
        for record in state.topics(self._job.link):
            partitions += len(record.starts) if record.phase in COPIED else 0
            if record.topic in self._topics:
                ours = self._is_ours(record)
                ends = {p: end for (topic, p), end in self._ends.items() if topic == record.topic and ours}
                starts = {p: start for p, start in record.starts.items() if p in ends}
                barriers = {p: ends[p] for p in starts if ends[p] != ENDLESS}
                era = Era(Direction.FORWARD, self._identity, record.starts, is_first=True)
                mirrored.append(replace(mirrored_topic(record, era, starts, 0), barriers=barriers))
        self.copier.assign(mirrored)
        link = state.link(self._job.link)
        limits = [self._job.throttle, part_of_limit(link.throttle, len(self._ends), partitions) if link else 0]
        self.copier.limit(min((limit for limit in limits if limit), default=0))
        self._applied = state.epoch

    def _is_ours(self, record: TopicRecord) -> bool:
        planned = self._job.partitions.get(record.topic)
        return by_spark(record) and planned in (None, len(record.starts))

    def _look(self, state: State) -> None:
        """Note the partitions that have ended since the last look."""
        ours = {record.topic for record in state.topics(self._job.link) if self._is_ours(record)}
        for key, end in self._ends.items():
            if key in self._ended:
                continue
            lane = self.copier.lanes.get(key)
            if lane is None:
                if key[0] not in ours:
                    self._ended[key] = Copied(*key, -1, 0, left=True)
            elif lane.stopped and (lane.report.recorded or self._is_anothers(state, key)):
                self._ended[key] = Copied(*key, lane.target.position, lane.tally.copies.bytes, lane.report.problem)
            elif end != ENDLESS and lane.target.position >= end and not lane.target.sent and not lane.busy:
                self._ended[key] = Copied(*key, lane.target.position, lane.tally.copies.bytes)

    def _is_anothers(self, state: State, key: Key) -> bool:
        """Return whether another try owns a partition, and therefore records the partition's stop."""
        record = state.topic(self._job.link, key[0])
        claim = record.claims.get(key[1]) if record is not None else None
        return claim is not None and claim.instance != self._instance

    # claims and presence

    async def _claim(self) -> None:
        """Claim the partitions that this try does not own yet, for ever: another try may release a partition."""
        while True:
            try:
                for topic in self._topics:
                    await self._claims.claim(topic, self._open(topic))
                self._trouble = ""
            except StateLogBroken:
                raise
            except KmigrateError as error:
                self._trouble = error.summary
                await sleep(1.0)
            await self._log.changed(_LOOK_S)

    def _open(self, topic: str) -> list[int]:
        return [partition for name, partition in self._ends if name == topic and (name, partition) not in self._ended]

    async def _release(self) -> None:
        for topic in self._topics:
            try:
                await self._claims.release(topic)
            except StateLogBroken:
                raise
            except KmigrateError:
                return  # this process then counts as gone after a time of silence

    async def _announce(self) -> None:
        interval = self._job.settings.presence_ms / 1000
        while True:
            sent = boottime()
            try:
                await self._log.announce(self._presence())
                self._membership.announced(sent)
            except Unreachable:
                await sleep(0.1)
                continue
            await sleep(interval)

    def _presence(self) -> MirrorPresence:
        leaving: dict[str, dict[int, PartitionProgress]] = {topic: {} for topic in self.copier.leaving}
        return MirrorPresence(
            instance=self._instance,
            link=self._job.link,
            applied=self._applied,
            active=False,
            interval_ms=self._job.settings.presence_ms,
            topics=leaving | progress_of(self.copier.lanes.values()),
            notes=(
                *(each for each in (self._trouble, self.copier.trouble, self.copier.disks.unwatched) if each),
                *target_losses(self.copier.lanes.values()),
            ),
            engine=CopyEngine.SPARK,
            said_ms=steady_ms(),
            disk_low=self.copier.disks.low,
        )
