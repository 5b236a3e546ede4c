"""The tasks around the lanes: one reader per source leader, one writer per target leader, until closed.

Readers queue what they fetch in lanes, writers gather one batch of each lane into a request (A2) and keep a few
requests in flight. Everything that decides is in `lane`; between two awaits a lane belongs to one task alone.

Back-pressure in three sentences: a lane with more than `backlog_bytes` unacknowledged is left out of the next
fetch; the fetch then waits briefly only, so that it is taken in again soon; what is in flight to the target is
bounded by the requests in flight and their size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kmigrate.cluster.client import EARLIEST, LATEST, LOG_END, ClusterClient
from kmigrate.cluster.fetcher import FetchSession
from kmigrate.errors import Failed, KmigrateError, Unreachable
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Lane, Sent
from kmigrate.mirror.mending import Mender
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.codes import Code, row
from kmigrate.protocol.hot import (
    PRODUCE,
    PRODUCE_VERSION,
    FetchedPartition,
    FetchPartition,
    decode_produce,
    encode_produce,
)

__all__ = ["Copier", "MirroredTopic"]

_LOOK_S = 1.0
_SHORT_WAIT_MS = 10
_OLD_MS = 20 * 86_400_000
"""Records older than this may outlive the broker's producer state even where its expiration is raised to the
24.8 days that an int allows (W1): they go one at a time."""
_PRODUCE_TIMEOUT_S = 30.0
_SURE_S = 2.0
"""A source's log that ends too early must do so for this long: a broker that stood still while others took its
place tells of the past until it hears of them."""

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """What the copier must know of one topic; all of it comes from the state log."""

    topic: str
    source_topic_id: str
    target_topic_id: str
    starts: Mapping[int, int]
    barriers: Mapping[int, int] = field(default_factory=dict)
    compacted: bool = False
    """The source topic's own policy says that a log cleaner works on it."""
    urgent: bool = False
    """In a promote: every partition's answer is asked for, idle or not, and progress told at once (AL-76)."""


class Copier:
    """Copies the partitions it was given from source to target with one producer id, as long as it is open."""

    def __init__(
        self,
        source: ClusterClient,
        target: ClusterClient,
        identity: CopyIdentity,
        holes: HoleMaker,
        settings: MirrorSettings,
        *,
        may_fill: Callable[[], bool] = lambda: True,
        pipelining: bool = True,
        on_move: Callable[[Lane], None] = lambda lane: None,
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._settings = settings
        self._in_flight = settings.in_flight if pipelining else 1
        self._on_move = on_move
        self._topics: dict[str, MirroredTopic] = {}
        self.lanes: dict[Key, Lane] = {}
        self.added: dict[str, int] = {}
        """Partitions that the source has and the mirror does not, by topic: their number on the source."""
        self.trouble = ""
        self._moved = asyncio.Event()
        self._look_now = asyncio.Event()
        self._may_write_compacted = may_fill
        self._mender = Mender(source, target, identity, holes, may_fill, self._look_now.set)
        self._tasks = TaskOwner(self._on_failure)
        self._suspected: dict[Key, float] = {}
        self._readers: set[int] = set()
        self._writers: set[int] = set()
        self._failure: BaseException | None = None
        self._closed = False

    # what to copy

    def assign(self, topics: Iterable[MirroredTopic]) -> None:
        """Copy these topics and no others, from now on; never waits."""
        wanted = {topic.topic: topic for topic in topics}
        for key in [key for key in self.lanes if key[0] not in wanted]:
            self.lanes.pop(key).stop("no longer mirrored")
        for topic in wanted.values():
            for partition, start in topic.starts.items():
                lane = self.lanes.get((topic.topic, partition))
                if lane is None:
                    lane = Lane(
                        topic.topic,
                        partition,
                        producer_id=self._identity.data_id,
                        epoch=self._identity.data_epoch,
                        hole_limit=self._settings.hole_limit,
                        log_start=start,
                    )
                    self.lanes[lane.key] = lane
                lane.compacted = lane.compacted or topic.compacted
                lane.barrier = topic.barriers.get(partition)
                lane.urgent = topic.urgent
        if wanted.keys() != self._topics.keys():
            self._look_now.set()
        self._topics = wanted
        self._wake()

    async def run(self) -> None:
        """Copy until cancelled; raises only what no retry can mend."""
        try:
            while True:
                self._look_now.clear()
                try:
                    await self._look()
                    self.trouble = ""
                except Failed as error:
                    self.trouble = error.what
                    await sleep(0.1)
                if self._failure is not None:
                    raise self._failure
                try:
                    async with asyncio.timeout(_LOOK_S):
                        await self._look_now.wait()
                except TimeoutError:
                    continue
        finally:
            self._closed = True
            await self._tasks.close()

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        self._look_now.set()

    def _wake(self) -> None:
        event, self._moved = self._moved, asyncio.Event()
        event.set()

    async def _wait(self, event: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(_LOOK_S):
                await event.wait()
        except TimeoutError:
            return

    # supervision

    async def _look(self) -> None:
        """Read both clusters' layout, check that the topics are still the same, and staff every leader."""
        names = list(self._topics)
        if not names:
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._refresh(self._source, names))
            group.create_task(self._refresh(self._target, names))
        self.added = {}
        for topic in self._topics.values():
            self._check_topic(topic)
        for lane in list(self.lanes.values()):
            self._staff(self._source.leader(*lane.key), self._readers, self._read)
            self._staff(self._target.leader(*lane.key), self._writers, self._write)
            self._attend(lane)
        self._wake()

    async def _refresh(self, client: ClusterClient, names: list[str]) -> None:
        try:
            await client.refresh(names)
        except Unreachable as error:
            self.trouble = error.what

    def _staff(self, node: int, staffed: set[int], work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        if node >= 0 and node not in staffed:
            staffed.add(node)
            self._tasks.start(work(node))

    def _check_topic(self, topic: MirroredTopic) -> None:
        for client, topic_id in ((self._source, topic.source_topic_id), (self._target, topic.target_topic_id)):
            info = client.metadata.topics.get(topic.topic)
            if info is not None and topic_id and info.topic_id and str(info.topic_id) != topic_id:
                problem = (
                    f"topic-recreated: {topic.topic} on {client.settings.name} is another topic than the one "
                    f"mirrored (id {info.topic_id}, was {topic_id})"
                )
                for partition in topic.starts:
                    self.lanes[(topic.topic, partition)].stop(problem)
        info = self._source.metadata.topics.get(topic.topic)
        if info is not None and len(info.partitions) > len(topic.starts):
            self.added[topic.topic] = len(info.partitions)

    def _attend(self, lane: Lane) -> None:
        """Start what a lane needs beside being read and written: its recovery, or a hole."""
        if self._closed:
            return
        if lane.must_recover:
            lane.busy = True
            self._tasks.start(self._mend(lane, self._mender.recover(lane)), f"recover-{lane.key}")
        else:
            hole = lane.hole_due()
            if hole is not None:
                lane.busy = True
                lane.fill()
                self._tasks.start(self._mend(lane, self._mender.fill(lane, hole)), f"fill-{lane.key}")

    async def _mend(self, lane: Lane, work: Coroutine[Any, Any, None]) -> None:
        await work
        self._after(lane)

    def _after(self, lane: Lane) -> None:
        self._attend(lane)
        self._on_move(lane)
        self._wake()

    # reading

    async def _read(self, node: int) -> None:
        """Fetch from one source leader for ever."""
        settings = self._settings
        session = FetchSession(self._source, node, "mirror-read", max_bytes=settings.fetch_max_bytes)
        while True:
            moved = self._moved
            reading = [lane for lane in self.lanes.values() if self._source.leader(*lane.key) == node and lane.reads]
            chosen = [lane for lane in reading if lane.queued_bytes < settings.backlog_bytes]
            if not chosen:
                await self._wait(moved)
                continue
            full = any(lane.urgent for lane in chosen)
            waits = len(chosen) == len(reading) and not full
            wanted = {
                lane.key: FetchPartition(
                    lane.topic,
                    lane.partition,
                    lane.read_at,
                    settings.partition_max_bytes,
                    last_fetched_epoch=lane.leader_epoch,
                )
                for lane in chosen
            }
            try:
                answer = await session.fetch(
                    wanted, max_wait_ms=settings.fetch_wait_ms if waits else _SHORT_WAIT_MS, full=full
                )
            except Unreachable as error:
                self.trouble = error.what
                self._look_now.set()
                await sleep(0.1)
                continue
            pause = await self._take(wanted, answer.partitions)
            if answer.error or pause:
                await sleep(0.05)

    async def _take(self, wanted: Mapping[Key, FetchPartition], parts: Iterable[FetchedPartition]) -> bool:
        """Give each partition's answer to its lane; True where one must be asked again after a pause."""
        pause = False
        now = now_ms()
        for part in parts:
            key = (part.topic, part.partition)
            lane, asked = self.lanes.get(key), wanted.get(key)
            if lane is None or asked is None:
                continue
            if part.diverging is not None:
                pause = True
                self._suspect(
                    lane,
                    f"source-truncated: the source was cut to offset {part.diverging[1]}; offsets up to "
                    f"{asked.offset - 1} had been read (an unclean leader election)",
                )
            elif part.error == Code.OFFSET_OUT_OF_RANGE:
                await self._out_of_range(lane, asked.offset)
                pause = True
            elif part.error:
                pause = True
                self._source_error(lane, part.error)
            else:
                self._suspected.pop(key, None)
                lane.take(asked.offset, part, now)
            self._attend(lane)
            self._on_move(lane)
        self._wake()
        return pause

    def _suspect(self, lane: Lane, problem: str) -> None:
        """Stop the lane once its source has said so for a while, whoever leads it by then."""
        since = self._suspected.setdefault(lane.key, monotonic())
        lane.trouble = problem
        self._look_now.set()
        if monotonic() - since >= _SURE_S:
            lane.stop(problem)

    def _source_error(self, lane: Lane, error: int) -> None:
        if row(error).retriable:
            lane.trouble = f"source: {row(error).name}"
            self._look_now.set()
        else:
            lane.stop(f"source-refused: offset {lane.read_at} cannot be read: {row(error).name} ({error})")

    async def _out_of_range(self, lane: Lane, asked: int) -> None:
        """The offset to be read next is not on the source: name what is lost, never jump (W7, W8)."""
        try:
            start = (await self._source.list_offsets({lane.key: EARLIEST}))[lane.key]
            end = (await self._source.list_offsets({lane.key: LATEST}, replica_id=LOG_END))[lane.key]
        except Unreachable as error:
            self.trouble = error.what
            return
        if start.error or end.error:
            self._look_now.set()
        elif asked < start.offset <= lane.position:
            lane.read_at = lane.position
        elif asked < start.offset:
            lane.stop(
                f"source-range-lost: offsets {asked} to {start.offset - 1} were deleted on the source "
                "before they were copied"
            )
        elif asked > end.offset:
            self._suspect(lane, f"source-shorter: the source ends at {end.offset}, the copy stands at {asked}")

    # writing

    async def _write(self, node: int) -> None:
        """Produce to one target leader for ever."""
        in_flight: set[asyncio.Future[bytearray]] = set()
        while True:
            moved = self._moved
            if not any(self._target.leader(*key) == node for key in self.lanes):
                await self._wait(moved)
                continue
            try:
                connection = await self._target.connection(node, "mirror-write")
            except Unreachable as error:
                self.trouble = error.what
                self._look_now.set()
                await sleep(0.1)
                continue
            batches = self._gather(node, connection) if len(in_flight) < self._settings.in_flight else []
            if not batches:
                await self._wait(moved)
                continue
            self._send(connection, batches, in_flight)
            await connection.drain()

    def _gather(self, node: int, connection: BrokerConnection) -> list[Sent]:
        """At most one batch of each lane that this broker leads."""
        out: list[Sent] = []
        size = 0
        now = now_ms()
        for lane in self.lanes.values():
            if self._target.leader(*lane.key) != node:
                continue
            if lane.compacted and not self._may_write_compacted():
                continue
            careful = lane.compacted or now - lane.head_timestamp > _OLD_MS
            sent = lane.send_next(connection, 1 if careful else self._in_flight)
            if sent is None:
                self._attend(lane)
                continue
            out.append(sent)
            size += len(sent.step.view)
            if size >= self._settings.request_max_bytes:
                break
        return out

    def _send(
        self, connection: BrokerConnection, batches: list[Sent], in_flight: set[asyncio.Future[bytearray]]
    ) -> None:
        body = encode_produce(
            [(sent.lane.topic, sent.lane.partition, sent.step.view) for sent in batches],
            timeout_ms=int(_PRODUCE_TIMEOUT_S * 1000),
        )
        future = connection.send(PRODUCE, PRODUCE_VERSION, body, flexible=True)
        in_flight.add(future)
        overdue = asyncio.get_running_loop().call_later(_PRODUCE_TIMEOUT_S + 5, connection.abort)

        def answered(done: asyncio.Future[bytearray]) -> None:
            overdue.cancel()
            in_flight.discard(done)
            self._answered(batches, done)

        future.add_done_callback(answered)

    def _answered(self, batches: list[Sent], done: asyncio.Future[bytearray]) -> None:
        """Hand a Produce answer, or its absence, to the lanes."""
        failure = done.exception() if not done.cancelled() else Unreachable("cancelled", "the copier was closed")
        answers = {}
        if failure is None:
            try:
                answers = decode_produce(done.result())
            except KmigrateError as error:
                failure = error
        for sent in batches:
            answer = answers.get(sent.lane.key)
            if answer is None:
                sent.lane.unanswered(sent.step, str(failure or "no answer for this partition"))
            else:
                # Topics are CreateTime while they are mirrored: only a repeat is answered with a time (A14).
                repeated = answer.log_append_time >= 0
                sent.lane.answered(sent.step, answer.error, answer.base_offset, repeated=repeated)
                if answer.error and row(answer.error).refresh:
                    self._look_now.set()
            self._after(sent.lane)
