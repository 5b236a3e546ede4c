"""Bad networks around a router: cut in the middle of each answer, short-lived, and silent.

The clients are librdkafka's: their results, and the stored records, must be as with brokers alone. A silent network
accepts everything and returns nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.fakes.relay import Relay
from tests.integration.detour import Lines, detour, lines
from tests.integration.migration import wait_until
from tests.integration.router_world import World, Writer, link_between, quietly, router, values

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

_AT_ONCE = {
    "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 10, "retry.backoff.ms": 5, "retry.backoff.max.ms": 20,
    "metadata.recovery.strategy": "none", "log_level": 0,
}  # fmt: skip
"""Settings of clients that reconnect and retry at once.

By default librdkafka drops the known brokers, and the requests just begun with them, when it is connected to no broker
(KIP-899). Where connections live for less than half a second, such a client stands still with brokers alone, too.
"""
_OUTSIDE = "127.0.0.2"
"""Address at which clients find the router; relays listen there."""
_EACH_BYTE = range(200)
"""Bytes after which an answer is cut: the longest answer of a source to a write or to a transaction is shorter."""
_SOME_BYTES = sorted({*range(24), *range(24, 120, 6)})
_TENTHS = (0.1, 0.4)
"""Lifetimes of connections, in s, which only clients survive that do not wait for half a second themselves."""
_OF_TARGET = (600, 2600)
"""Bytes after which a connection to the target is cut, which begins with longer answers: versions, brokers."""


@dataclass
class Till:
    """Transactions with a number each, in a thread of its own, until the test stops them; a fifth is aborted."""

    bootstrap: str
    topic: str
    name: str
    committed: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Till:
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "transactional.id": self.name, **_AT_ONCE}, logger=None
        )
        self._producer.init_transactions(30)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                value, abort = b"%d" % number, number % 5 == 4
                self._producer.begin_transaction()
                self._producer.produce(self.topic, value, partition=0)
                while not self._ended(abort=abort):
                    pass
                if not abort:
                    self.committed.append(value)
        except KafkaException as error:
            self.errors.append(str(error))

    def _ended(self, *, abort: bool) -> bool:
        try:
            (self._producer.abort_transaction if abort else self._producer.commit_transaction)(60)
        except KafkaException as error:
            if error.args[0].retriable():
                return False
            raise
        return True

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


@dataclass
class SteadyTill:
    """The same with aiokafka, which has no timers of half a second, as a task."""

    bootstrap: str
    topic: str
    name: str
    committed: list[bytes] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stopped: bool = False

    async def run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=self.name, retry_backoff_ms=20, enable_idempotence=True
        )
        await producer.start()
        try:
            for number in itertools.count():
                if self.stopped:
                    return
                value, abort = b"%d" % number, number % 5 == 4
                await producer.begin_transaction()
                await producer.send(self.topic, value, partition=0)
                await (producer.abort_transaction() if abort else producer.commit_transaction())
                if not abort:
                    self.committed.append(value)
        except AioError as error:
            self.errors.append(repr(error))
        finally:
            await producer.stop()


@dataclass
class Committer:
    """Commits of a group at increasing offsets, in a thread of its own, until the test stops them."""

    bootstrap: str
    topic: str
    group: str
    told: int = 0
    """Newest offset with an acknowledged commit."""
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Committer:
        config = {"bootstrap.servers": self.bootstrap, "group.id": self.group, "enable.auto.commit": False, **_AT_ONCE}
        self._consumer = Consumer(config, logger=None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        for position in itertools.count(1):
            while not self._committed(position):
                if self._stop.is_set():
                    return

    def _committed(self, position: int) -> bool:
        """Commit an offset, and tell whether the commit was acknowledged.

        While the coordinator is away, clients get the same errors from brokers.
        """
        if self._stop.is_set():
            return False
        try:
            self._consumer.commit(offsets=[TopicPartition(self.topic, 0, position)], asynchronous=False)
        except KafkaException as error:
            self.errors.append(error.args[0].name())
            return False
        self.told = position
        return True

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._consumer.close()


@dataclass
class Clients:
    """A client of each kind: forwarded writes, passed writes, transactions, and commits of a group that follows."""

    kept: Writer
    passed: Writer
    till: Till
    committer: Committer

    def done(self) -> list[int]:
        return [self.kept.acked, self.passed.acked, len(self.till.committed), self.committer.told]

    def go_on(self, of: slice = slice(None), count: int = 20) -> None:
        before = self.done()
        wait_until(
            lambda: all(now >= then + count for now, then in zip(self.done()[of], before[of], strict=True)),
            20,
            lambda: f"clients to go on from {before}: {self.done()}; {self.errors()}",
        )

    def errors(self) -> list[str]:
        return [*self.kept.errors, *self.passed.errors, *self.till.errors]


Weather = Callable[[Clients, Lines, Lines, list[Relay]], None]


def cut_in_answers(counts: Sequence[int], clients: Clients, source: Lines, target: Lines, outside: list[Relay]) -> None:
    """Cut each next connection to the source after the next number of bytes in its answers."""
    (line,), (other,) = source.clients.values(), target.clients.values()
    chance = random.Random(1)
    came = line.connections
    line.cut_each_after(iter(counts), "down")
    other.cut_each_after((chance.randrange(*_OF_TARGET) for _ in range(20)), "down")
    for each in outside:
        each.cut_each_after((chance.randrange(_OF_TARGET[1]) for _ in range(10)), "down")
        each.cut()
    wait_until(lambda: line.connections >= came + len(counts), 60, "a connection for each byte")
    for each in (line, other, *outside):
        each.heal()


def short_lives(
    least: float, most: float, of: slice, clients: Clients, source: Lines, target: Lines, outside: list[Relay]
) -> None:
    """Let connections through and behind the router, its own included, live for `least` to `most` seconds."""
    chance = random.Random(2)
    for each in (*source.all, *target.all, *outside):
        each.let_live(chance.uniform(least, most) for _ in itertools.count())
        each.cut()
    clients.go_on(of)
    for each in (*source.all, *target.all, *outside):
        each.heal()


def not_a_word(clients: Clients, source: Lines, target: Lines, outside: list[Relay]) -> None:
    """Let the source accept everything and answer nothing.

    No forwarded write is acknowledged, and passed writes go on.
    """
    (line,) = source.clients.values()
    line.stall("down")
    clients.go_on(slice(1, 2), 100)
    before = clients.kept.acked, len(clients.till.committed), clients.committer.told
    clients.go_on(slice(1, 2), 200)
    assert (clients.kept.acked, len(clients.till.committed), clients.committer.told) == before
    line.heal()


@dataclass
class Surrounded:
    """A router of a link, and the relays on all its sides."""

    world: World
    source: Lines
    target: Lines
    outside: list[Relay]
    """Relays between clients and the router: first for the bootstrap listener, then for the brokers' listeners."""

    @property
    def at(self) -> str:
        return self.outside[0].address

    @property
    def all(self) -> list[Relay]:
        return [*self.source.all, *self.target.all, *self.outside]


@asynccontextmanager
async def surrounded(
    source: KafkaCluster, target: KafkaCluster, link: str, *mirrored: str
) -> AsyncIterator[Surrounded]:
    with contextlib.ExitStack() as until:
        to_source, to_target = until.enter_context(lines(source)), until.enter_context(lines(target))
        async with link_between(source, target, link) as world:
            for topic in mirrored:
                await world.put(topic, TopicPhase.MIRRORING)
            port = free_ports(1)[0]
            outside = [
                until.enter_context(Relay(f"127.0.0.1:{at}", f"{_OUTSIDE}:{at}"))
                for at in (port, *(port + 1 + node for node in target.brokers))
            ]
            through = {"detour": detour(to_source, to_target), "advertised_host": _OUTSIDE}
            with router("r1", target, port, log_level="ERROR", **through):
                yield Surrounded(world, to_source, to_target, outside)


@pytest.mark.parametrize(
    "counts", [pytest.param(_SOME_BYTES, id="some"), pytest.param(_EACH_BYTE, id="each", marks=pytest.mark.soak)]
)
def test_no_client_is_harmed_by_a_bad_network_around_its_router(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, counts: Sequence[int]
) -> None:
    weathers: list[Weather] = [
        partial(cut_in_answers, counts),
        partial(short_lives, 0.5, 1.5, slice(None)),
        partial(short_lives, *_TENTHS, slice(2)),
        not_a_word,
    ]
    kept, passed, pays, group = (unique_name(name) for name in ("kept", "passed", "pays", "group"))
    for topic in (kept, passed, pays):
        for cluster in (source, target):
            make_topic(cluster, topic, partitions=3)

    async def scenario() -> Clients:
        async with surrounded(source, target, unique_name("link"), kept, pays) as around:
            await around.world.put_group(group, GroupPhase.MIRRORED, GroupMode.FOLLOW)
            clients = Clients(
                Writer(around.at, kept, "kept", _AT_ONCE),
                Writer(around.at, passed, "passed", _AT_ONCE),
                Till(around.at, pays, unique_name("till")),
                Committer(around.at, kept, group),
            )
            with clients.kept, clients.passed, clients.till, clients.committer:
                for weather in weathers:
                    await quietly(clients.go_on)
                    await quietly(weather, clients, around.source, around.target, around.outside)
                await quietly(clients.go_on)
        return clients

    clients = asyncio.run(scenario())
    assert clients.errors() == []
    assert values(source.bootstrap, kept) == clients.kept.sent
    assert values(target.bootstrap, passed) == clients.passed.sent
    assert shown(source, pays) == clients.till.committed
    assert clients.committer.told <= committed(source, group, kept) <= clients.committer.told + 1


@pytest.mark.soak
def test_transactions_go_on_while_connections_live_for_tenths_of_a_second(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Connections are short-lived behind the router, before it, and on all sides; there a topic is promoted meanwhile.

    librdkafka would stand still. Without a coordinator it looks each half second for a connected broker, and connects
    to a broker if there is none. At the next look that connection is gone. The same happens with brokers alone.
    """
    kept, moved, passed = (unique_name(name) for name in ("kept", "moved", "passed"))
    for topic in (kept, moved, passed):
        for cluster in (source, target):
            make_topic(cluster, topic, partitions=3)

    async def scenario() -> list[SteadyTill]:
        async with surrounded(source, target, unique_name("link"), kept, moved) as around, asyncio.TaskGroup() as tasks:
            tills = [SteadyTill(around.at, topic, unique_name("till")) for topic in (kept, moved, passed)]
            for till in tills:
                tasks.create_task(till.run())
            await all_go_on(tills)
            chance = random.Random(4)
            for relays in (around.source.all, around.target.all, around.outside, around.all):
                for each in relays:
                    each.let_live(chance.uniform(*_TENTHS) for _ in itertools.count())
                    each.cut()
                await all_go_on(tills, times=10)
                if len(relays) == len(around.all):
                    fenced = await around.world.fence(moved)
                    acks = await around.world.drained(moved, fenced.fence_epoch)
                    await around.world.flip(moved, fenced.fence_epoch, acks)
                    await all_go_on(tills, times=10)
                for each in relays:
                    each.heal()
            for till in tills:
                till.stopped = True
        return tills

    tills = asyncio.run(scenario())
    assert [till.errors for till in tills] == [[], [], []]
    at_source, at_target = ([shown(cluster, topic) for topic in (kept, moved, passed)] for cluster in (source, target))
    assert [[*one, *other] for one, other in zip(at_source, at_target, strict=True)] == [t.committed for t in tills]
    assert [bool(found) for found in at_source + at_target] == [True, True, False, False, True, True]


async def all_go_on(tills: list[SteadyTill], times: int = 1) -> None:
    """Wait that many times until each client has twenty more transactions; each time may take five seconds."""
    for _ in range(times):
        await quietly(twenty_more, tills)


def twenty_more(tills: list[SteadyTill]) -> None:
    before = [len(till.committed) for till in tills]
    wait_until(
        lambda: all(len(till.committed) >= then + 20 for till, then in zip(tills, before, strict=True)),
        5,
        lambda: f"transactions after {before}: {[(len(till.committed), till.errors) for till in tills]}",
    )


def shown(cluster: KafkaCluster, topic: str) -> list[bytes | str | None]:
    """Return the values that a reader of committed records gets from a topic's first partition, up to its end."""
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "shown", "enable.partition.eof": True}
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes | str | None] = []
        while (message := consumer.poll(20)) is not None and message.error() is None:
            found.append(message.value())
        ended = message.error() if message is not None else None
        assert ended is not None and ended.code() == KafkaError._PARTITION_EOF
        return found
    finally:
        consumer.close()


def committed(cluster: KafkaCluster, group: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
        return found.offset
    finally:
        consumer.close()


@pytest.mark.soak
def test_a_target_that_ends_what_is_idle_has_nothing_written_twice(tmp_path: Path, unique_name: Names) -> None:
    """The connection to the target is idle, because the clients only write forwarded topics.

    Without idempotence a repeated write cannot be recognised.
    """
    topic, (of_source, of_target) = unique_name("away"), source_and_target()
    impatient = replace(of_target, config={"connections.max.idle.ms": "1500"})
    config: dict[str, Any] = {"enable.idempotence": False, "acks": "all", "log_level": 0, **_AT_ONCE}

    async def scenario() -> None:
        with running_clusters(tmp_path, of_source, impatient) as (source, target):
            for cluster in (source, target):
                create_topics({"bootstrap.servers": cluster.bootstrap}, [NewTopic(topic, 1, 1)])
            async with link_between(source, target, unique_name("link")) as world:
                await world.put(topic, TopicPhase.MIRRORING)
                with router("r1", target) as running:
                    with contextlib.ExitStack() as stack:
                        writers = [
                            stack.enter_context(Writer(running.bootstrap, topic, f"w{number}-", config, partitions=1))
                            for number in range(8)
                        ]
                        await asyncio.sleep(20)
                    stored = values(source.bootstrap, topic, partitions=1)[0]
        assert [writer.errors for writer in writers] == [[]] * len(writers)
        assert sorted(stored) == sorted(value for writer in writers for value in writer.sent[0])

    asyncio.run(scenario())
