"""Kafka's own Java admin client, in Spark's JVM, so that the witness stays independent of our wire code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from pyspark.sql import SparkSession

from kmigrate.parity.plan import PartitionKey
from kmigrate.spark.bounds import Bounds

__all__ = ["JavaAdmin", "ask_each"]

PATIENCE: Mapping[str, str] = {"request.timeout.ms": "10000", "default.api.timeout.ms": "20000"}

T = TypeVar("T")
Offsets = dict[PartitionKey, int]


class JavaAdmin:
    """An admin client of Kafka's own for the time of a with block."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm, self._kafka = jvm, jvm.org.apache.kafka
        properties = jvm.java.util.Properties()
        for name, value in {**PATIENCE, **settings}.items():
            properties.put(name, value)
        self._admin = self._kafka.clients.admin.Admin.create(properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def bounds(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Bounds]:
        """Return the bounds of every partition. A missing topic ends in Kafka's own error."""
        # Asked first, because listOffsets retries until its deadline when a topic is missing.
        names = self._collected(self._jvm.java.util.HashSet(), {key.topic for key in keys})
        self._admin.describeTopics(names).allTopicNames().get()
        specs = self._kafka.clients.admin.OffsetSpec
        asked = [self._ask(dict.fromkeys(keys, spec)) for spec in (specs.earliest(), specs.latest())]
        starts, ends = (answer() for answer in asked)
        return {key: Bounds(starts[key], ends[key]) for key in keys}

    def look_up(self, times: Mapping[PartitionKey, int]) -> Offsets:
        """Return the first offset from each partition's time on; −1: no such record."""
        spec = self._kafka.clients.admin.OffsetSpec.forTimestamp
        return self._ask({key: spec(time) for key, time in times.items()})()

    def compacted(self, topics: Iterable[str]) -> set[str]:
        """Return the topics of which the cluster keeps the newest record of each key."""
        kind = getattr(self._kafka.common.config, "ConfigResource$Type").TOPIC
        asked = {topic: self._kafka.common.config.ConfigResource(kind, topic) for topic in topics}
        wanted = self._collected(self._jvm.java.util.ArrayList(), asked.values())
        configs = self._admin.describeConfigs(wanted).all().get()
        return {topic for topic, at in asked.items() if "compact" in configs.get(at).get("cleanup.policy").value()}

    def _ask(self, specs: Mapping[PartitionKey, Any]) -> Callable[[], Offsets]:
        """Send a request for an offset of each partition, and return the function that waits for the answer."""
        places = {key: self._kafka.common.TopicPartition(key.topic, key.partition) for key in specs}
        wanted = self._jvm.java.util.HashMap()
        for key, spec in specs.items():
            wanted.put(places[key], spec)
        committed = self._kafka.common.IsolationLevel.READ_COMMITTED
        pending = self._admin.listOffsets(wanted, self._kafka.clients.admin.ListOffsetsOptions(committed))
        return lambda: {key: int(pending.partitionResult(place).get().offset()) for key, place in places.items()}

    @staticmethod
    def _collected(into: Any, values: Iterable[Any]) -> Any:
        for value in values:
            into.add(value)
        return into


def ask_each(spark: SparkSession, clusters: Sequence[Mapping[str, str]], question: Callable[[JavaAdmin], T]) -> list[T]:
    """Return each cluster's answer. All clusters are asked at the same time; meanwhile nothing is read."""

    def answer(settings: Mapping[str, str]) -> T:
        with JavaAdmin(spark, settings) as admin:
            return question(admin)

    with ThreadPoolExecutor(len(clusters)) as threads:
        return list(threads.map(answer, clusters))
