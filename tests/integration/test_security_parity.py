"""Spark reads secure clusters with the logins of the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from kmigrate.model.security import Bearer
from kmigrate.parity.plan import TopicRange
from kmigrate.sandbox.topics import create_topics
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters
from kmigrate.verify.compare import _options
from tests.integration.secure_world import SecurePair, token


def test_a_password_on_one_side_and_a_token_on_the_other_read_both_logs(
    pair: SecurePair, spark: SparkSession, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    topic = unique_name("parity")
    for cluster in (pair.source, pair.target):
        create_topics(cluster.client(), [NewTopic(topic, 1, 1, config={"retention.ms": "-1"})])
        producer = Producer(cluster.client())
        for number in range(3):
            producer.produce(topic, b"%d" % number, timestamp=1_000 + number)
        assert producer.flush(20) == 0
    held = tmp_path / "token"
    held.write_text(token("kmigrate", 600), encoding="ascii")

    def options(side: str) -> KafkaOptions:
        settings = pair.settings(side)
        if side == "target":
            settings = replace(settings, security=replace(settings.security, sasl=Bearer(str(held))))
        return _options(settings, tmp_path / side)

    report = compare_clusters(spark, [TopicRange(topic, 0, 0, 3)], options("source"), options("target"))
    assert (report.equal, report.records) == (True, 3)
