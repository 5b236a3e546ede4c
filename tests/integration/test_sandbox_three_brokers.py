"""Three brokers per side are a real cluster: replicated, and available when a broker is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kmigrate.sandbox.containers import engine_answers, kafka_image
from kmigrate.sandbox.distribution import Image
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster


@pytest.mark.soak
def test_a_replicated_topic_takes_writes_while_one_broker_of_three_is_gone(
    clusters3: Any, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    for cluster in (clusters3.source, clusters3.target):
        topic = unique_name("replicated")
        make_topic(cluster, topic, partitions=3, replicas=3, config={"min.insync.replicas": "2"})
        cluster.kill(2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        for partition in range(3):
            producer.produce(topic, b"still here", partition=partition)
        assert producer.flush(60) == 0
        cluster.restart(2)
        cluster.wait_ready()
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic})
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
            read = consumer.consume(3, timeout=60)
        finally:
            consumer.close()
        assert [message.value() for message in read] == [b"still here"] * 3


def test_a_broker_runs_in_a_container_where_a_docker_engine_answers(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not engine_answers():
        pytest.skip("no Docker engine on this machine answers")
    monkeypatch.delenv("KMIGRATE_KAFKA_HOME", raising=False)
    cluster = KafkaCluster.create(ClusterSpec("contained", TARGET_VERSION), tmp_path)
    assert cluster.distribution == Image(kafka_image(TARGET_VERSION), TARGET_VERSION)
    try:
        cluster.start()
        cluster.wait_ready()
        cluster.restart(1)
        cluster.wait_ready()
    finally:
        cluster.stop()
    assert not cluster.brokers[1].alive
