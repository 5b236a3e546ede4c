"""Open transactions as a real coordinator lists them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import CoordinatedTransaction, group_transactions
from kmigrate.sandbox.kafka import KafkaCluster
from tests.bench.load import make_topic
from tests.integration.mirror_world import settings_of


def test_an_open_transaction_that_holds_a_groups_positions_is_found_by_the_groups_name(
    source: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """The coordinator knows only the group from the producer; kmigrate knows no transactional id."""
    topic, group, name = unique_name("held-back"), unique_name("group"), unique_name("till")
    make_topic(source.bootstrap, topic, 1)
    consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": group})
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 0)], consumer.consumer_group_metadata(), 20)

    async def found() -> list[CoordinatedTransaction]:
        async with ClusterClient(settings_of("source", source.bootstrap)) as client:
            return [each for each in await group_transactions(client, group, ()) if each.transactional_id == name]

    deadline = time.monotonic() + 20  # The group may be the cluster's first: the offsets topic is made meanwhile.
    while not (open_now := asyncio.run(found())):
        assert time.monotonic() < deadline
    (held,) = open_now
    ((offsets, _),) = held.partitions
    assert (offsets, held.producer_id >= 0) == ("__consumer_offsets", True)
    assert 0 <= time.time() * 1000 - held.started_ms < 30_000
    producer.commit_transaction(20)
    deadline = time.monotonic() + 20  # A coordinator calls a transaction open until the markers are written.
    while asyncio.run(found()):
        assert time.monotonic() < deadline
    consumer.close()
