"""A link, topics and judges for the mirror's tests: librdkafka does all reading, and none of our own clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as Spec

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.link import MirroredLink
from kmigrate.mirror.process.engine import MirrorEngine
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.link_settings import LinkSettings
from kmigrate.model.presences import MirrorPresence, PartitionProgress
from kmigrate.model.records import ClusterRef, CopyIdentity, LinkRecord, TopicRecord
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.sharing import progress_of
from kmigrate.model.state import State
from kmigrate.records.build import filler_batch
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.log import StateLog
from kmigrate.state.topics import ensure_state_log
from tests.integration.command_line import program
from tests.integration.router_world import world_gone

ROOT = Path(__file__).resolve().parents[2]

_PATIENCE_S = 90.0
"""Time for whatever happens within seconds on an idle machine; no test waits for this time to pass."""


def settings_of(name: str, bootstrap: str) -> ClusterSettings:
    pairs = (address.rsplit(":", 1) for address in bootstrap.split(","))
    return ClusterSettings(name, tuple((host, int(port)) for host, port in pairs))


@dataclass
class World:
    """A link between two clusters, and the state log with its records."""

    link: str
    source: KafkaCluster
    target: KafkaCluster
    log: StateLog

    async def mirror(self, topic: str, start: str = "earliest", offsets: str = "auto") -> None:
        now = int(time.time() * 1000)
        await self.log.append(lambda state: TopicRecord(self.link, topic, TopicPhase.INITIALISING, now, start, offsets))

    async def change(self, topic: str, edit: Callable[[TopicRecord], TopicRecord]) -> None:
        def decide(state: State) -> TopicRecord:
            record = state.topic(self.link, topic)
            assert record is not None
            return edit(record)

        await self.log.append(decide)

    async def in_phase(self, topic: str, phase: TopicPhase, timeout: float = _PATIENCE_S) -> TopicRecord:
        def found(state: State) -> TopicRecord | None:
            record = state.topic(self.link, topic)
            return record if record is not None and record.phase is phase else None

        return await self.log.wait(found, timeout, f"{topic} to be {phase}")

    def progress(self, topic: str) -> dict[int, PartitionProgress]:
        record = self.log.state.topic(self.link, topic)
        return progress_of(self.log.state, record, self.log.alive(MirrorPresence)) if record is not None else {}

    async def until(
        self, topic: str, holds: Callable[[dict[int, PartitionProgress]], bool], what: str, timeout: float = _PATIENCE_S
    ) -> dict[int, PartitionProgress]:
        return await self.log.wait(
            lambda state: told if (told := self.progress(topic)) and holds(told) else None, timeout, what
        )

    async def copied(self, topic: str) -> None:
        """Mirror a topic, and wait until the target has all records of the source."""
        await self.mirror(topic)
        await self.in_phase(topic, TopicPhase.MIRRORING)
        await self.caught_up(topic)

    async def caught_up(self, topic: str, timeout: float = _PATIENCE_S) -> None:
        """Wait until the target's log starts and ends equal the source's, both from the brokers."""
        deadline = time.monotonic() + timeout
        ours: object
        theirs: object
        while True:
            try:
                ours, theirs = await asyncio.to_thread(
                    lambda: (bounds(self.target.bootstrap, topic), bounds(self.source.bootstrap, topic))
                )
            except (TimeoutError, KafkaException) as error:
                ours, theirs = str(error), ""  # The judge itself met a broker that was just being killed.
            if ours == theirs:
                return
            assert time.monotonic() < deadline, (
                f"{topic}: target {ours}, source {theirs}, {self.progress(topic)}, "
                f"{self.log.state.topic(self.link, topic)}"
            )
            await asyncio.sleep(0.1)


def log_bytes(cluster: KafkaCluster, topic: str) -> int:
    """Return the size of the files with a topic's records on the brokers' disks."""
    folders = (broker.folder / "data" for broker in cluster.brokers.values())
    return sum(path.stat().st_size for folder in folders for path in folder.glob(f"{topic}-*/*.log"))


@contextlib.asynccontextmanager
async def link_between(
    source: KafkaCluster, target: KafkaCluster, link: str, of_link: LinkSettings | None = None
) -> AsyncIterator[World]:
    """Make a link; after the block, delete the records of the link and of routers from the state log."""
    settings = settings_of("target", target.bootstrap)
    async with ClusterClient(settings) as client:
        await ensure_state_log(client, Admin(settings))
        async with StateLog(client) as log:
            await log.append(
                lambda state: LinkRecord(
                    link,
                    f"uuid-{link}",
                    ClusterRef("source", source.bootstrap, source.cluster_id),
                    ClusterRef("target", target.bootstrap),
                    int(time.time() * 1000),
                    settings=of_link or LinkSettings(),
                )
            )
            try:
                yield World(link, source, target, log)
            finally:
                await world_gone(log, link, routers=True)


@contextlib.asynccontextmanager
async def engine_running(
    world: World, instance: str = "m1", settings: MirrorSettings | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Run the engine in this process, on connections of its own, until the block ends."""
    ours = settings_of("source", world.source.bootstrap), settings_of("target", world.target.bootstrap)
    async with (
        ClusterClient(ours[0]) as source,
        ClusterClient(ours[1]) as target,
        ClusterClient(ours[1]) as state,
        StateLog(state) as log,
    ):
        link = MirroredLink(
            source,
            target,
            Admin(ours[0]),
            Admin(ours[1]),
            world.link,
            log,
            f"{world.link}-{instance}",
            settings or MirrorSettings(lease_s=1.5, presence_ms=200),
        )
        engine = MirrorEngine(link)
        task = asyncio.get_running_loop().create_task(engine.run())
        try:
            yield task
        finally:
            if task.done() and not task.cancelled() and (failed := task.exception()) is not None:
                raise failed
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def copier(
    source: KafkaCluster,
    target: KafkaCluster,
    identity: CopyIdentity,
    topics: list[str],
    *,
    fills: bool,
    settings: MirrorSettings | None = None,
    request_timeout_s: float = 30.0,
) -> AsyncIterator[Copier]:
    """Run a copier alone, without lease or state log, on topics with two partitions."""
    at_target = replace(settings_of("target", target.bootstrap), request_timeout_s=request_timeout_s)
    async with (
        ClusterClient(settings_of("source", source.bootstrap)) as reading,
        ClusterClient(at_target) as writing,
    ):
        holes = HoleMaker(writing, identity, link_uuid="u", filler=HoleFiller.MARKERS)
        made = Copier(
            CopyContext(
                reading, writing, identity, holes, settings or MirrorSettings(), owner_term=lambda _: int(fills)
            )
        )
        made.assign(MirroredTopic(topic, "", "", {0: 0, 1: 0}) for topic in topics)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(made.run())
            yield made
            running.cancel()


def start_mirror(world: World, instance: str, lease_s: float = 1.5, *, windows: str = "long") -> subprocess.Popen[str]:
    """Start the engine in a process of its own, which the caller ends.

    The process prints "running" once it has read the state log. `windows` is `long`, `short` or `apart`.
    """
    return subprocess.Popen(
        program(
            str(ROOT / "tests" / "integration" / "mirror_process.py"),
            world.link,
            world.source.bootstrap,
            world.target.bootstrap,
            f"{world.link}-{instance}",
            str(lease_s),
            windows,
        ),
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def mirror_process(world: World, instance: str, *, windows: str = "long") -> Iterator[subprocess.Popen[str]]:
    """Run the engine in a process that a test may kill or stop; the process is gone when the block ends."""
    process = start_mirror(world, instance, windows=windows)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        end_mirror(process)


def end_mirror(process: subprocess.Popen[str]) -> None:
    """Kill a mirror, stopped or not, and wait until the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()


# Writers


@contextlib.contextmanager
def all_the_time(write: Callable[[int], int], first: int = 0) -> Iterator[None]:
    """Call `write(number)` again and again in a thread while the block lasts; each call returns the next number."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        number = first
        try:
            while not stop.is_set():
                number = write(number)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert not failures, failures


# Judges


def bounds(bootstrap: str, topic: str, only: Collection[int] = ()) -> dict[int, tuple[int, int]]:
    """Return log start and end of every partition, or of some, as librdkafka's admin client reads them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    partitions = sorted(only) or sorted(admin.list_topics(topic, timeout=10).topics[topic].partitions)
    ends = [
        _offsets(admin, {TopicPartition(topic, p): spec for p in partitions})
        for spec in (Spec.earliest(), Spec.latest())  # type: ignore[no-untyped-call]
    ]
    return {p: (ends[0][p], ends[1][p]) for p in partitions}


_NO_LEADER = (
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION
)  # fmt: skip


def _offsets(admin: AdminClient, asked: dict[TopicPartition, Spec]) -> dict[int, int]:
    """Return log offsets, and retry for some seconds while a new or moved partition has no leader."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return {tp.partition: future.result(10).offset for tp, future in admin.list_offsets(asked).items()}
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


Seen = tuple[int, bytes | None, bytes | None, object, tuple[int, int]]


def read_all(
    bootstrap: str, topic: str, *, committed: bool = True, only: Collection[int] = ()
) -> dict[int, list[Seen]]:
    """Return every record from start to end that a consumer gets: offset, key, value, headers, (type, time)."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # The end of a log shows in an answer without records, which arrives after this time.
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "check.crcs": True,
        }
    )
    limits = bounds(bootstrap, topic, only)
    out: dict[int, list[Seen]] = {p: [] for p in limits}
    consumer.assign([TopicPartition(topic, p, start) for p, (start, _) in limits.items()])
    left = set(limits)
    deadline = time.monotonic() + 40
    while left and time.monotonic() < deadline:
        for message in consumer.consume(2000, 0.05):
            if message.error():
                left.discard(message.partition())
            else:
                partition, offset = message.partition(), message.offset()
                assert partition is not None and offset is not None
                out[partition].append((offset, message.key(), message.value(), message.headers(), message.timestamp()))
    consumer.close()
    assert not left, f"no end of {topic} in partitions {left}"
    return out


def assert_identical(world: World, topic: str, *, at_least: int = 1) -> dict[int, list[Seen]]:
    """Check that the target holds the records of a read_committed reader: same offsets, bytes, headers and times."""
    wanted = read_all(world.source.bootstrap, topic)
    found = read_all(world.target.bootstrap, topic)
    for partition, records in wanted.items():
        assert [r[0] for r in found[partition]] == [r[0] for r in records], f"offsets of partition {partition}"
        assert found[partition] == records
    assert bounds(world.target.bootstrap, topic) == bounds(world.source.bootstrap, topic)
    assert sum(map(len, wanted.values())) >= at_least
    return found


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    partitions: int = 1,
    first: int = 0,
    age_ms: int = 0,
    config: Mapping[str, object] | None = None,
) -> None:
    """Write numbered records with keys and headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 2, **(config or {})})
    for number in range(first, first + count):
        while True:
            try:
                producer.produce(
                    topic,
                    f"value-{number}".encode(),
                    f"key-{number % 97}".encode(),
                    partition=number % partitions,
                    headers={"n": str(number)},
                    timestamp=int(time.time() * 1000) - age_ms,
                )
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(30) == 0


def produce_at(bootstrap: str, topic: str, times: list[int]) -> None:
    """Write a record for each time, in any number of batches."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number, moment in enumerate(times):
        producer.produce(topic, f"at-{number}".encode(), partition=0, timestamp=moment)
    assert producer.flush(30) == 0


def advance(bootstrap: str, topic: str, ends: dict[int, int]) -> None:
    """Move log ends of a source topic up by our filler batches, so that the topic looks old."""

    async def fill() -> None:
        async with ClusterClient(settings_of("source", bootstrap)) as client:
            producer_id, epoch = await client.init_producer_id()
            for partition, end in ends.items():
                at = 0
                while at < end:
                    count = min(1_000_000, end - at)
                    batch = filler_batch(
                        count, timestamp=int(time.time() * 1000), producer_id=producer_id, epoch=epoch, sequence=at
                    )
                    answer = await append_alone(client, topic, partition, batch, purpose="test")
                    assert (answer.error, answer.base_offset) == (0, at)
                    at += count

    asyncio.run(fill())


def cut(bootstrap: str, topic: str, offsets: dict[int, int]) -> None:
    """Delete the records before these offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
    for future in admin.delete_records(wanted).values():
        future.result(20)


def transactions(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    name: str,
    partitions: int = 1,
    each: int = 5,
    first: int = 0,
    age_ms: int = 0,
) -> None:
    """Write transactions of `each` records; every fifth is aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(first, first + count):
        producer.begin_transaction()
        for index in range(each):
            producer.produce(
                topic,
                f"t{number}-{index}".encode(),
                partition=(number + index) % partitions,
                timestamp=int(time.time() * 1000) - age_ms,
            )
        producer.flush(30)
        if number % 5 == 4:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def interleaved(
    bootstrap: str, topic: str, partition: int, *, name: str, seed: int, steps: int = 60, aborted: float = 0.4
) -> list[int]:
    """Write transactions of three producers, open at once and ended in any order; return the committed offsets."""
    draw = random.Random(seed)
    producers = [Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{name}-{n}"}) for n in range(3)]
    for producer in producers:
        producer.init_transactions(30)
    is_open: dict[int, list[int]] = {}
    committed: list[int] = []

    def end(number: int) -> None:
        offsets = is_open.pop(number)
        if draw.random() < aborted:
            producers[number].abort_transaction(30)
        else:
            producers[number].commit_transaction(30)
            committed.extend(offsets)

    for step in range(steps):
        number = draw.randrange(3)
        if number in is_open and draw.random() < 0.25:
            end(number)
            continue
        if number not in is_open:
            producers[number].begin_transaction()
        stored = is_open.setdefault(number, [])
        for _ in range(draw.randint(1, 3)):
            producers[number].produce(
                topic,
                f"{number}-{step}".encode(),
                partition=partition,
                on_delivery=lambda _, message, stored=stored: stored.append(message.offset()),  # type: ignore[misc]
            )
        assert producers[number].flush(30) == 0
    for number in list(is_open):
        end(number)
    return sorted(committed)
