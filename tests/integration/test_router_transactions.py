"""Transactional producers behind the router, on real clusters: before, during and after the promote of their topics."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import add_partition, open_topics
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import LinkRecord
from kmigrate.protocol.api import entity
from kmigrate.protocol.codes import Code
from kmigrate.router.wire.transactions import partition_codes, partitions_request
from kmigrate.sandbox.client_specs import ClientSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.workflow.controller.keepalive import IdKeeper
from tests.integration.java_clients import java_command
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.router_world import ends, link_between, quietly, router, settings_of

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

JAVA_RECORDS = 3_200


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 2.0\n"
    with fresh_migration(tmp_path, settings) as run:
        yield run


def java_transactions(bootstrap: str, topic: str, name: str) -> subprocess.Popen[str]:
    """Start Kafka's own producer, in transactions of 50 ms; its values count up."""
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(JAVA_RECORDS),
        "--payload-monotonic", "--throughput", "400", "--transactional-id", name, "--transaction-duration-ms", "50",
        "--producer-props", f"bootstrap.servers={bootstrap}",
    )  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Pairs:
    """A librdkafka producer in a thread of its own: each transaction writes a number to two topics."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.committed: list[int] = []
        self.errors: list[str] = []
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name}, logger=None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Pairs:
        self._producer.init_transactions(30)
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        try:
            while not self._stop.is_set():
                self._producer.begin_transaction()
                for topic in ("debit", "credit"):
                    self._producer.produce(topic, b"%d" % number, partition=number % 2)
                self._producer.commit_transaction(60)
                self.committed.append(number)
                number += 1
        except KafkaException as error:
            self.errors.append(str(error))

    def until_committed(self, count: int) -> None:
        wait_until(lambda: len(self.committed) >= count or self.errors, 60, f"{count} transactions")

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(90)

    def __exit__(self, *_: object) -> None:
        self.finish()


def test_transactional_producers_of_two_families_are_promoted_live(migration: Migration) -> None:
    run = migration
    topics = ("payments", "java", "debit", "credit", "sink")
    for topic in topics:
        run.make_topic(topic, 2)
    settings = {"transactional.id": "sink", "transaction.timeout.ms": 600_000}
    sink = Producer({"bootstrap.servers": run.source.bootstrap, **settings}, logger=None)
    sink.init_transactions(30)
    sink.begin_transaction()
    sink.produce("sink", b"begun past the routers", partition=0)
    sink.flush(20)
    clients: list[ClientSpec] = [
        TransactionalSpec("till", "payments", rate=200.0),
        ProducerSpec("shop", "librdkafka", "payments", 100.0),
    ]
    traffic = run.run_clients(clients)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", *topics)
    traffic.roll("producers", run.routers)
    traffic.roll("transactional", run.routers)
    with java_transactions(run.routers, "java", "java-tx") as java, Pairs(run.routers, "pairs") as pairs:
        pairs.until_committed(5)
        wait_until(lambda: len(list(read_topic(run.target.bootstrap, "java"))) > 300, 30, "committed records")
        refused = run.cli("promote", "debit", "--yes")
        assert (refused.code, refused.told["error"]) == (3, "coupled-topics"), refused
        with run.doing("promote", *topics, "--yes"):
            time.sleep(3)
            assert run.cli("topic", "show", "sink").told["phase"] == "promote-pending"
            sink.commit_transaction(30)
        out, _ = java.communicate(timeout=60)
        pairs.until_committed(len(pairs.committed) + 5)
        pairs.finish()
    assert java.returncode == 0, out
    assert "Exception" not in out, out
    values = [int(record.value or b"-1") for record in read_topic(run.target.bootstrap, "java")]
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for record in read_topic(run.target.bootstrap, "java"):
        by_partition[record.partition].append(int(record.value or b"-1"))
    assert sorted(values) == list(range(JAVA_RECORDS))
    assert all(part == sorted(part) for part in by_partition.values())
    for topic in ("debit", "credit"):
        assert sorted(int(value or b"-1") for value in stored(run.target, topic)) == pairs.committed, pairs.errors
    assert pairs.errors == []
    assert stored(run.target, "sink") == [b"begun past the routers"]
    verdict = run.judge("payments")
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"


def transaction(producer: Producer, topic: str, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


def stored(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    """Return the values that a reader of committed records gets."""
    return [record.value for record in read_topic(cluster.bootstrap, topic)]


def test_of_two_holders_of_an_id_the_older_is_fenced_before_and_after_the_flip(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, name = unique_name("holders"), unique_name("x")
    for cluster in (source, target):
        make_topic(cluster, topic)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as one, router("r2", target) as two:
                await world.routers_apply(2)
                made = [
                    Producer({"bootstrap.servers": where.bootstrap, "transactional.id": name}, logger=None)
                    for where in (one, two, one)
                ]
                await quietly(made[0].init_transactions, 30)
                made[0].begin_transaction()
                made[0].produce(topic, b"lost with its holder", partition=0)
                await quietly(made[0].flush, 20)
                await quietly(made[1].init_transactions, 30)
                with pytest.raises(KafkaException) as fenced:
                    await quietly(made[0].commit_transaction, 20)
                assert fenced.value.args[0].fatal(), fenced.value
                await quietly(transaction, made[1], topic, b"second")
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch, 2)
                await world.flip(topic, record.fence_epoch, acks)
                await world.routers_apply(2)
                await quietly(transaction, made[1], topic, b"second, promoted")
                await quietly(made[2].init_transactions, 30)
                with pytest.raises(KafkaException) as fenced:
                    await quietly(transaction, made[1], topic, b"never")
                assert fenced.value.args[0].fatal(), fenced.value
                await quietly(transaction, made[2], topic, b"third")

    asyncio.run(scenario())
    assert stored(source, topic) == [b"second"]
    assert stored(target, topic) == [b"second, promoted", b"third"]


def test_records_and_offsets_are_one_transaction_once_what_is_written_is_promoted(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    read, written, group = unique_name("read"), unique_name("written"), unique_name("g")
    for cluster in (source, target):
        make_topic(cluster, read)
        make_topic(cluster, written)

    def process(consumer: Consumer, producer: Producer, count: int) -> None:
        """Read `count` records, and write each record on, with its offset, in a transaction of its own."""
        deadline = time.monotonic() + 30
        while count:
            assert time.monotonic() < deadline
            message = consumer.poll(0.5)
            if message is None or message.error() is not None:
                continue
            value = message.value()
            assert value is not None
            producer.begin_transaction()
            producer.produce(written, b"seen " + value, partition=0)
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
            producer.commit_transaction(30)
            count -= 1

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            for topic in (read, written):
                await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                await world.routers_apply()
                ours = {"bootstrap.servers": running.bootstrap}
                filler = Producer({"bootstrap.servers": target.bootstrap})  # The producer takes the mirror's place.
                for number in range(4):
                    filler.produce(read, b"%d" % number, partition=0)
                assert await quietly(filler.flush, 20) == 0
                config = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
                consumer = Consumer({**ours, **config}, logger=None)
                consumer.subscribe([read])
                producer = Producer({**ours, "transactional.id": unique_name("x")}, logger=None)
                await quietly(producer.init_transactions, 30)
                with pytest.raises(KafkaException) as refused:
                    await quietly(process, consumer, producer, 1)
                assert not refused.value.args[0].fatal(), refused.value
                await quietly(producer.abort_transaction, 30)
                record = await world.fence(written)
                acks = await world.drained(written, record.fence_epoch)
                await world.flip(written, record.fence_epoch, acks)
                await world.routers_apply()
                await quietly(process, consumer, producer, 2)
                await quietly(consumer.close)
                consumer = Consumer({**ours, **config}, logger=None)
                consumer.subscribe([read])
                await quietly(process, consumer, producer, 1)
                await quietly(consumer.close)

    asyncio.run(scenario())
    assert stored(source, written) == []
    assert stored(target, written) == [b"seen 1", b"seen 2", b"seen 3"]


def test_a_partition_is_put_into_a_clients_transaction_in_its_name(
    target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """A router does this for a batch that arrives at another broker than the coordinator."""
    topic, name = unique_name("joined"), unique_name("x")
    make_topic(target, topic)
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": name}, logger=None)
    producer.init_transactions(30)

    async def scenario() -> None:
        async with ClusterClient(settings_of("target", target.bootstrap)) as client:
            await quietly(transaction, producer, topic, b"one")
            ((_, (state,)),) = (await client.describe_producers([(topic, 0)])).values()
            holder = (name, state.producer_id, state.producer_epoch)
            for _ in range(200):
                code = await add_partition(client, holder, topic, 0)
                if code != Code.CONCURRENT_TRANSACTIONS:
                    break
                await asyncio.sleep(0.05)
            assert code == 0
            assert await open_topics(client, [name]) == {name: frozenset({topic})}
            older = (name, state.producer_id, state.producer_epoch - 1)
            assert await add_partition(client, older, topic, 0) in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH)
            await quietly(transaction, producer, topic, b"two")

    asyncio.run(scenario())
    assert stored(target, topic) == [b"one", b"two"]


def test_a_broker_calls_itself_no_coordinator_only_to_who_may_write_under_the_id_and_to_the_topic(
    own_cluster: Callable[..., KafkaCluster], make_topic: MakeTopic
) -> None:
    """After NOT_COORDINATOR the router adds the partition to the transaction over its own connections."""
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    fresh = own_cluster(config={"authorizer.class.name": authorizer, "allow.everyone.if.no.acl.found": "true"})
    for topic in ("open", "others"):
        make_topic(fresh, topic)
    rules = [
        AclBinding(
            kind, "others", ResourcePatternType.LITERAL, "User:other", "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for kind in (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID)
    ]
    admin = AdminClient({"bootstrap.servers": fresh.bootstrap})
    for made in admin.create_acls(rules).values():
        made.result(10)
    add = entity(24, 3, "request")

    def told(name: str, topic: str) -> int:
        async def ask() -> int:
            async with ClusterClient(settings_of("fresh", fresh.bootstrap)) as client:
                answer = await client.call(partitions_request(add, (name, 1, 0), {topic: (0,)}))
                return partition_codes(answer)[(topic, 0)]

        return asyncio.run(ask())

    refused = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    wait_until(lambda: told("others", "open") == refused, 10, "the rules to hold")
    assert told("mine", "others") == Code.TOPIC_AUTHORIZATION_FAILED
    assert told("mine", "open") == Code.NOT_COORDINATOR, "nobody has asked for the coordinator yet"


def test_a_commit_whose_answer_was_lost_at_the_flip_ends_well(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("lost")
    for cluster in (source, target):
        make_topic(cluster, topic)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as first:
                port = int(first.bootstrap.rsplit(":", 1)[1])
                producer = Producer(
                    {"bootstrap.servers": first.bootstrap, "transactional.id": unique_name("x")}, logger=None
                )
                await quietly(producer.init_transactions, 30)
                producer.begin_transaction()
                producer.produce(topic, b"one", partition=0)
                await quietly(producer.flush, 20)
                source.pause(1)
                committing = asyncio.create_task(quietly(producer.commit_transaction, 60))
                await asyncio.sleep(2)  # By then the EndTxn has left the router, or the client sends the EndTxn again.
                first.kill()
            source.resume(1)
            await quietly(wait_until, lambda: ends(source.bootstrap, topic, 1) == [2], 15, "the source's marker")
            record = await world.fence(topic)
            await world.flip(topic, record.fence_epoch, [])
            with router("r1", target, port):
                async with asyncio.timeout(60):
                    await committing
                    await quietly(transaction, producer, topic, b"two")

    asyncio.run(scenario())
    assert stored(source, topic) == [b"one"]
    assert stored(target, topic) == [b"two"]


@pytest.mark.soak
def test_an_id_that_is_idle_on_the_target_for_longer_than_it_lives_there_survives_the_promote(
    source: KafkaCluster, own_cluster: Callable[..., KafkaCluster], make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, other = unique_name("idle"), unique_name("other")
    checks = "transaction.remove.expired.transaction.cleanup.interval.ms"
    target = own_cluster(config={"transactional.id.expiration.ms": "10000", checks: "500"})
    for cluster in (source, target):
        make_topic(cluster, topic)
    make_topic(target, other)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            settings = settings_of("target", target.bootstrap)
            ours = settings_of("source", source.bootstrap)
            async with ClusterClient(settings) as client, ClusterClient(ours) as at_source:

                async def source_of(_: LinkRecord) -> tuple[ClusterClient, Admin]:
                    return at_source, Admin(ours)

                connections: Any = SimpleNamespace(
                    log=world.log, target=client, target_admin=Admin(settings), source=source_of
                )
                keeping = asyncio.create_task(IdKeeper(connections).run())
                with router("r1", target) as running:
                    forgotten = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": "f"}, logger=None)
                    await quietly(forgotten.init_transactions, 30)
                    kept = Producer(
                        {"bootstrap.servers": running.bootstrap, "transactional.id": unique_name("x")}, logger=None
                    )
                    await quietly(kept.init_transactions, 30)
                    await quietly(transaction, kept, topic, b"one")
                    await asyncio.sleep(25)
                    with pytest.raises(KafkaException):
                        await quietly(transaction, forgotten, other, b"never")
                    record = await world.fence(topic)
                    acks = await world.drained(topic, record.fence_epoch)
                    await world.flip(topic, record.fence_epoch, acks)
                    await world.routers_apply()
                    await quietly(transaction, kept, topic, b"two")
                keeping.cancel()

    asyncio.run(scenario())
    assert (stored(source, topic), stored(target, topic)) == ([b"one"], [b"two"])
