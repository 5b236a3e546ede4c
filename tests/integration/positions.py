"""Committed positions of groups, as librdkafka writes them for groups without members, and reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

__all__ = ["commit_positions", "committed_positions"]

_SECONDS = 30.0


def commit_positions(settings: Mapping[str, str], group: str, positions: Sequence[TopicPartition]) -> None:
    """Commit positions, and repeat the commit while the coordinator is not ready or a broker does not know the topic.

    A cluster's first group waits for the topic of committed offsets.
    """
    consumer = Consumer({**settings, "group.id": group})
    deadline = time.monotonic() + _SECONDS
    try:
        while True:
            try:
                consumer.commit(offsets=list(positions), asynchronous=False)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return
    finally:
        consumer.close()


def committed_positions(settings: Mapping[str, str], group: str, topic: str) -> dict[int, int]:
    """Return a group's committed offsets in a topic, by partition."""
    admin = AdminClient(dict(settings))
    positions = (
        admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20).topic_partitions
    )
    return {each.partition: each.offset for each in positions or () if each.topic == topic}
