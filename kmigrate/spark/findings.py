"""Every finding of a check as Parquet, for the user's own analysis: a row each, places as columns of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

from kmigrate.parity.verdict import Anomaly, Place

__all__ = ["write_findings"]

SCHEMA = (
    "kind string, topic string, source_partition int, source_offset bigint, "
    "target_partition int, target_offset bigint, parts array<string>, records bigint"
)


def write_findings(spark: SparkSession, findings: Iterable[Anomaly], folder: Path) -> None:
    """Write a new folder with a Parquet file. Without findings the file has the columns and no row."""
    rows = [
        (each.kind.value, each.topic, *_columns(each.source), *_columns(each.target), list(each.parts), each.records)
        for each in findings
    ]
    table = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    table.write.mode("errorifexists").parquet(folder.absolute().as_uri())


def _columns(place: Place | None) -> tuple[int, int] | tuple[None, None]:
    return (None, None) if place is None else (place.partition, place.offset)
