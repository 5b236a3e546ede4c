"""Look-ups by time on both clusters, made by Kafka's own Java client in Spark's JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from kmigrate.parity.plan import PartitionKey
from kmigrate.spark.bounds import java_admin, list_offsets

__all__ = ["look_up"]


def look_up(
    spark: SparkSession, sides: Sequence[Mapping[str, str]], rounds: Sequence[Mapping[PartitionKey, int]]
) -> list[list[dict[PartitionKey, int]]]:
    """Return, by side and round, the first offset from each partition's time on; −1: no such record."""
    with ThreadPoolExecutor(len(sides)) as threads:
        return list(threads.map(lambda settings: _told(spark, settings, rounds), sides))


def _told(
    spark: SparkSession, settings: Mapping[str, str], rounds: Sequence[Mapping[PartitionKey, int]]
) -> list[dict[PartitionKey, int]]:
    jvm: Any = spark.sparkContext._jvm
    kafka = jvm.org.apache.kafka
    admin = java_admin(jvm, settings)
    try:
        told: list[dict[PartitionKey, int]] = []
        for times in rounds:
            places = {key: kafka.common.TopicPartition(key.topic, key.partition) for key in times}
            specs = {key: kafka.clients.admin.OffsetSpec.forTimestamp(time) for key, time in times.items()}
            answer = list_offsets(jvm, admin, {places[key]: spec for key, spec in specs.items()})
            told.append({key: int(answer.partitionResult(place).get().offset()) for key, place in places.items()})
        return told
    finally:
        admin.close()
