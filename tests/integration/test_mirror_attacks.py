"""Attacks that broke earlier designs of this mirror (facts W1 to W10), repeated on real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.net.dial import dial
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.conftest import Pair
from tests.integration import mirror_world
from tests.integration.detour import detour, detoured, lines
from tests.integration.mirror_world import (
    advance,
    assert_identical,
    bounds,
    copier,
    cut,
    engine_running,
    link_between,
    produce,
    read_all,
    settings_of,
    transactions,
)
from tests.soak.chaos import wait_in_sync

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]


async def until(holds: Callable[[], bool | Awaitable[bool]], what: str, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not (await told if isinstance(told := holds(), Awaitable) else told):
        assert time.monotonic() < deadline, f"no end of the wait for {what}"
        await asyncio.sleep(0.02)


def positions(of: Copier) -> int:
    """Return the position of the partition that is furthest behind."""
    return min(lane.target.position for lane in of.lanes.values())


def problems(of: Copier) -> list[str]:
    return [problem for lane in of.lanes.values() if (problem := lane.progress().problem)]


async def new_identity(client: ClusterClient) -> CopyIdentity:
    return CopyIdentity(*await client.init_producer_id())


@contextlib.contextmanager
def trickle(bootstrap: str, topic: str) -> Iterator[None]:
    """Write small batches to two partitions, acknowledged by leaders alone: log ends run ahead of the followers."""
    stop = threading.Event()
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "batch.num.messages": 10, "linger.ms": 1})

    def write() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(60):
                producer.produce(topic, f"live-{number}".encode(), partition=number % 2)
                number += 1
            producer.poll(0)
            time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        assert producer.flush(30) == 0


FOLLOWER = 3
"""Broker that leads no partition of a topic made by `make_led`; clients bootstrap at broker 1."""


def make_led(cluster: KafkaCluster, topic: str, min_in_sync: int = 2) -> None:
    """Make a topic with two partitions, which brokers 1 and 2 lead."""
    config = {"min.insync.replicas": str(min_in_sync)}
    create_topics(
        cluster.client(), [NewTopic(topic, 2, replica_assignment=[[1, 2, FOLLOWER], [2, 1, FOLLOWER]], config=config)]
    )
    wait_in_sync(cluster)


@contextlib.contextmanager
def standing_still(cluster: KafkaCluster, node: int = FOLLOWER) -> Iterator[None]:
    cluster.pause(node)
    try:
        yield
    finally:
        cluster.resume(node)


async def ahead(client: ClusterClient, bootstrap: str, topic: str) -> bool:
    """Tell whether both leaders hold records that a follower lacks: their log ends are beyond their high watermarks."""
    told = await client.log_ends([(topic, partition) for partition in (0, 1)])
    marks = await asyncio.to_thread(bounds, bootstrap, topic)
    return all(told[(topic, partition)].offset > marks[partition][1] for partition in (0, 1))


def test_a_copier_that_begins_while_followers_lag_on_both_sides_waits_for_the_true_end(
    clusters3: Pair, unique_name: Names
) -> None:
    """W2: the copier waits until the log end is certain.

    From the high watermark and the last sequence, read at once, the copier would write the difference twice.
    """
    source, target = clusters3.source, clusters3.target
    topic = unique_name("lagging")
    for cluster in (source, target):
        make_led(cluster, topic)

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            await client.refresh([topic])
            with trickle(source.bootstrap, topic):
                async with copier(source, target, identity, [topic], fills=True) as one:
                    await until(lambda: positions(one) > 0, "the first records")
                    with standing_still(target):
                        await until(lambda: ahead(client, target.bootstrap, topic), "a lagging follower")
                        with standing_still(source):
                            await asyncio.sleep(0.3)
                            one.assign([])
                            async with copier(source, target, identity, [topic], fills=True) as two:
                                await asyncio.sleep(1)
                                assert await ahead(client, target.bootstrap, topic)
                                assert [lane.target.position for lane in two.lanes.values()] == [-1, -1]
                                target.resume(FOLLOWER)
                                source.resume(FOLLOWER)
                                await until(lambda: positions(two) > 0, "the end")
            async with copier(source, target, identity, [topic], fills=True):
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=1_000)

    asyncio.run(scene())


@pytest.mark.soak
def test_first_writes_that_are_refused_let_no_later_one_take_their_place(
    clusters3: Pair, make_topic: MakeTopic, unique_name: Names
) -> None:
    """W3: on an empty log a broker accepts any first sequence.

    A refused first batch, with later batches in flight, would therefore leave a hole.
    """
    source, target = clusters3.source, clusters3.target
    topic = unique_name("refused")
    make_topic(source, topic, partitions=2)
    make_led(target, topic, min_in_sync=3)
    # Compressed batches are copied unchanged: forty for each partition, ready to be sent in a row.
    produce(source.bootstrap, topic, 4_000, partitions=2, config={"compression.type": "lz4", "batch.num.messages": 50})
    refused: set[int] = set()

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            await asyncio.to_thread(target.terminate, FOLLOWER)
            async with copier(source, target, identity, [topic], fills=True) as it:

                def both_refused() -> bool:
                    refused.update(each.partition for each in it.lanes.values() if "NOT_ENOUGH" in each.report.trouble)
                    return len(refused) == 2

                await until(both_refused, "refusals")
                assert bounds(target.bootstrap, topic) == {0: (0, 0), 1: (0, 0)}
                await asyncio.to_thread(target.restart, FOLLOWER)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=4_000)

    asyncio.run(scene())


def test_a_log_start_that_a_killed_broker_forgot_is_put_back(
    source: KafkaCluster, own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """W6: clients could read the alignment's fillers, and offsets below the start would be in range."""
    target, topic = own_cluster(), unique_name("forgotten")
    make_topic(source, topic)
    advance(source.bootstrap, topic, {0: 5_000})
    produce(source.bootstrap, topic, 500, config={"batch.num.messages": 5})
    cut(source.bootstrap, topic, {0: 5_123})

    def restart() -> None:
        target.kill(1)
        kept = target.brokers[1].folder / "data" / "log-start-offset-checkpoint"
        # The broker has forgotten the log start.
        assert f"{topic} 0 5123" not in (kept.read_text() if kept.exists() else "")
        target.restart(1)
        target.wait_ready()

    async def scene() -> None:
        often = MirrorSettings(lease_s=1.5, presence_ms=200, recheck_s=1)
        async with (
            link_between(source, target, unique_name("link")) as world,
            engine_running(world, settings=often) as engine,
        ):
            await world.copied(topic)
            await asyncio.to_thread(restart)
            await asyncio.to_thread(produce, source.bootstrap, topic, 100)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=400)
            assert not engine.done()

    asyncio.run(scene())


@pytest.mark.parametrize("partition_max_bytes", [200, 4 << 20], ids=["batch-by-batch", "all-at-once"])
def test_an_aborted_list_that_names_later_transactions_of_the_same_id_drops_nothing(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, partition_max_bytes: int
) -> None:
    """W9: an answer read from inside a committed transaction may list a later abort of the same producer id.

    The mirror must not drop the records of the committed transaction.
    """
    topic = unique_name("listed")
    make_topic(source, topic)
    transactions(source.bootstrap, topic, 15, name=topic)
    # The second transaction has offsets 6 to 10; the first aborted transaction begins at 24.
    cut(source.bootstrap, topic, {0: 8})

    async def scene() -> None:
        settings = MirrorSettings(lease_s=1.5, presence_ms=200, partition_max_bytes=partition_max_bytes)
        async with (
            link_between(source, target, unique_name("link")) as world,
            engine_running(world, settings=settings),
        ):
            await world.mirror(topic)
            await world.caught_up(topic)
            found = assert_identical(world, topic)
            assert [record[0] for record in found[0]][:4] == [8, 9, 10, 12]
            assert len(found[0]) == 15 * 5 - 3 * 5 - 7

    asyncio.run(scene())


def test_copiers_whose_merged_batches_have_different_bounds_write_every_record_once(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("bounds")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=2)
    produce(source.bootstrap, topic, 60_000, partitions=2, config={"batch.num.messages": 6})

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            small = [MirrorSettings(partition_max_bytes=size) for size in (7_000, 11_000, 40_000, 4 << 20)]
            async with copier(source, target, identity, [topic], fills=True, settings=small[0]) as steady:
                for settings in small[1:]:
                    async with copier(source, target, identity, [topic], fills=False, settings=settings) as other:
                        await until(lambda other=other: positions(other) > 0, "the other copier")  # type: ignore[misc]
                        await asyncio.sleep(0.3)
                        assert not problems(steady) + problems(other)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=60_000)

    asyncio.run(scene())


def test_a_barrier_amid_batches_that_were_merged_already_is_met_exactly(
    clusters3: Pair, make_topic: MakeTopic, unique_name: Names
) -> None:
    """A straggler writes behind the barrier before the copier knows the barrier.

    The copier reads both records and merges them into the same batch.
    """
    source, target = clusters3.source, clusters3.target
    topic = unique_name("amid")
    make_topic(source, topic, partitions=2)
    make_led(target, topic)
    small = {"batch.num.messages": 8}
    produce(source.bootstrap, topic, 12_000, partitions=2, config=small)
    barrier = {partition: end for partition, (_, end) in bounds(source.bootstrap, topic).items()}
    produce(source.bootstrap, topic, 1_000, partitions=2, first=12_000, config=small)

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            async with copier(source, target, identity, [topic], fills=True) as it:
                # No acknowledgement comes: a merged batch of each partition is in flight, all others are queued.
                with standing_still(target):
                    await until(
                        lambda: all(lane.source.read_at == 6_500 for lane in it.lanes.values()), "all to be read"
                    )
                    assert positions(it) == 0
                    it.assign([MirroredTopic(topic, "", "", {0: 0, 1: 0}, barriers=barrier)])
                await until(lambda: all(lane.at_barrier == 6_000 for lane in it.lanes.values()), "the barrier")
                await asyncio.sleep(0.3)
                assert bounds(target.bootstrap, topic) == {0: (0, 6_000), 1: (0, 6_000)}
                assert not problems(it)
                it.assign([MirroredTopic(topic, "", "", {0: 0, 1: 0})])
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=13_000)

    asyncio.run(scene())


@pytest.mark.soak
def test_a_line_that_brings_no_whole_answer_in_time_is_copied_over_all_the_same(
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: MakeTopic,
    unique_name: Names,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line carries 2 MiB/s, an answer has 4 MiB and more, and the timeout is 1.2 seconds.

    Before, the copier threw the received part of each answer away.
    """
    topic, each = unique_name("slow-line"), 10_000
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=2)
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(500):
        producer.produce(topic, random.Random(number).randbytes(each), partition=number % 2)
    assert producer.flush(20) == 0
    impatient = replace(settings_of("source", source.bootstrap), request_timeout_s=0.7)
    others = {"source": impatient, "target": settings_of("target", target.bootstrap)}
    monkeypatch.setattr(mirror_world, "settings_of", lambda name, _: others[name])

    async def scene() -> None:
        async with ClusterClient(others["target"]) as client:
            identity = await new_identity(client)
        with detoured():
            async with copier(source, target, identity, [topic], fills=True) as it:
                await until(lambda: positions(it) == 250, "the copy over a slow line")
                assert not problems(it)

    with lines(source) as slow:
        for relay in slow.control.values():
            relay.limit(2 << 20)
        monkeypatch.setenv("DETOUR", detour(slow))
        asyncio.run(scene())
    assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)


@pytest.mark.soak
def test_a_target_broker_that_stands_still_holds_its_partitions_up_until_others_lead_them(
    clusters3: Pair, unique_name: Names
) -> None:
    """The partitions wait only until other brokers lead them, which takes some nine seconds.

    The requests in flight to the broker are overdue only after 35 seconds.
    """
    source, target, topic = clusters3.source, clusters3.target, unique_name("frozen")
    for cluster in (source, target):
        make_led(cluster, topic)

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = await new_identity(client)
            with trickle(source.bootstrap, topic):
                async with copier(source, target, identity, [topic], fills=True) as it:
                    await until(lambda: positions(it) > 0, "the first records")
                    lane = it.lanes[(topic, 1)]
                    with standing_still(target, 2):
                        await asyncio.sleep(1)  # In this time the mirror reads the broker's earlier answers.
                        stood = lane.target.position
                        await until(lambda: lane.target.position > stood, "the partition that it led", timeout=30)
                    assert not problems(it)
            async with copier(source, target, identity, [topic], fills=True):
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=1_000)

    asyncio.run(scene())


def aborted(bootstrap: str, name: str, topic: str, partition: int = 0) -> None:
    """Write a record and abort: a hole of two offsets without a record before the hole."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name}, logger=None)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=partition)
    producer.flush(30)
    producer.abort_transaction(30)


@contextlib.asynccontextmanager
async def deaf_relay(to: tuple[str, int]) -> AsyncIterator[int]:
    """Run a relay that hides from the broker that the client has left, and then drops the answers; yield the port.

    A network without a relay is as deaf for the time that a FIN, or the RST behind an answer, takes to arrive.
    """
    kept: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                with contextlib.suppress(ConnectionError):
                    writer.write(data)
                    await writer.drain()

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*to)
        kept.extend((writer, back))
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in kept:
            each.transport.abort()


def test_markers_that_wait_in_a_brokers_memory_are_not_written_once_they_were_sent_again(
    clusters3: Pair, unique_name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower stands still, so the broker works on a partition's markers until the follower is out of sync.

    Another partition's markers wait unread on the same connection meanwhile, and the mirror times out.
    """
    source, target = clusters3.source, clusters3.target
    slow, other = unique_name("slow"), unique_name("other")
    while (crc32(slow.encode()) - crc32(other.encode())) % 8:
        other = unique_name("other")
    for cluster in (source, target):
        replicas = {slow: [[1, FOLLOWER], [2, 1]], other: [[1, 2], [2, 1]]}
        create_topics(
            cluster.client(), [NewTopic(topic, 2, replica_assignment=where) for topic, where in replicas.items()]
        )
        wait_in_sync(cluster)
    led = ("127.0.0.1", target.brokers[1].port)

    async def scene() -> None:
        async with (
            deaf_relay(led) as port,  # ends last: the link is removed through the relay
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):

            async def by_relay(protocol: asyncio.BaseProtocol, host: str, to: int, *more: Any) -> None:
                await dial(protocol, host, port if (host, to) == led else to, *more)

            monkeypatch.setattr("kmigrate.net.broker.dial", by_relay)
            identity = await new_identity(client)
            async with copier(source, target, identity, [slow, other], fills=True, request_timeout_s=3.0) as it:
                for topic in (slow, other):
                    await asyncio.to_thread(aborted, source.bootstrap, topic, topic)
                await until(
                    lambda: [it.lanes[t, 0].target.position for t in (slow, other)] == [2, 2], "the first holes"
                )
                with standing_still(target):
                    await asyncio.to_thread(aborted, source.bootstrap, slow, slow)
                    await asyncio.sleep(1)
                    await asyncio.to_thread(aborted, source.bootstrap, other, other)
                    await until(lambda: it.lanes[other, 0].target.position == 4, "the hole behind", timeout=60)
                    await until(lambda: it.lanes[slow, 0].target.position == 4, "the hole that waits", timeout=60)
                    await asyncio.sleep(2)  # The broker continues with the requests in memory.
                for topic in (slow, other):
                    await asyncio.to_thread(produce, source.bootstrap, topic, 10, partitions=2)
                await until(lambda: bool(problems(it)) or positions(it) >= 5, "the rest", timeout=40)
                assert not problems(it)
                for topic in (slow, other):
                    await world.caught_up(topic)
                    assert_identical(world, topic, at_least=10)

    asyncio.run(scene())
