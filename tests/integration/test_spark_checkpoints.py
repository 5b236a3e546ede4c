"""A Spark query continues at the target from a translated checkpoint, with each record exactly once."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.command_line import Call
from tests.integration.mirror_world import (
    engine_running,
    link_between,
    produce,
    read_all,
    transactions,
)
from tests.integration.test_offset_map import copied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., None]
Names = Callable[[str], str]


def run_query(spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path, sink: Path) -> None:
    """Append the topic's present records to the sink, in small batches, from the checkpoint on."""
    read = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 300)
        .load()
    )
    query = (
        read.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("json")
        .option("path", str(sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)


def killed_in_its_first_batch(checkpoint: Path, copy: Path) -> None:
    """Copy the checkpoint as it was before its first commit."""
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns("commits"))
    for path in (copy / "offsets").iterdir():
        if path.name not in ("0", ".0.crc"):
            path.unlink()


def test_a_query_goes_on_at_the_target_from_a_translated_checkpoint(
    tmp_path: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: MakeTopic,
    unique_name: Names,
    spark: SparkSession,
) -> None:
    """The target's offsets differ: the target held records of its own, and aborted records are left out."""
    topic = unique_name("queried")
    make_topic(source, topic, 2)
    make_topic(target, topic, 2)
    produce(target.bootstrap, topic, 41, partitions=2, first=9_000)
    produce(source.bootstrap, topic, 400, partitions=2)
    transactions(source.bootstrap, topic, 20, name=topic, partitions=2)
    config = tmp_path / "kmigrate.toml"
    config.write_text(
        f'[clusters.source]\n"bootstrap.servers" = "{source.bootstrap}"\n'
        f'[clusters.target]\n"bootstrap.servers" = "{target.bootstrap}"\n[defaults]\ntarget = "target"\n',
        encoding="utf-8",
    )
    before, after, sink = tmp_path / "checkpoint", tmp_path / "moved", tmp_path / "sink"
    killed, begun, anew = tmp_path / "killed", tmp_path / "begun", tmp_path / "anew"

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.change(topic, lambda record: replace(record, offsets="mapped"))
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await asyncio.to_thread(run_query, spark, source.bootstrap, topic, before, sink)
            await asyncio.to_thread(produce, source.bootstrap, topic, 200, partitions=2, first=400)
            await copied(world, topic)
            words = ["offsets", "export", str(before), "--out", str(after), "--link", world.link]
            done = await asyncio.to_thread(Call([*words, "--config", str(config), "--json"]).end, 30)
            assert done is not None and done[0] == 0, done
            assert json.loads(done[1])["positions"] == 4, "of two partitions, in the two newest batches"
            await asyncio.to_thread(run_query, spark, target.bootstrap, topic, after, sink)
            killed_in_its_first_batch(before, killed)
            words = ["offsets", "export", str(killed), "--out", str(begun), "--link", world.link]
            done = await asyncio.to_thread(Call([*words, "--config", str(config), "--json"]).end, 30)
            assert done is not None and done[0] == 0, done
            await asyncio.to_thread(run_query, spark, target.bootstrap, topic, begun, anew)

    asyncio.run(scene())
    partitions = read_all(source.bootstrap, topic).values()
    wanted = [(value or b"").decode() for records in partitions for _, _, value, *_ in records]
    found = [row.value for row in spark.read.json(str(sink)).collect()]
    assert sorted(found) == sorted(wanted)
    found = [row.value for row in spark.read.json(str(anew)).collect()]
    assert sorted(found) == sorted(wanted), "its first batch begins behind the target's own records"
    assert len(wanted) > 600
