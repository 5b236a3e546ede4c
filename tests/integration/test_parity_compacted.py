"""The newest records of keys, compared by Spark itself; rows stand for the logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kmigrate.parity.plan import TopicRange
from kmigrate.spark.compacted import newest_records

SOURCE, TARGET = 0, 1
SCHEMA = (
    "side int, topic string, partition int, offset bigint, at bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, timestamp timestamp, stamped int"
)
WRITTEN = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
RANGE = TopicRange("t", 0, 0, 1_000)


class Kept(NamedTuple):
    """A record that a cleaner left on a side, with the source offset under which the record is compared."""

    side: int
    offset: int
    at: int
    key: bytes
    value: bytes | None


def log(spark: SparkSession, kept: Iterable[Kept]) -> DataFrame:
    rows = [
        (each.side, "t", 0, each.offset, each.at, bytearray(each.key), each.value, None, WRITTEN, 0) for each in kept
    ]
    return spark.createDataFrame(rows, SCHEMA)


def judged(spark: SparkSession, kept: Iterable[Kept], most: int = 100, later: Iterable[Kept] = ()) -> list[list[int]]:
    """Return the offsets to be judged, by side."""
    rows, beyond = log(spark, kept), log(spark, later)
    found = newest_records(rows, [RANGE], most, lambda _: beyond)
    sides = [[each.source for each in found], [each.target for each in found]]
    return [[record.offset for records in side for record in records] for side in sides]


def test_a_lost_record_is_found_among_any_number_of_deleted_keys_that_a_cleaner_may_have_taken(
    spark: SparkSession,
) -> None:
    """A mirrored target keeps records that the source's cleaner removes a day later, so they may be most of a topic."""
    deleted = [Kept(TARGET, n, n, b"gone-%d" % n, None) for n in range(200)]
    assert judged(spark, [*deleted, Kept(SOURCE, 500, 500, b"k", b"v")], most=3) == [[500], []]


def test_a_record_without_a_value_is_judged_beside_another_of_its_key(spark: SparkSession) -> None:
    kept = [Kept(SOURCE, 9, 9, b"k", None), Kept(TARGET, 7, 7, b"k", b"v")]
    assert judged(spark, kept) == [[9], []]
    assert judged(spark, kept[:1]) == [[], []]


def test_a_key_that_stands_behind_the_range_by_now_is_not_judged(spark: SparkSession) -> None:
    kept = [Kept(SOURCE, 5, 5, b"k", b"v"), Kept(SOURCE, 6, 6, b"other", b"v")]
    assert judged(spark, kept, later=[Kept(TARGET, 2_000, 2_000, b"k", b"w")]) == [[6], []]


def test_a_foreign_record_behind_the_copy_of_its_own_key_is_judged(spark: SparkSession) -> None:
    """A map gives an unknown offset the source offset of the record before it."""
    kept = [Kept(SOURCE, 5, 5, b"k", b"v"), Kept(TARGET, 3, 5, b"k", b"v"), Kept(TARGET, 4, 5, b"k", b"foreign")]
    for order in (kept, kept[::-1]):
        assert judged(spark, order) == [[5], [4]]
