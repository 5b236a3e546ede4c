"""Stretches of a cluster's logs as a Spark DataFrame, read by Spark's own Kafka source.

Each row carries its offset in source terms (`at`), its bucket, and hashes that stand for the record:

    content   everything but the offset
    *_hash    a part of the record, null where the part is null

Every hash input is written so that no two records share an input. xxhash64 skips nulls and joins its arguments, so each
part is preceded by its length, −1 if the part is null. Headers are a text that keeps names, bytes and nulls apart, in
their order. Timestamps arrive as microseconds made from milliseconds, in a one-to-one way; −1 stays distinct.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kmigrate.model.offset_map import OffsetMap
from kmigrate.parity.plan import PartitionKey, Stretch
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.placing import placed

__all__ = ["FINGERPRINT", "bare_rows", "bucket_digest", "fingerprints", "read_ranges", "with_record_hash"]

# The columns of a record's fingerprint, in the order of kmigrate.parity.verdict.Fingerprint.
FINGERPRINT = ("offset", "content", "key_hash", "value_hash", "headers_hash", "micros", "stamped")

CREATE_TIME = 0  # Kafka's own number of the timestamp type

# Each poll asks for both log ends, which drops the records that the consumer had read ahead: polls are few and large.
READ_SETTINGS: Mapping[str, str] = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "100000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.fetch.max.bytes": str(16 << 20),
    # The question for the log ends waits behind a read-ahead at the end of the log, so the read-ahead gives up soon.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.receive.buffer.bytes": "-1",
    "kafkaConsumer.pollTimeoutMs": "30000",
    "includeHeaders": "true",
    # A range that is no longer there is an error of the check, never a smaller check.
    "failOnDataLoss": "true",
}


def read_ranges(
    spark: SparkSession,
    cluster: KafkaOptions,
    ranges: Sequence[Stretch],
    *,
    size: int,
    target: bool = False,
    maps: Mapping[PartitionKey, OffsetMap] | None = None,
) -> DataFrame:
    """Return the ranges as rows (topic, partition, offset, at, bucket, stamped, parts); `maps`: a target's offset maps.

    `stamped` is the timestamp's type: stored on the target, expected on the source. A mirror writes the broker's times
    (A7) and the missing times of old formats as CreateTime, as a producer may write them.
    """
    rows = bare_rows(spark, cluster, ranges)
    mapped = [(each, maps[each.key]) for each in ranges if each.key in maps] if maps else []
    stamped = F.col("timestampType") if target else F.lit(CREATE_TIME)
    placed_rows = placed(spark, rows.withColumn("stamped", stamped), mapped)
    return placed_rows.withColumn("bucket", F.expr(f"at div {size}"))


def bare_rows(spark: SparkSession, cluster: KafkaOptions, ranges: Sequence[Stretch]) -> DataFrame:
    """Return the ranges as Spark's source gives them, which is the least that any check has to read."""

    def offsets(which: str) -> str:
        table: dict[str, dict[str, int]] = {}
        for each in ranges:
            table.setdefault(each.topic, {})[str(each.partition)] = getattr(each, which)
        return json.dumps(table)

    topics: dict[str, list[int]] = {}
    for each in ranges:
        topics.setdefault(each.topic, []).append(each.partition)
    return (
        spark.read.format("kafka")
        .options(**READ_SETTINGS)
        .options(**{f"kafka.{name}": value for name, value in cluster.java().items()})
        .option("assign", json.dumps(topics))
        .option("startingOffsets", offsets("start"))
        .option("endingOffsets", offsets("end"))
        .load()
    )


def fingerprints(rows: DataFrame) -> DataFrame:
    """Return the rows with their hashes added."""
    return rows.select(
        "*",
        F.xxhash64(*_record()).alias("content"),
        F.when(F.col("key").isNotNull(), F.xxhash64(*_bytes("key"))).alias("key_hash"),
        F.when(F.col("value").isNotNull(), F.xxhash64(*_bytes("value"))).alias("value_hash"),
        F.when(F.col("headers").isNotNull(), F.xxhash64(*_headers())).alias("headers_hash"),
        F.unix_micros("timestamp").alias("micros"),
    )


def with_record_hash(rows: DataFrame) -> DataFrame:
    """Return the rows with `record`, a single hash of offset and record; hashing is a check's cost: once per byte."""
    return rows.withColumn("record", F.xxhash64("at", *_record()))


def bucket_digest() -> list[Column]:
    """Return the columns of a bucket's digest, in the order of kmigrate.parity.plan.BucketDigest.

    Bits that cancel in one of the two 64-bit sums do not in the other. The offset is inside each hash, so the sums
    depend on the order although xor does not, and no two hashes have the same input. Verified ranges are
    remembered under the digests' name (`kmigrate.model.verified.DIGEST`), which changes along with the hashed content.
    The size is that of all keys and values.
    """
    sums = F.bit_xor("record"), F.bit_xor(F.xxhash64(F.lit("kmigrate"), "record"))
    size = F.sum(F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0)))
    millis = F.unix_millis("timestamp")
    since = F.coalesce(F.min(F.when(millis >= 0, millis)), F.lit(-1))  # the −1 of no timestamp does not count
    until = F.coalesce(F.max(millis), F.lit(-1))
    return [F.count("*"), F.min("at"), F.max("at"), *sums, size, since, until]


def _record() -> list[Column]:
    return [*_bytes("key"), *_bytes("value"), *_headers(), F.col("timestamp"), F.col("stamped")]


def _bytes(name: str) -> list[Column]:
    return [F.coalesce(F.octet_length(name), F.lit(-1)), F.col(name)]


def _headers() -> list[Column]:
    """Return the number of headers, and all headers as text: names and bytes in order, a null distinct from empty.

    A function over each header would do the same, but Spark generates no code for, or beside, such functions.
    """
    number = F.coalesce(F.size("headers"), F.lit(-1))
    return [number, F.when(number > 0, F.to_json("headers"))]
