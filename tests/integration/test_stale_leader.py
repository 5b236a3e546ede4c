"""Former leaders of a source: a broker that does not know its successor, and a broker that follows its successor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from kmigrate.cluster.client import ClusterClient, LogOffset
from kmigrate.cluster.leaders import witnessed_ends
from kmigrate.protocol.codes import Code
from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.fakes.relay import Relay
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import bounds, settings_of
from tests.integration.test_old_sources import OLD_VERSION

pytestmark = pytest.mark.soak

_LED = 1
_TOPIC = "orders"
_KEY = (_TOPIC, 0)


def address(cluster: KafkaCluster, node: int) -> str:
    return f"127.0.0.1:{cluster.brokers[node].port}"


def client_of(cluster: KafkaCluster, node: int) -> ClusterClient:
    """Return a client that asks only this broker for the leader, as long as the broker answers.

    librdkafka would ask any connected broker.
    """
    return ClusterClient(settings_of("source", address(cluster, node)))


def leads(cluster: KafkaCluster, node: int) -> int:
    async def ask() -> int:
        async with client_of(cluster, node) as client:
            await client.refresh([_TOPIC])
            return client.leader(*_KEY)

    return asyncio.run(ask())


def make_topic(cluster: KafkaCluster) -> None:
    copies: dict[str, Any] = {"replica_assignment": [[_LED, 2, 3]], "config": {"min.insync.replicas": "2"}}
    create_topics(cluster.client(), [NewTopic(_TOPIC, 1, **copies)])
    wait_until(lambda: {leads(cluster, node) for node in cluster.brokers} == {_LED}, 20, "every broker to know it")


def write(bootstrap: str, count: int) -> None:
    """Write records that all in-sync replicas acknowledge."""
    acknowledged: list[bool] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for _ in range(count):
        producer.produce(_TOPIC, b"value", on_delivery=lambda error, _: acknowledged.append(error is None))
    assert producer.flush(60) == 0
    assert acknowledged == [True] * count


async def believed(client: ClusterClient) -> LogOffset:
    return (await witnessed_ends(client, [_KEY]))[_KEY]


@contextlib.contextmanager
def cut_off_on_request(root: Path) -> Iterator[tuple[KafkaCluster, Relay]]:
    """Run a source of three brokers, and yield it with the only line from a broker to ZooKeeper.

    Without its session the broker still answers as leader, and names itself as the leader. Brokers of a KRaft cluster
    have several ways to their controllers, so no single line cuts them off.
    """
    source = KafkaCluster.create(ClusterSpec("source", OLD_VERSION, 3), root)
    assert source.zookeeper is not None
    told = source.brokers[_LED].properties
    with Relay(source.zookeeper.address) as line:
        told.write_text(told.read_text().replace(source.zookeeper.address, line.address), encoding="utf-8")
        try:
            source.start()
            source.wait_ready()
            make_topic(source)
            yield source, line
        finally:
            source.stop()


def cut_off(source: KafkaCluster, line: Relay) -> None:
    line.stall()
    wait_until(lambda: leads(source, 2) not in (-1, _LED), 40, "another leader")


def test_a_leader_that_has_not_heard_of_its_successor_is_not_believed(tmp_path: Path) -> None:
    with cut_off_on_request(tmp_path) as (source, line):
        write(source.bootstrap, 50)
        cut_off(source, line)
        write(f"{address(source, 2)},{address(source, 3)}", 50)

        async def ask() -> None:
            async with client_of(source, _LED) as client:
                await client.refresh([_TOPIC])
                assert (await client.log_ends([_KEY]))[_KEY] == LogOffset(0, 50, 0)
                assert (await believed(client)).error == Code.FENCED_LEADER_EPOCH
                assert await believed(client) == LogOffset(0, 100, 1)
                assert client.leader(*_KEY) != _LED

        asyncio.run(ask())


def test_mirror_and_router_go_on_with_its_successor(tmp_path: Path, own_cluster: Callable[..., KafkaCluster]) -> None:
    """Mirror and router know no other broker at the start, and that broker answers all their requests."""
    target = own_cluster()
    with cut_off_on_request(tmp_path / "source") as (source, line):
        run = Migration(source, target, tmp_path / "run")
        run.config.write_text(run.config.read_text().replace(source.bootstrap, address(source, _LED)))
        try:
            run.does("link", "create", "blue", "--source", "source", "--target", "target")
            run.start("mirror", "router")
            run.does("topic", "mirror", _TOPIC)
            impatient = {"socket.timeout.ms": 4000, "request.timeout.ms": 4000}
            run.run_clients([ProducerSpec("p-rd", "librdkafka", _TOPIC, 50.0, settings=impatient)], at=run.routers)
            run.writers_go_on(100)
            cut_off(source, line)
            assert leads(source, _LED) == _LED
            run.writers_go_on(500)
            assert leads(source, _LED) == _LED
            assert run.traffic is not None
            run.traffic.stop()
            successors = f"{address(source, 2)},{address(source, 3)}"
            wait_until(
                lambda: bounds(target.bootstrap, _TOPIC) == bounds(successors, _TOPIC),
                20,
                lambda: f"{bounds(target.bootstrap, _TOPIC)} {bounds(successors, _TOPIC)}\n{run.logs()}",
            )
            verdict = run.judge(_TOPIC)
            assert verdict.acked >= 600
            assert verdict.clean, f"{verdict.named}\n{run.logs()}"
        finally:
            run.stop()


@pytest.mark.parametrize("version", [OLD_VERSION, SOURCE_VERSION, TARGET_VERSION])
def test_a_leader_that_follows_by_now_is_not_believed_and_one_that_is_silent_is_missed(
    version: str, own_cluster: Callable[..., KafkaCluster]
) -> None:
    source = own_cluster(version=version, brokers=3, config={"auto.leader.rebalance.enable": "false"})
    make_topic(source)
    write(source.bootstrap, 50)

    async def ask() -> None:
        async with client_of(source, 2) as client:
            await client.refresh([_TOPIC])
            assert await believed(client) == LogOffset(0, 50, 0)
            source.terminate(_LED)
            source.restart(_LED)
            await asyncio.to_thread(source.wait_ready)
            followers = await client.log_ends([_KEY])
            assert (client.leader(*_KEY), followers[_KEY].error) == (_LED, 0)
            assert (await believed(client)).error == Code.FENCED_LEADER_EPOCH
            now = await believed(client)
            assert (now.error, now.offset) == (0, 50)
            await asyncio.to_thread(wait_until, lambda: in_sync(source) == {1, 2, 3}, 30, "all to be in sync again")
            source.pause(_LED)
            try:
                await client.refresh([_TOPIC])
                assert (await believed(client)).error == Code.REPLICA_NOT_AVAILABLE
                # The cluster gives up the silent broker within its session timeout.
                await asyncio.wait_for(until_believed(client), 30)
            finally:
                source.resume(_LED)

    asyncio.run(ask())


async def until_believed(client: ClusterClient) -> None:
    while True:
        if not (await believed(client)).error:
            return
        await asyncio.sleep(0.2)


def in_sync(cluster: KafkaCluster) -> set[int]:
    async def ask() -> set[int]:
        async with client_of(cluster, 2) as client:
            part = (await client.refresh([_TOPIC])).partition(*_KEY)
            return set(part.in_sync) if part is not None else set()

    return asyncio.run(ask())
