"""Compacted topics: what both clusters have to agree on is the newest record of each key.

Each cluster's cleaner takes superseded records away when it likes, so the digests of two sound copies differ. Where
they do, the newest record of each key is compared instead, by its place and its content. Not judged is then

- a superseded record, on whichever side it still is;
- a key whose newest record stands beyond the range: what it had in the range may be gone by right;
- a record without a value, where the other side has none of its key: a cleaner takes those away, too, after a while.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from kmigrate.parity.plan import PartitionKey, TopicRange
from kmigrate.parity.verdict import Drilled, Fingerprint
from kmigrate.spark.source import FINGERPRINT, fingerprints

__all__ = ["compacted_topics", "newest_records"]


def compacted_topics(spark: SparkSession, settings: Mapping[str, str], topics: Iterable[str]) -> set[str]:
    """Those of which a cluster keeps the newest record of each key."""
    jvm: Any = spark.sparkContext._jvm
    kafka = jvm.org.apache.kafka
    properties = jvm.java.util.Properties()
    for name, value in settings.items():
        properties.put(name, value)
    kind = getattr(kafka.common.config, "ConfigResource$Type").TOPIC
    asked = {topic: kafka.common.config.ConfigResource(kind, topic) for topic in topics}
    wanted = jvm.java.util.ArrayList()
    for resource in asked.values():
        wanted.add(resource)
    admin = kafka.clients.admin.Admin.create(properties)
    try:
        told = admin.describeConfigs(wanted).all().get()
        policies = {topic: told.get(resource).get("cleanup.policy").value() for topic, resource in asked.items()}
    finally:
        admin.close()
    return {topic for topic, policy in policies.items() if "compact" in policy}


def newest_records(
    spark: SparkSession, rows: DataFrame, ranges: Sequence[TopicRange], most: int
) -> list[Drilled]:
    """The newest records that one side has not, or otherwise; at most so many of them are looked at.

    `rows` are both sides', to the ends of their logs.
    """
    ends = spark.createDataFrame(
        [(each.topic, each.partition, each.end) for each in ranges], "topic string, partition int, end bigint"
    )
    key = [*PartitionKey._fields, "key_hash"]
    seen = F.max_by(F.struct("at", *FINGERPRINT), "at").alias("seen")
    keys = fingerprints(rows).groupBy("side", *key).agg(seen).groupBy(*key).agg(
        F.max(F.when(F.col("side") == 0, F.col("seen"))).alias("source"),
        F.max(F.when(F.col("side") == 1, F.col("seen"))).alias("target"),
    )
    inside = F.greatest(F.coalesce("source.at", F.lit(-1)), F.coalesce("target.at", F.lit(-1))) < F.col("end")
    same = [F.col(f"source.{name}").eqNullSafe(F.col(f"target.{name}")) for name in ("at", "content")]
    apart = keys.join(F.broadcast(ends), list(PartitionKey._fields)).where(inside & ~(same[0] & same[1]))
    differing = apart.select(*PartitionKey._fields, "source", "target").limit(most)
    found: dict[PartitionKey, tuple[list[Fingerprint], list[Fingerprint]]] = defaultdict(lambda: ([], []))
    for topic, partition, source, target in differing.collect():
        for side, record in enumerate(_unexplained(source, target)):
            if record is not None:
                found[PartitionKey(topic, partition)][side].append(Fingerprint(*(record[name] for name in FINGERPRINT)))
    return [Drilled.of(each, *map(sorted, found[each.key])) for each in ranges if each.key in found]


def _unexplained(source: Row | None, target: Row | None) -> tuple[Row | None, Row | None]:
    """What of a key's newest records is to be judged: the newer one alone, where they stand at different places."""
    if source is not None and target is not None:
        if source.at == target.at:
            return source, target
        # A cleaner that takes a record without a value has taken all before it: where one is left, it is lost.
        return (source, None) if source.at > target.at else (None, target)
    source, target = (None if each is None or each.value_hash is None else each for each in (source, target))
    return source, target
