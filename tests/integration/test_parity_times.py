"""The check compares look-ups by time, too: control markers in a copy make readers begin too early."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kmigrate.parity.plan import TopicRange
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters
from tests.integration.mirror_world import bounds, engine_running, link_between, produce, transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def test_verify_compares_look_ups_by_time(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, spark: SparkSession
) -> None:
    """Kafka's Java client checks the look-ups at the target's own address."""
    plain, coupled = unique_name("plain"), unique_name("coupled")
    for topic in (plain, coupled):
        make_topic(source, topic)
        produce(source.bootstrap, topic, 50)
    transactions(source.bootstrap, coupled, 5, name=coupled)
    time.sleep(0.5)
    for topic in (plain, coupled):
        produce(source.bootstrap, topic, 50)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in (plain, coupled):
                await world.copied(topic)

    asyncio.run(scene())
    ranges = [TopicRange(topic, 0, *bounds(source.bootstrap, topic)[0]) for topic in (plain, coupled)]
    report = compare_clusters(spark, ranges, KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap))
    assert report.equal, "a reader by time reads again, and skips nothing"
    (coupled_found,) = report.early_lookups
    assert (coupled_found.topic, coupled_found.late) == (coupled, 0)
    assert coupled_found.target < coupled_found.source
    assert {each.topic: each.early for each in report.lookups}[plain] == 0
    told = report.as_json()["time_lookups"]
    assert isinstance(told, dict) and told["early"] == coupled_found.early and told["compared"] >= 4
