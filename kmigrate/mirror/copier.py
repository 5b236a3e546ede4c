"""The tasks around the lanes: one reader per source leader, one writer per target leader, until closed.

Readers queue what they fetch in lanes, writers gather one batch of each lane into a request (A2) and keep a few
requests in flight. Everything that decides is in `lane`; between two awaits a lane belongs to one task alone.

What an error means is in `reactions`. It holds back the partition that was answered and no other: readers and
writers go round a partition that waits, and whatever has to be asked about it is asked by a task of its own.

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
from kmigrate.mirror.mapped import MappedLane
from kmigrate.mirror.mending import MapStore, Mender, Warrant
from kmigrate.mirror.metrics import LinkMeter, Slowed
from kmigrate.mirror.reactions import Action, Asked, Found, cause, reaction_to, told
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.steps import Append
from kmigrate.mirror.throttle import Throttle
from kmigrate.model.records import CopyIdentity
from kmigrate.model.stops import AcceptedLoss, PartitionStop
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import monotonic, now_ms, sleep
from kmigrate.net.tasks import TaskOwner
from kmigrate.protocol.hot import (
    PRODUCE,
    PRODUCE_VERSION,
    FetchedPartition,
    FetchPartition,
    ProduceAnswer,
    decode_throttled_produce,
    encode_produce,
)

__all__ = ["Copier", "MirroredTopic"]

_LOOK_S = 1.0
_SHORT_WAIT_MS = 10
_OLD_MS = 20 * 86_400_000
"""Records older than this may outlive the broker's producer state even where its expiration is raised to the
24.8 days that an int allows (W1): they go one at a time."""
_PRODUCE_TIMEOUT_S = 30.0
_REQUEST_HEAD = 64 << 10
"""More than a request has beside its batches."""
_HEARD_MS = 100
_SURE_S = 2.0
"""A source's log that ends too early must do so for this long: a broker that stood still while others took its
place tells of the past until it hears of them."""
_ASK_ENDS_S = 2.0

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """What the copier must know of one topic; all of it comes from the state log."""

    topic: str
    source_topic_id: str
    target_topic_id: str
    starts: Mapping[int, int]
    """Of the partitions that this process shall copy."""
    others: int = 0
    """How many more partitions other processes copy."""
    term: int = 1
    """Of the lease under which a mapped topic is copied."""
    barriers: Mapping[int, int] = field(default_factory=dict)
    compacted: bool = False
    """The source topic's own policy says that a log cleaner works on it."""
    urgent: bool = False
    """In a promote: every partition's answer is asked for, idle or not, and progress told at once (AL-76)."""
    paused: bool = False
    stops: Mapping[int, PartitionStop] = field(default_factory=dict)
    losses: Mapping[int, tuple[AcceptedLoss, ...]] = field(default_factory=dict)
    target_starts: Mapping[int, int] | None = None
    """Where the records of a mapped topic begin on the target; None where offsets are identical."""


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
        maps: MapStore | None = None,
        warrant: Warrant = lambda key: 1,
        pipelining: bool = True,
        request_limit: int = 100 << 20,
        on_move: Callable[[Lane], None] = lambda lane: None,
        meter: LinkMeter | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._settings = settings
        self._in_flight = settings.in_flight if pipelining else 1
        self._request_limit = request_limit - _REQUEST_HEAD
        self._on_move = on_move
        self._meter = meter or LinkMeter()
        self._topics: dict[str, MirroredTopic] = {}
        self.lanes: dict[Key, Lane] = {}
        self.added: dict[str, int] = {}
        """Partitions that the source has and the mirror does not, by topic: their number on the source."""
        self.trouble = ""
        self._moved = asyncio.Event()
        self._look_now = asyncio.Event()
        self._warrant = warrant
        self._mender = Mender(source, target, identity, holes, warrant, self._look_now.set, self._check_anew, maps)
        self._throttle = Throttle()
        self._heard_ms: dict[int, int] = {}
        """When the lanes of a source broker were last told that it has answered."""
        self._held: dict[int, float] = {}
        """Target brokers whose quota we have used up: until when they ask not to be sent to (KIP-219)."""
        self._tasks = TaskOwner(self._on_failure)
        self._suspected: dict[Key, float] = {}
        self._readers: set[int] = set()
        self._writers: set[int] = set()
        self._failure: BaseException | None = None
        self._closed = False

    # what to copy

    def assign(self, topics: Iterable[MirroredTopic]) -> None:
        """Copy these topics' partitions and no others, from now on; never waits.

        A partition of theirs that is not ours any more is retired: its lane stays until what is under way has ended.
        """
        wanted = {topic.topic: topic for topic in topics}
        for lane in list(self.lanes.values()):
            topic = wanted.get(lane.topic)
            if topic is None:
                self._drop(lane)
            elif lane.partition not in topic.starts and not lane.retired:
                lane.retire()
                self._drop_released(lane)
        for topic in wanted.values():
            self._place(topic)
        self._topics = wanted
        self._wake()

    def _drop(self, lane: Lane) -> None:
        lane.stop("no longer mirrored by this process")
        del self.lanes[lane.key]

    def _drop_released(self, lane: Lane) -> None:
        if lane.released and self.lanes.get(lane.key) is lane:
            self._drop(lane)

    def _place(self, topic: MirroredTopic) -> None:
        """A lane for each partition of a topic, as the state log wants it; a resumed one begins anew."""
        for partition, start in topic.starts.items():
            key, stop = (topic.topic, partition), topic.stops.get(partition)
            lane = self.lanes.get(key)
            if isinstance(lane, MappedLane) and lane.term != topic.term:
                lane.stop("the lease was another process's meanwhile")
                lane.recorded = True  # nothing of the topic's: it begins anew
            if lane is not None and lane.recorded and stop is None and lane.at_rest:
                lane = None
            if lane is None:
                lane = self._lane(topic, partition, start)
                self.lanes[key] = lane
                self._look_now.set()
            if stop is not None:
                lane.stop(stop.text, (stop.first, stop.last))
                lane.recorded = True
            if topic.compacted:
                lane.beware_of_cleaner()
            lane.retired = False
            lane.barrier = topic.barriers.get(partition)
            lane.urgent = topic.urgent
            lane.paused = topic.paused
            lane.losses = topic.losses.get(partition, ())

    def _lane(self, topic: MirroredTopic, partition: int, start: int) -> Lane:
        identity = self._identity
        if topic.target_starts is None:
            return Lane(
                topic.topic,
                partition,
                producer_id=identity.data_id,
                epoch=identity.data_epoch,
                hole_limit=self._settings.hole_limit,
                log_start=start,
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
        )

    def limit(self, rate: int) -> None:
        """Read at most `rate` bytes a second from now on, all partitions together; 0 is no limit."""
        if rate != self._throttle.rate:
            self._throttle.limit(rate, monotonic())
            self._wake()

    async def run(self) -> None:
        """Copy until cancelled; raises only what no retry can mend."""
        self._tasks.start(self._ask_ends(), "ends")
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

    async def _wait(self, event: asyncio.Event, most_s: float = _LOOK_S) -> None:
        try:
            async with asyncio.timeout(most_s):
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
            self._place(topic)
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
        """Whether both clusters still show the topic that is mirrored: by its id, not by its name."""
        lanes = [self.lanes[(topic.topic, partition)] for partition in topic.starts]
        for asked, client, topic_id in (
            (Asked.FETCH, self._source, topic.source_topic_id),
            (Asked.PRODUCE, self._target, topic.target_topic_id),
        ):
            info, name = client.metadata.topics.get(topic.topic), client.settings.name
            trouble = ""
            if info is None and client.metadata.brokers:
                trouble = f"{reaction_to(asked, Found.GONE).ref}: cluster {name} has no topic {topic.topic} now"
            elif info is not None and info.error:
                trouble = told(reaction_to(asked, info.error), info.error, f"a look at {topic.topic} was refused")
            elif info is not None and topic_id and info.topic_id and str(info.topic_id) != topic_id:
                for lane in lanes:
                    lane.stop(
                        f"{reaction_to(asked, Found.RECREATED).ref}: {topic.topic} on {name} is another topic than "
                        f"the one mirrored (id {info.topic_id}, was {topic_id})"
                    )
            for lane in lanes:
                lane.layout_trouble[asked] = trouble
        info = self._source.metadata.topics.get(topic.topic)
        if info is not None and len(info.partitions) > len(topic.starts) + topic.others:
            self.added[topic.topic] = len(info.partitions)

    async def _check_anew(self, client: ClusterClient, name: str) -> None:
        """Look at one topic now; raises Unreachable."""
        await client.refresh([name])
        topic = self._topics.get(name)
        if topic is not None:
            self._check_topic(topic)

    def _attend(self, lane: Lane) -> None:
        """Start what a lane needs beside being read and written: its recovery, or a hole."""
        if self._closed:
            return
        if lane.must_recover:
            lane.busy = True
            self._tasks.start(self._mend(lane, self._mender.recover(lane)), f"recover-{lane.key}")
        elif isinstance(lane, MappedLane):
            if lane.map_due:
                lane.busy = True
                self._tasks.start(self._mend(lane, self._mender.store_map(lane)), f"map-{lane.key}")
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
        self._drop_released(lane)
        self._on_move(lane)
        self._wake()

    # reading

    async def _read(self, node: int) -> None:
        """Fetch from one source leader for ever."""
        settings = self._settings
        session = FetchSession(self._source, node, "mirror-read", max_bytes=settings.fetch_max_bytes)
        slowed = False
        while True:
            moved = self._moved
            reading = [lane for lane in self.lanes.values() if self._source.leader(*lane.key) == node and lane.reads]
            now = monotonic()
            owed = self._throttle.wait_s(now)
            chosen = [
                lane
                for lane in reading
                if lane.queued_bytes < settings.backlog_bytes and lane.read_after <= now and (not owed or lane.urgent)
            ]
            if not chosen:
                await self._wait(moved, min([_LOOK_S, *([owed] if owed else []), *_until(reading, now)]))
                if owed and reading:
                    self._meter.slowed_s[Slowed.LINK_THROTTLE] += monotonic() - now
                continue
            session.max_bytes = self._throttle.most(settings.fetch_max_bytes)
            full = any(lane.urgent for lane in chosen)
            waits = len(chosen) == len(reading) and not full
            wanted = {
                lane.key: FetchPartition(
                    lane.topic,
                    lane.partition,
                    lane.read_at,
                    self._throttle.most(settings.partition_max_bytes),
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
            size = self._take(wanted, answer.partitions)
            self._heard(chosen, node, answer.error)
            self._throttle.charge(size, monotonic(), exempt=bool(owed))
            if answer.throttle_ms or slowed:
                slowed = answer.throttle_ms > 0
                self._meter.slowed_s[Slowed.SOURCE_QUOTA] += answer.throttle_ms / 1000
                for lane in chosen:
                    lane.slow(Asked.FETCH, node, answer.throttle_ms)
            if answer.error or slowed:
                await sleep(max(answer.throttle_ms / 1000, 0.05))

    def _take(self, wanted: Mapping[Key, FetchPartition], parts: Iterable[FetchedPartition]) -> int:
        """Give each partition's answer to its lane; the bytes that were read."""
        size = 0
        now = now_ms()
        for part in parts:
            size += len(part.records)
            key = (part.topic, part.partition)
            lane, asked = self.lanes.get(key), wanted.get(key)
            if lane is None or asked is None or lane.stopped:
                continue
            if part.diverging is not None:
                self._suspect_cut(lane, part.diverging[1])
            elif part.error:
                self._source_error(lane, asked.offset, part.error)
            else:
                self._suspected.pop(key, None)
                lane.take(asked.offset, part, now)
            self._attend(lane)
            self._on_move(lane)
        self._wake()
        return size

    def _suspect_cut(self, lane: Lane, end: int) -> None:
        """Believe that the source was cut to `end` once it has said so for a while, whoever leads it by then."""
        now = monotonic()
        if now - self._suspected.setdefault(lane.key, now) >= _SURE_S:
            del self._suspected[lane.key]
            lane.cut(end)
            return
        ref = reaction_to(Asked.FETCH, Found.CUT).ref
        lane.read_failed(f"{ref}: the source ends at {end}, and more of it was read", now, named=True)
        self._look_now.set()

    def _heard(self, asked: Iterable[Lane], node: int, error: int) -> None:
        """Partitions that an answer leaves out end where they did: said of all of them, but not every time."""
        now = now_ms()
        if not error and not 0 <= now - self._heard_ms.get(node, 0) < _HEARD_MS:
            self._heard_ms[node] = now
            for lane in asked:
                if not lane.reading_trouble:
                    lane.tally.heard_ms = now

    async def _ask_ends(self) -> None:
        """Learn for ever where partitions end that are not read now: paused, stopped, held back or refused ones."""
        while True:
            await sleep(_ASK_ENDS_S)
            asked_ms = now_ms()
            silent = [lane for lane in self.lanes.values() if asked_ms - lane.tally.heard_ms > _ASK_ENDS_S * 1000]
            try:
                ends = await self._source.list_offsets({lane.key: LATEST for lane in silent}) if silent else {}
            except Failed:
                continue  # who reads says so
            for lane in silent:
                end = ends[lane.key]
                if not end.error and lane.tally.heard_ms < asked_ms:
                    lane.ends_at(end.offset, asked_ms)

    def _source_error(self, lane: Lane, asked: int, error: int) -> None:
        reaction = reaction_to(Asked.FETCH, error)
        trouble = told(reaction, error, f"reading offset {asked} was refused")
        if reaction.action is Action.STOP:
            lane.stop(trouble)
            return
        lane.tally.retried(Asked.FETCH, cause(reaction, error))
        lane.read_failed(trouble, monotonic(), named=bool(reaction.ref))
        if reaction.action is Action.LOOK:
            lane.looking = True
            self._tasks.start(self._look_at(lane, asked), f"look-{lane.key}")
        elif reaction.action is Action.REFRESH:
            self._look_now.set()

    async def _look_at(self, lane: Lane, asked: int) -> None:
        """The source does not know the offset to be read, or the topic: name what is lost, never jump (W7, W8)."""
        try:
            await self._check_anew(self._source, lane.topic)
            if lane.stopped or self._source.leader(*lane.key) < 0:
                return
            start = (await self._source.list_offsets({lane.key: EARLIEST}))[lane.key]
            end = (await self._source.list_offsets({lane.key: LATEST}, replica_id=LOG_END))[lane.key]
        except Failed as error:
            lane.reading_trouble = f"{error.ref}: {error.what}"
            return
        else:
            if start.error or end.error:
                self._look_now.set()
            elif asked < start.offset:
                lane.deleted(asked, start.offset)
            elif asked > end.offset:
                self._suspect_cut(lane, end.offset)
        finally:
            lane.looking = False
            self._after(lane)

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
            held = self._held.get(node)
            if held is not None and held > monotonic():
                await sleep(held - monotonic())
                continue
            # A broker whose quota is used up reads no more from us meanwhile: answers would be overdue behind it.
            most = self._settings.in_flight if held is None else 1
            batches = self._gather(node, connection) if len(in_flight) < most else []
            if not batches:
                await self._wait(moved)
                continue
            self._send(node, connection, batches, in_flight)
            await connection.drain()

    def _gather(self, node: int, connection: BrokerConnection) -> list[Sent]:
        """At most one batch of each lane that this broker leads."""
        out: list[Sent] = []
        size = 0
        now = now_ms()
        for lane in self.lanes.values():
            if self._target.leader(*lane.key) != node:
                continue
            if lane.careful and not self._warrant(lane.key):
                continue
            if lane.head is not None and size + len(lane.head.view) > self._request_limit:
                self._refuse_too_large(lane, lane.head)
                continue
            alone = lane.compacted or now - lane.head_timestamp > _OLD_MS
            sent = lane.send_next(connection, 1 if alone else self._in_flight)
            if sent is None:
                self._attend(lane)
                continue
            out.append(sent)
            size += len(sent.step.view)
            if size >= self._settings.request_max_bytes:
                break
        return out

    def _refuse_too_large(self, lane: Lane, head: Append) -> None:
        """A broker closes the connection on a larger request without a word; what fits alone goes with the next."""
        if len(head.view) > self._request_limit:
            lane.stop(
                f"batch-too-large: the batch at offset {head.start} has {len(head.view):,} bytes; the target takes "
                f"requests of up to {self._request_limit + _REQUEST_HEAD:,} (socket.request.max.bytes)"
            )

    def _send(
        self, node: int, connection: BrokerConnection, batches: list[Sent], in_flight: set[asyncio.Future[bytearray]]
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
            self._answered(node, batches, done)

        future.add_done_callback(answered)

    def _answered(self, node: int, batches: list[Sent], done: asyncio.Future[bytearray]) -> None:
        """Hand a Produce answer, or its absence, to the lanes."""
        failure = done.exception() if not done.cancelled() else Unreachable("cancelled", "the copier was closed")
        answers: dict[Key, ProduceAnswer] = {}
        if failure is None:
            try:
                answers, throttle_ms = decode_throttled_produce(done.result())
                self._hold(node, batches, throttle_ms)
            except KmigrateError as error:
                failure = error
        now = now_ms()
        for sent in batches:
            answer = answers.get(sent.lane.key)
            before = sent.lane.position
            if answer is None:
                sent.lane.unanswered(sent.step, str(failure or "no answer for this partition"))
            else:
                # Topics are CreateTime while they are mirrored: only a repeat is answered with a time (A14).
                repeated = answer.log_append_time >= 0
                sent.lane.answered(sent.step, answer.error, answer.base_offset, repeated=repeated)
                if answer.error and reaction_to(Asked.PRODUCE, answer.error).action is Action.REFRESH:
                    self._look_now.set()
                elif sent.lane.position > before:
                    self._meter.copied(sent.lane, sent.step, now)
            self._after(sent.lane)

    def _hold(self, node: int, batches: list[Sent], throttle_ms: int) -> None:
        """Send nothing to a broker for as long as its quota asks for, and say so."""
        if throttle_ms:
            self._held[node] = monotonic() + throttle_ms / 1000
            self._meter.slowed_s[Slowed.TARGET_QUOTA] += throttle_ms / 1000
        elif self._held.pop(node, None) is None:
            return
        for sent in batches:
            sent.lane.slow(Asked.PRODUCE, node, throttle_ms)


def _until(lanes: Iterable[Lane], now: float) -> list[float]:
    """How long each lane that rests after an error goes on resting."""
    return [lane.read_after - now for lane in lanes if lane.read_after > now]
