"""Compacted topics: both clusters have to agree on the newest record of each key.

Each cluster's cleaner removes superseded records at any time, and records without a value after a while, so the digests
of two sound copies differ. Where the digests differ, the newest record of each key is compared instead, by place and
content. Records that a cleaner may rightly have removed are not judged (docs/parity.md, "Compacted topics"). The
records behind the range are read last: whatever a cleaner removed while the range was read is superseded there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from kmigrate.parity.plan import PartitionKey, TopicRange
from kmigrate.parity.verdict import Drilled, Fingerprint
from kmigrate.spark.source import FINGERPRINT, fingerprints

__all__ = ["newest_records"]


def newest_records(
    rows: DataFrame,
    ranges: Sequence[TopicRange],
    most: int,
    behind: Callable[[set[PartitionKey]], DataFrame | None],
) -> list[Drilled]:
    """Return the newest records that a side lacks or holds differently. At most `most` keys are looked at.

    `rows`: both sides' records of the ranges. `behind` reads the records that both sides by then hold behind ranges.
    """
    key = [*PartitionKey._fields, "key_hash"]
    # The last record at a place counts: behind a run, a map gives other records the place of the run's last record.
    seen = F.max(F.struct("at", *FINGERPRINT)).alias("seen")
    keys = (
        fingerprints(rows)
        .groupBy("side", *key)
        .agg(seen)
        .groupBy(*key)
        .agg(
            F.max(F.when(F.col("side") == 0, F.col("seen"))).alias("source"),
            F.max(F.when(F.col("side") == 1, F.col("seen"))).alias("target"),
        )
    )
    same = (F.col("source.at") == F.col("target.at")) & (F.col("source.content") == F.col("target.content"))
    alone = F.coalesce("source.value_hash", "target.value_hash").isNotNull()
    on_both = F.col("source").isNotNull() & F.col("target").isNotNull()
    # Kept, so that these rows are read only once, and before the records behind the range.
    apart = keys.where(F.when(on_both, ~same).otherwise(alone)).persist()
    try:
        partitions = {PartitionKey(*row) for row in apart.select(*PartitionKey._fields).distinct().collect()}
        later = behind(partitions) if partitions else None
        differing = apart if later is None else _without(apart, fingerprints(later).select(*key).distinct())
        judged = differing.select(*PartitionKey._fields, "source", "target").limit(most).collect()
    finally:
        apart.unpersist()
    found: dict[PartitionKey, tuple[list[Fingerprint], list[Fingerprint]]] = defaultdict(lambda: ([], []))
    for topic, partition, source, target in judged:
        for side, record in enumerate(_unexplained(source, target)):
            if record is not None:
                found[PartitionKey(topic, partition)][side].append(Fingerprint(*(record[name] for name in FINGERPRINT)))
    return [Drilled.of(each, *map(sorted, found[each.key])) for each in ranges if each.key in found]


def _without(apart: DataFrame, later: DataFrame) -> DataFrame:
    """Return the keys that are not among the later keys. Records without a key share a key."""
    here, there = apart.alias("here"), later.alias("there")
    same = [F.col(f"here.{name}").eqNullSafe(F.col(f"there.{name}")) for name in later.columns]
    return here.join(there, reduce(Column.__and__, same), "left_anti")


def _unexplained(source: Row | None, target: Row | None) -> tuple[Row | None, Row | None]:
    """Return the records of a key that are to be judged: only the newer record, if the places differ."""
    if source is None or target is None or source.at == target.at:
        return source, target
    # A cleaner that removes a record without a value has removed all earlier records of the key before. So a side that
    # still has an earlier record has lost the newer record, whether or not that record has a value.
    return (source, None) if source.at > target.at else (None, target)
