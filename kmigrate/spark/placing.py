"""Target records placed at source offsets: each row gets `at`, the source offset under which the row is compared.

The exact map comes as plain runs, perhaps many (one for each transaction), so rows are joined with the runs. Target
offsets are cut into chunks as long as an average run. A run is entered in every chunk that the run touches (two, on
average), and a row looks only among the runs of its own chunk. Every task gets the whole table of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kmigrate.model.offset_map import OffsetMap
from kmigrate.parity.plan import Stretch

__all__ = ["Entry", "entries", "placed"]

SCHEMA = "in_topic string, in_partition int, chunk bigint, first bigint, until bigint, source bigint, last bigint"


class Entry(NamedTuple):
    """A run in a chunk: target offsets first to until (excluded) stand at `source` and on, at most at `last`."""

    in_topic: str
    in_partition: int
    chunk: int
    first: int
    until: int
    source: int
    last: int


def placed(spark: SparkSession, rows: DataFrame, maps: Sequence[tuple[Stretch, OffsetMap]]) -> DataFrame:
    """Return the rows with `at`: through the maps where there are any, elsewhere the row's own offset."""
    size, table = entries(maps)
    if not table:
        return rows.withColumn("at", F.col("offset"))
    runs = F.broadcast(spark.createDataFrame(table, SCHEMA))
    here = (
        (F.col("topic") == F.col("in_topic"))
        & (F.col("partition") == F.col("in_partition"))
        & (F.floor(F.col("offset") / size) == F.col("chunk"))
        & (F.col("offset") >= F.col("first"))
        & (F.col("offset") < F.col("until"))
    )
    at = F.least(F.col("offset") - F.col("first") + F.col("source"), F.col("last"))
    joined = rows.join(runs, here, "left").withColumn("at", F.coalesce(at, F.col("offset")))
    return joined.drop(*Entry._fields)


def entries(maps: Sequence[tuple[Stretch, OffsetMap]]) -> tuple[int, list[Entry]]:
    """Return the offsets per chunk and the table of runs, which holds every offset of the stretches exactly once."""
    runs = [entry for stretch, made in maps for entry in _runs(stretch, made)]
    size = max(1, -(-sum(each.until - each.first for each in runs) // max(1, len(runs))))
    return size, [
        each._replace(chunk=chunk) for each in runs for chunk in range(each.first // size, (each.until - 1) // size + 1)
    ]


def _runs(stretch: Stretch, made: OffsetMap) -> Iterator[Entry]:
    """Yield the runs of a stretch, each up to the start of the next run."""
    index = max(0, made.index_of_target(stretch.start))
    while index < len(made) and (run := made[index]).target < stretch.end:
        index += 1
        until = min(stretch.end, made[index].target) if index < len(made) else stretch.end
        skip = max(0, stretch.start - run.target)
        last = run.source + run.length - 1
        yield Entry(*stretch.key, 0, run.target + skip, until, run.source + skip, last)
