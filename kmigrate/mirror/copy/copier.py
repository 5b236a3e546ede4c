"""The choice of the partitions to copy, and the tasks around their lanes: a reader and a writer for each leader.

All decisions are made in `lane`; between two awaits a lane belongs to a single task. The copier gives each partition
its lane, starts recovery and holes, and checks that both clusters still show the mirrored topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.disks import DiskGuard
from kmigrate.mirror.copy.lanes import LOOK_S
from kmigrate.mirror.copy.reading import SourceReader
from kmigrate.mirror.copy.recovery import Recovery
from kmigrate.mirror.copy.throttle import Throttle
from kmigrate.mirror.copy.windows import WindowSender
from kmigrate.mirror.copy.writing import TargetWriter
from kmigrate.mirror.partition.direct_writers import DirectSeen
from kmigrate.mirror.partition.lane import Key, Lane
from kmigrate.mirror.partition.mapped import MappedLane
from kmigrate.mirror.partition.reactions import Asked, Found, reaction_to
from kmigrate.model.eras import Direction, Era
from kmigrate.model.lifecycle import BEHIND_FENCE, PROMOTING, ROLLBACK_BEHIND_FENCE, ROLLING_BACK, TopicPhase
from kmigrate.model.records import CopyIdentity, TopicRecord, WayBack
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.net.clock import monotonic, sleep
from kmigrate.net.tasks import TaskOwner, in_turns, together

__all__ = ["Copier", "MirroredTopic", "mirrored_topic"]

_NO_DIRECT = 1 << 62
"""Log end of a topic that is copied back: no batch at the target is a direct writer's."""
_TOPIC_COST_S = 0.0005
"""Interval of uncalled looks for each topic: a look takes some 30 µs for each topic, and must stay a small part."""
_LOOK_GAP_S = 0.1
"""Minimum pause between looks, which delay the copy: each of a new leader's thousand refusals calls for a look."""


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """The facts of a topic that the copier needs; all of them come from the state log."""

    topic: str
    source_topic_id: str
    target_topic_id: str
    starts: Mapping[int, int]
    """Log starts of the partitions that this process shall copy."""
    others: int = 0
    """Number of partitions that other processes copy."""
    term: int = 1
    """Term of the lease under which a mapped topic is copied."""
    barriers: Mapping[int, int] = field(default_factory=dict)
    compacted: bool = False
    """True if the source topic's own policy lets a log cleaner work on the topic."""
    promoting: bool = False
    """True during a promote: the link's throttle does not delay the topic."""
    urgent: bool = False
    """True while writers wait behind a fence: all log ends are asked for, and progress is reported at once."""
    paused: bool = False
    stops: Mapping[int, PartitionStop] = field(default_factory=dict)
    losses: Mapping[int, tuple[AcceptedLoss, ...]] = field(default_factory=dict)
    target_starts: Mapping[int, int] | None = None
    """Target offsets where the records of a mapped topic begin; None if offsets are identical."""
    began: Mapping[int, int] = field(default_factory=dict)
    """Log ends of the source when the link began to mirror the topic."""
    identity: CopyIdentity | None = None
    """Producer id of the topic's copy; None: the copier's."""
    is_first_era: bool = True
    """True before the first change of direction: only kmigrate has written to the log since the copy began."""

    @property
    def copy(self) -> tuple[object, ...]:
        """The copy's identity; another identity begins anew, even if a process slept through the removal in between."""
        return self.source_topic_id, self.target_topic_id, self.target_starts is None, self.identity


def mirrored_topic(record: TopicRecord, era: Era, starts: Mapping[int, int], term: int) -> MirroredTopic:
    """Return the facts of a topic's record for the partitions that this process shall copy, in the era's direction.

    For a copy back, the source of the copy is the link's target.
    """
    if era.direction is Direction.BACK and record.way_back is not None:
        return _copied_back(record, record.way_back, era, starts)
    fenced = record.phase is TopicPhase.FENCED
    return MirroredTopic(
        topic=record.topic,
        source_topic_id=record.source_topic_id,
        target_topic_id=record.target_topic_id,
        starts=starts,
        others=len(era.starts) - len(starts),
        term=term,
        barriers={p: barrier.offset for p, barrier in record.barrier.items()} if fenced else {},
        compacted=_has_cleaner(record),
        promoting=record.phase in PROMOTING,
        urgent=record.phase in BEHIND_FENCE,
        paused=record.paused,
        stops=record.stops,
        losses=record.losses,
        target_starts=record.target_starts if record.mapped else None,
        began=record.began,
        identity=era.identity,
        is_first_era=era.is_first,
    )


def _copied_back(record: TopicRecord, way_back: WayBack, era: Era, starts: Mapping[int, int]) -> MirroredTopic:
    fenced = record.phase is TopicPhase.ROLLBACK_FENCED
    return MirroredTopic(
        topic=record.topic,
        source_topic_id=record.target_topic_id,
        target_topic_id=record.source_topic_id,
        starts=starts,
        others=len(era.starts) - len(starts),
        barriers={p: barrier.offset for p, barrier in way_back.barrier.items()} if fenced else {},
        compacted=_has_cleaner(record),
        promoting=record.phase in ROLLING_BACK,
        urgent=record.phase in ROLLBACK_BEHIND_FENCE,
        paused=record.paused,
        stops=way_back.stops,
        began=dict.fromkeys(starts, _NO_DIRECT),
        identity=era.identity,
        is_first_era=False,
    )


def _has_cleaner(record: TopicRecord) -> bool:
    return record.compacted or "compact" in record.restore_configs.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class _Side:
    """The source or the target cluster, and the tasks that send requests to its leaders."""

    asked: Asked
    client: ClusterClient
    work: Callable[[int], Coroutine[Any, Any, None]]
    """Task that sends requests to a broker, for ever."""
    brokers: set[int] = field(default_factory=set)
    """The brokers that have their task."""


class Copier:
    """Copies its partitions from source to target, each under the producer id of its topic's copy."""

    def __init__(self, context: CopyContext) -> None:
        self._context = context
        self._source = context.source
        self._target = context.target
        self._signals = context.signals
        self.lanes = context.lanes
        self.lanes.shown = self._shown
        self.direct: dict[Key, DirectSeen] = {}
        """The direct writers that lanes have read; a restarted lane continues with them."""
        self.added: dict[str, int] = {}
        """Number of partitions on the source, for each topic with partitions that the mirror does not have."""
        self.disks = DiskGuard(context.target, context.settings, self._room_changed)
        self._topics: dict[str, MirroredTopic] = {}
        self._throttle = Throttle()
        self._tasks = TaskOwner(self._on_failure)
        self._recovery = Recovery(context, self._check_anew)
        self._reader = SourceReader(
            context,
            self._throttle,
            self._tasks,
            on_move=self._moved,
            check_anew=self._check_anew,
            meant=partial(self._mirrored_id, context.source),
        )
        self._windows = WindowSender(context, answered=self._answered)
        self._writer = TargetWriter(context, attend=self._attend, answered=self._answered)
        self._sides = (
            _Side(Asked.FETCH, context.source, self._reader.run),
            _Side(Asked.PRODUCE, context.target, self._writer.run),
        )
        self._failure: BaseException | None = None
        self._closed = False
        self._leaving: list[Lane] = []

    # assignment

    def assign(self, topics: Iterable[MirroredTopic]) -> None:
        """Copy only these topics' partitions; never wait. A lost partition's lane stays until its requests end."""
        wanted = {topic.topic: topic for topic in topics}
        self.change({**dict.fromkeys(self._topics), **wanted})

    def change(self, topics: Mapping[str, MirroredTopic | None]) -> None:
        """Copy some topics as given from now on, None: no longer. All other topics stay as they are."""
        changed = {name: topic for name, topic in topics.items() if self._topics.get(name) is not topic}
        for name, topic in changed.items():
            self._let_go(name, topic)
            if topic is None:
                del self._topics[name]
            else:
                self._topics[name] = topic
                self._update_lanes(topic)
        gone = {name for name, topic in changed.items() if topic is None}
        for key in [key for key in self.direct if key[0] in gone] if gone else ():
            del self.direct[key]
        self._signals.assign()

    def _let_go(self, name: str, topic: MirroredTopic | None) -> None:
        """End the lanes of a topic's former copy, and retire the lanes of partitions that another process copies."""
        before = self._topics.get(name)
        for lane in self.lanes.of_topic(name):
            if topic is None or (before is not None and before.copy != topic.copy):
                self._drop(lane)
            elif lane.partition not in topic.starts and not lane.retired:
                lane.retire()
                self._drop_released(lane)

    def _drop(self, lane: Lane) -> None:
        lane.stop("no longer mirrored by this process")
        del self.lanes[lane.key]
        self._leaving = [each for each in (*self._leaving, lane) if not each.at_rest]

    @property
    def leaving(self) -> frozenset[str]:
        """Topics that are no longer copied and still have writes in flight."""
        return frozenset(lane.topic for lane in self._leaving if not lane.at_rest)

    def holds(self, key: Key) -> bool:
        """Return whether this copier may still write to a partition."""
        return key in self.lanes or any(lane.key == key and not lane.at_rest for lane in self._leaving)

    @property
    def late_writes(self) -> frozenset[Key]:
        """Partitions whose writes in flight must not land behind those of another process (`Lane.has_late_writes`)."""
        return frozenset(lane.key for lane in (*self.lanes.values(), *self._leaving) if lane.has_late_writes)

    def _drop_released(self, lane: Lane) -> None:
        if lane.released and self.lanes.get(lane.key) is lane:
            self._drop(lane)

    def _update_lanes(self, topic: MirroredTopic) -> None:
        """Give each partition of a topic a lane with the state of the state log; a resumed lane begins anew."""
        hole_limit = self._context.link_settings().hole_limit
        for partition, start in topic.starts.items():
            key, stop = (topic.topic, partition), topic.stops.get(partition)
            lane = self.lanes.get(key)
            if isinstance(lane, MappedLane) and lane.term != topic.term:
                # The topic's record does not hold this stop, so the lane begins anew.
                lane.stop("the lease was another process's meanwhile", recorded=True)
            if lane is not None and lane.report.recorded and stop is None and lane.at_rest:
                lane = None
            if lane is None:
                before = [each for each in self._leaving if each.key == key]
                if any(not each.at_rest for each in before) or not self._context.is_free(key):
                    continue  # writes of the old lane might be taken for writes of the new lane
                lane = self._lane(topic, partition, start)
                self._context.meter.watch(lane)
                if before or key in self._context.late_writes:
                    lane.unsettle()
                self.lanes[key] = lane
                self._signals.call_for_look()
            if stop is not None:
                lane.stop(stop.text, (stop.first, stop.last), recorded=True)
            if topic.compacted:
                lane.beware_of_cleaner()
            lane.assign(
                barrier=topic.barriers.get(partition),
                promoting=topic.promoting,
                urgent=topic.urgent,
                paused=topic.paused,
                losses=topic.losses.get(partition, ()),
            )
            if topic.promoting:
                self.lanes.follow(key, -1)
            lane.wait_for_room(self.disks.lack_of_room(lane.key))
            lane.fill_holes_of(hole_limit)

    def _lane(self, topic: MirroredTopic, partition: int, start: int) -> Lane:
        identity = topic.identity or self._context.identity
        direct = self.direct.setdefault((topic.topic, partition), DirectSeen(self._context.is_routed))
        if topic.target_starts is None:
            return Lane(
                topic.topic,
                partition,
                producer_id=identity.data_id,
                epoch=identity.data_epoch,
                hole_limit=self._context.link_settings().hole_limit,
                log_start=start,
                since=0 if topic.is_first_era else start,
                live_from=topic.began.get(partition, -1),
                direct=direct,
            )
        return MappedLane(
            topic.topic,
            partition,
            producer_id=identity.data_id,
            epoch=identity.data_epoch,
            log_start=start,
            target_start=topic.target_starts[partition],
            target_topic_id=topic.target_topic_id,
            term=topic.term,
            live_from=topic.began.get(partition, -1),
            direct=direct,
        )

    def target_offset_of(self, key: Key, offset: int) -> int:
        """Return the target offset of a mapped partition's first record from a source offset on; −1 if unknown."""
        lane = self.lanes.get(key)
        return lane.target_offset_of(offset) if isinstance(lane, MappedLane) else -1

    def _room_changed(self) -> None:
        """Make lanes wait for room on the target, or let them continue."""
        for lane in self.lanes.values():
            lane.wait_for_room(self.disks.lack_of_room(lane.key))
        self._signals.wake()

    @property
    def trouble(self) -> str:
        """The reason why a whole cluster cannot be read or written at the moment, or ''."""
        return self._signals.trouble

    def limit(self, rate: int) -> None:
        """Read at most `rate` bytes per second from now on, over all partitions; 0 is no limit."""
        if rate != self._throttle.rate:
            self._throttle.limit(rate, monotonic())
            self._signals.wake()

    async def run(self) -> None:
        """Copy until cancelled; raise only errors that no retry can mend."""
        self._tasks.start(self._signals.pulse(), "pulse")
        self._tasks.start(self._reader.ask_ends(), "ends")
        self._tasks.start(self._reader.look_for_batches(), "batches")
        self._tasks.start(self._reader.follow(), "same rack")
        self._tasks.start(self.disks.run(), "disks")
        self._tasks.start(self._context.holes.run(), "holes")
        try:
            await together(*(self._watch(side) for side in self._sides))
        finally:
            self._closed = True
            self._windows.close()
            await self._tasks.close()

    async def _watch(self, side: _Side) -> None:
        """Look at a cluster for ever, however long the other cluster is silent."""
        while True:
            called = self._signals.looks(side.client)
            await self._look(side)
            await self._until_due(called, monotonic())

    async def _until_due(self, called: asyncio.Event, looked: float) -> None:
        """Wait for a call, but not soon after the last look, or for the interval; raise the failure of a task."""
        try:
            async with asyncio.timeout(max(LOOK_S, len(self._topics) * _TOPIC_COST_S)):
                await called.wait()
        except TimeoutError:
            return
        if self._failure is None:
            await sleep(max(0.0, looked + _LOOK_GAP_S - monotonic()))
        if self._failure is not None:
            raise self._failure

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        self._signals.call_for_look()

    # supervision

    async def _look(self, side: _Side) -> None:
        """Refresh a cluster's metadata, check that its topics are still the same, and start a task for every leader."""
        names = list(self._topics)
        if not names:
            return
        try:
            await side.client.refresh(names)
        except Failed as error:
            self._signals.failed(side.client, error)
        if side.client is self._source:
            self.added = {name: count for name, count in self.added.items() if name in self._topics}
        async for name in in_turns(names):
            if (topic := self._topics.get(name)) is not None:
                self._check_topic(topic, side)
                self._update_lanes(topic)
        self._start_tasks(side)
        async for lane in in_turns(list(self.lanes.values())):
            if self.lanes.get(lane.key) is lane:
                self._attend(lane)
        self._signals.assign()

    def _start_tasks(self, side: _Side) -> None:
        """Start the task of each broker from which, or to which, partitions are copied."""
        nodes = {side.client.leader(*key) for key in self.lanes}
        if side.client is self._source:
            nodes.update(self.lanes.followers.values())
        for node in sorted(nodes - side.brokers):
            if node >= 0:
                side.brokers.add(node)
                self._tasks.start(side.work(node))

    def _check_topic(self, topic: MirroredTopic, side: _Side) -> None:
        """Check whether a cluster still shows the mirrored topic, by topic id and not by name."""
        lanes = [lane for partition in topic.starts if (lane := self.lanes.get((topic.topic, partition))) is not None]
        asked, client = side.asked, side.client
        info, name = client.metadata.topics.get(topic.topic), client.settings.name
        trouble = ""
        if info is None and client.metadata.brokers:
            trouble = f"{reaction_to(asked, Found.GONE).ref}: cluster {name} has no topic {topic.topic} now"
        elif info is not None and info.error:
            trouble = reaction_to(asked, info.error).text(info.error, f"a look at {topic.topic} was refused")
        elif info is not None and not self._shown(client, topic.topic):
            for lane in lanes:
                lane.stop(
                    f"{reaction_to(asked, Found.RECREATED).ref}: {topic.topic} on {name} is another topic than "
                    f"the one mirrored (id {info.topic_id}, was {self._mirrored_id(client, topic.topic)})"
                )
        for lane in lanes:
            lane.metadata_seen(asked, trouble or _leaderless(asked, client, lane))
        if client is self._source:
            if info is not None and len(info.partitions) > len(topic.starts) + topic.others:
                self.added[topic.topic] = len(info.partitions)
            else:
                self.added.pop(topic.topic, None)

    def _mirrored_id(self, client: ClusterClient, name: str) -> UUID | None:
        """Return the id of the mirrored topic on a cluster, if known; another topic may bear its name by now."""
        topic = self._topics.get(name)
        if topic is None:
            return None
        text = topic.source_topic_id if client is self._source else topic.target_topic_id
        return _uuid(text) if text else None

    def _shown(self, client: ClusterClient, name: str) -> bool:
        """Return whether a cluster shows the mirrored topic, or cannot tell."""
        mirrored, info = self._mirrored_id(client, name), client.metadata.topics.get(name)
        return mirrored is None or info is None or not info.topic_id or info.topic_id == mirrored

    async def _check_anew(self, client: ClusterClient, name: str) -> None:
        """Look at a topic now; raise Failed if that is not possible."""
        await client.refresh([name])
        for side in self._sides:
            if side.client is client and (topic := self._topics.get(name)) is not None:
                self._check_topic(topic, side)

    def _attend(self, lane: Lane, *, end_known: bool = False) -> None:
        """Start a lane's recovery, map write or hole, if due; `end_known`: the last answer gave the log end."""
        if self._closed:
            return
        if lane.must_recover:
            self._start(lane, self._recovery.recover(lane), "recover")
        elif isinstance(lane, MappedLane):
            if lane.map_due:
                self._start(lane, self._recovery.store_map(lane), "map")
        elif (hole := lane.hole_due()) is not None:
            lane.fill()
            self._start(lane, self._recovery.fill(lane, hole, end_known=end_known), "fill")
        elif lane.target.windows and lane.window_due:
            self._windows.send(lane)

    def _start(self, lane: Lane, work: Coroutine[Any, Any, None], name: str) -> None:
        lane.begin_work()
        self._tasks.start(self._finish(lane, work), f"{name}-{lane.key}")

    async def _finish(self, lane: Lane, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            lane.end_work()
        self._answered(lane)
        self._signals.wake()

    def _answered(self, lane: Lane) -> None:
        """Handle the target's answer to a lane's append, or a filled hole."""
        self._moved(lane, end_known=True)

    def _moved(self, lane: Lane, *, end_known: bool = False) -> None:
        if lane.wants_more:
            self._attend(lane, end_known=end_known)
        if lane.retired:
            self._drop_released(lane)
        self._context.on_move(lane)


@lru_cache(maxsize=1 << 16)
def _uuid(text: str) -> UUID:
    return UUID(text)  # called for each topic of each fetch


def _leaderless(asked: Asked, client: ClusterClient, lane: Lane) -> str:
    """Return a text if the partition has no leader because its broker or its disk is down, else ''."""
    part = client.metadata.partition(*lane.key)
    if part is None or part.leader >= 0:
        return ""
    name = f"{lane.topic}-{lane.partition}"
    return f"{reaction_to(asked, Found.LEADERLESS).ref}: no broker of cluster {client.settings.name} leads {name} now"
