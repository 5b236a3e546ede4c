"""Readers of a mirrored topic at the router, where the copy is behind the source; the test plays the mirror."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.client import LATEST, ClusterClient
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.protocol.codes import Code
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.router_world import link_between, quietly, router, settings_of

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def _write(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(10) == 0


def _id_of(bootstrap: str, topic: str) -> str:
    """Return the topic id as brokers name it in Fetch answers."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    told = admin.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id
    bits = (told.get_most_significant_bits() % (1 << 64)) << 64 | told.get_least_significant_bits() % (1 << 64)
    return str(uuid.UUID(int=bits))


def test_who_has_written_finds_the_end_of_the_log_behind_it_though_the_copy_comes_later(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Kafka Streams restores stores up to the end that the router answers, and does not look again.

    Another client asks for a partition that does not exist, which changes nothing for other clients.
    """
    topic = unique_name("copied")
    for cluster in (source, target):
        make_topic(cluster, topic)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                await asyncio.to_thread(_write, running.bootstrap, topic, 20)
                async with ClusterClient(settings_of("router", running.bootstrap)) as odd:
                    node = next(iter((await odd.refresh([])).brokers))
                    told = await odd.list_offsets_at(node, {(topic, 99): LATEST})
                    assert told[topic, 99].error == Code.UNKNOWN_TOPIC_OR_PARTITION
                reader = Consumer({"bootstrap.servers": running.bootstrap, "group.id": unique_name("g")})
                asked = asyncio.create_task(
                    asyncio.to_thread(reader.get_watermark_offsets, TopicPartition(topic, 0), 10.0)
                )
                await asyncio.sleep(0.3)
                await asyncio.to_thread(_write, target.bootstrap, topic, 20)
                low, high = await asked
                await quietly(reader.close)
                assert (low, high) == (0, 20)

    asyncio.run(scenario())


def test_who_brings_a_position_of_his_own_reads_on_from_there_once_the_copy_has_come_to_it(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Flink and Spark bring such positions from their checkpoints.

    A position below the copy's start needs no waiting.
    """
    topic = unique_name("copied")
    for cluster in (source, target):
        make_topic(cluster, topic)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            named = await asyncio.to_thread(_id_of, target.bootstrap, topic)
            await world.put(topic, TopicPhase.MIRRORING, partitions=1, target_topic_id=named)
            _write(source.bootstrap, topic, 30)
            _write(target.bootstrap, topic, 5)
            with router("r1", target) as running:
                reader = Consumer(
                    {
                        "bootstrap.servers": running.bootstrap,
                        "group.id": unique_name("g"),
                        "auto.offset.reset": "earliest",
                    }
                )
                reader.assign([TopicPartition(topic, 0, 20)])
                early = await quietly(reader.consume, 1, 2.0)
                assert not early, [message.offset() for message in early]
                _write(target.bootstrap, topic, 25)
                read = await quietly(reader.consume, 10, 10.0)
                assert [message.offset() for message in read] == list(range(20, 30))
                # Beyond the source's end the router answers as the source: no client waits for records that were never
                # written.
                reader.assign([TopicPartition(topic, 0, 40)])
                begun = time.monotonic()
                read = await quietly(reader.consume, 1, 20.0)
                assert [message.offset() for message in read] == [0], time.monotonic() - begun
                await quietly(reader.close)

    asyncio.run(scenario())
