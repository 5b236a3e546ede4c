"""The present start and end of each log, asked before anything is read.

Spark treats every offset that Spark cannot get as data loss. A target that ends early is a finding of the check, not a
failure of the check, so the target's range is cut to the existing offsets. The range is also cut for a target that
begins late while it is mirrored, if the target deletes nothing by itself. Any other range that has left a log, or that
lies beyond the source's last stable offset, cannot be compared and is refused by name. Kafka's own Java client answers,
in Spark's JVM, so that the witness stays independent of our wire code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from kmigrate.errors import Failed
from kmigrate.parity.plan import PartitionKey, Stretch, TopicRange

__all__ = ["Bounds", "both_bounds", "java_admin", "list_offsets", "log_bounds", "refuse_what_is_gone", "within"]

PATIENCE: Mapping[str, str] = {"request.timeout.ms": "10000", "default.api.timeout.ms": "20000"}


class Bounds(NamedTuple):
    """The first offset and the last stable offset of a log."""

    start: int
    end: int


def log_bounds(
    spark: SparkSession, settings: Mapping[str, str], keys: Iterable[PartitionKey]
) -> dict[PartitionKey, Bounds]:
    """Return the bounds of every partition. A missing topic ends in Kafka's own error."""
    jvm: Any = spark.sparkContext._jvm
    kafka = jvm.org.apache.kafka
    places = {key: kafka.common.TopicPartition(key.topic, key.partition) for key in keys}
    admin = java_admin(jvm, settings)
    try:
        # Asked first, because listOffsets retries until its deadline when a topic is missing.
        names = jvm.java.util.HashSet()
        for key in places:
            names.add(key.topic)
        admin.describeTopics(names).allTopicNames().get()
        specs = kafka.clients.admin.OffsetSpec
        kinds = specs.earliest(), specs.latest()
        asked = [list_offsets(jvm, admin, dict.fromkeys(places.values(), spec)) for spec in kinds]
        return {
            key: Bounds(*(int(each.partitionResult(place).get().offset()) for each in asked))
            for key, place in places.items()
        }
    finally:
        admin.close()


def java_admin(jvm: Any, settings: Mapping[str, str]) -> Any:
    """Return an admin client of Kafka's own; the caller closes the client."""
    properties = jvm.java.util.Properties()
    for name, value in {**PATIENCE, **settings}.items():
        properties.put(name, value)
    return jvm.org.apache.kafka.clients.admin.Admin.create(properties)


def both_bounds(
    spark: SparkSession, sides: Sequence[Mapping[str, str]], keys: Sequence[PartitionKey]
) -> list[dict[PartitionKey, Bounds]]:
    """Return the bounds on each side, asked at the same time: while bounds are asked for, nothing is read."""
    with ThreadPoolExecutor(len(sides)) as threads:
        return list(threads.map(lambda settings: log_bounds(spark, settings, keys), sides))


def within(ranges: Iterable[TopicRange], bounds: Mapping[PartitionKey, Bounds]) -> list[Stretch]:
    """Return the stretches of the ranges that the target holds now."""
    cut = (each.at_target for each in ranges)
    both = ((each, bounds[each.key]) for each in cut)
    held = (each._replace(start=max(each.start, log.start), end=min(each.end, log.end)) for each, log in both)
    return [each for each in held if each.start < each.end]


def refuse_what_is_gone(
    ranges: Sequence[TopicRange],
    source: Mapping[PartitionKey, Bounds],
    target: Mapping[PartitionKey, Bounds],
) -> None:
    """Raise an error if a range begins before a log does, or ends beyond the source's last stable offset."""
    for each in ranges:
        for side, start, log in (
            ("source", each.start, source[each.key]),
            ("target", each.at_target.start, target[each.key]),
        ):
            if each.offsets and start < log.start and not (each.kept and side == "target"):
                raise Failed(
                    "parity-range-gone",
                    f"{each.topic}-{each.partition} is to be compared from {side} offset {start}, "
                    f"but that log now begins at {log.start}",
                    still_true="both clusters were only read",
                    next_step="compare from the present log start; retention may have deleted records",
                )
        if each.end > source[each.key].end:
            raise Failed(
                "parity-range-not-stable",
                f"{each.topic}-{each.partition} is to be compared up to source offset {each.end}, "
                f"but its last stable offset is {source[each.key].end}",
                still_true="both clusters were only read",
                next_step="wait for the open transaction to end, or compare up to the last stable offset",
            )


def list_offsets(jvm: Any, admin: Any, specs: Mapping[Any, Any]) -> Any:
    """Send a request for an offset of each partition, and return the pending answer."""
    wanted = jvm.java.util.HashMap()
    for place, spec in specs.items():
        wanted.put(place, spec)
    committed = jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
    options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(committed)
    return admin.listOffsets(wanted, options)
