"""The bulk copy on Spark: offsets as the daemon copies them, whatever dies, runs twice, or copies at the same time."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import CopyEngine
from kmigrate.model.state import State
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.migration import Migration, wait_until
from tests.integration.mirror_world import (
    World,
    assert_identical,
    bounds,
    copier,
    link_between,
    produce,
    read_all,
    transactions,
)
from tests.integration.spark_cluster import SparkCluster, spark_cluster
from tests.integration.test_verify import mirror_of

MakeTopic = Callable[..., None]
Names = Callable[[str], str]
DAY_MS = 86_400_000
PARTITIONS = 4


def test_spark_copies_plain_old_and_transactional_partitions_to_the_same_offsets_and_hands_over(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, plain, odd = unique_name("link"), unique_name("bulk"), unique_name("bulk-odd")
    make_topic(source, plain, 4)
    make_topic(source, odd, 2, config={"retention.ms": "-1"})
    produce(source.bootstrap, plain, 8_000, partitions=4)
    produce(source.bootstrap, odd, 2_000, partitions=2, age_ms=40 * DAY_MS)
    transactions(source.bootstrap, odd, 20, name=unique_name("tx"), partitions=2)
    produce(source.bootstrap, odd, 200, partitions=2, first=2_000)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    looked = run.does("topic", "mirror", plain, odd, "--link", link, "--engine", "auto", "--plan")
    assert (looked["applied"], looked["bulk"]["engine"]) == (False, "daemon")
    assert "6 partitions: one mirror process needs about 1 s" in looked["bulk"]["why"]
    with mirror_of(run, link):
        told = run.does(
            "topic", "mirror", plain, odd, "--link", link, "--engine", "spark", "--master", "local[2]", timeout=100
        )
        bulk = told["bulk"]
        assert (bulk["engine"], bulk["speculation"], bulk["problems"]) == ("spark", "off", [])
        assert {(r["topic"], r["caution"]) for r in bulk["ranges"]} == {(plain, None), (odd, "old-records")}
        assert [(r["tasks"], r["partitions"]) for r in bulk["rounds"]] == [(2, 6)]
        for topic in (plain, odd):
            assert bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic)
            assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)

        produce(source.bootstrap, plain, 400, partitions=4, first=8_000)
        transactions(source.bootstrap, odd, 10, name=unique_name("tx"), partitions=2)
        for topic in (plain, odd):
            wait_until(
                lambda topic=topic: bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic),  # type: ignore[misc]
                30,
                "the daemon to have taken over",
            )
            assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_continuous_tasks_copy_a_live_topic_and_its_new_partitions_until_its_promote(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    run = Migration(source, target, tmp_path / "run", "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 0.0\n")
    link, topic = unique_name("link"), unique_name("endless")
    make_topic(source, topic, 2)
    produce(source.bootstrap, topic, 2_000, partitions=2)
    run.does("link", "create", link, "--source", "source", "--target", "target")
    with mirror_of(run, link):
        words = ("topic", "mirror", topic, "--link", link, "--engine", "spark", "--master", "local[2]", "--continuous")
        with run.doing(*words):
            equal = "the topic to be the same"
            wait_until(lambda: same_ends(source, target, topic), 60, equal)
            shown = run.does("topic", "show", topic)["status"]["partitions"]
            assert [part["copied_by"].split("-")[0] for part in shown] == ["spark", "spark"]

            admin = AdminClient({"bootstrap.servers": source.bootstrap})
            for done in admin.create_partitions([NewPartitions(topic, 4)]).values():
                done.result(20)
            produce(source.bootstrap, topic, 2_000, partitions=4, first=2_000)
            wait_until(lambda: same_ends(source, target, topic), 60, equal)
            shown = run.does("topic", "show", topic)["status"]["partitions"]
            assert [part["copied_by"].split("-")[0] for part in shown] == ["spark"] * 4

            run.start("controller")
            try:
                run.does("promote", topic, "--link", link, "--yes")
            finally:
                run.stop()
    assert read_all(target.bootstrap, topic) == read_all(source.bootstrap, topic)


def same_ends(source: KafkaCluster, target: KafkaCluster, topic: str) -> bool:
    try:
        return bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic)
    except (KeyError, KafkaException):
        return False  # The topic has just been made.


SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.task.duration.threshold=1s",
    "spark.executor.memory=512m",
    "spark.executor.cores=2",
    "spark.default.parallelism=2",
)
"""Settings that start every task a second time after a second: two tasks, and two hosts with room for both."""


@pytest.mark.soak
@pytest.mark.timeout(500)
def test_a_worker_and_the_driver_killed_with_speculation_on_and_three_engines_at_once_change_nothing(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    run = Migration(source, target, tmp_path / "run")
    link, topic = unique_name("link"), unique_name("killed")
    make_topic(source, topic, PARTITIONS)
    for part in range(4):
        produce(source.bootstrap, topic, 30_000, partitions=PARTITIONS, first=30_000 * part)
        transactions(source.bootstrap, topic, 20, name=unique_name("tx"), partitions=PARTITIONS)

    def driver(cluster: SparkCluster, rate: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kmigrate", "topic", "mirror", topic, "--link", link, "--engine", "spark"]
        command += ["--master", cluster.master, "--throttle", rate, "--config", str(run.config), "--json"]
        for each in SPECULATION:
            command += ["--conf", each]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    async def scene() -> None:
        async with link_between(source, target, link) as world, asyncio.timeout(400):
            tries = Tries(world)
            with mirror_of(run, link), spark_cluster(tmp_path / "spark", workers=2, cores=4) as cluster:
                first = driver(cluster, "150kB")
                await tries.until(lambda: any(len(names) > 1 for names in tries.of.values()), "a speculative try")
                await copied(target, topic, 10_000)

                cluster.kill("worker0")
                seen = len(tries.seen)
                await tries.until(lambda: len(tries.seen) > seen, "another try after the worker's death")
                await copied(target, topic, 25_000)

                first.kill()
                first.communicate(timeout=20)
                cluster.start_worker(2, 4)
                drivers = [driver(cluster, "500kB"), driver(cluster, "300kB")]
                await copied(target, topic, 50_000)
                record = world.log.state.link(link)
                assert record is not None
                assert record.copy is not None
                async with copier(source, target, record.copy, [topic], fills=False):
                    ended = [await asyncio.to_thread(each.communicate, timeout=200) for each in drivers]
                assert [each.returncode for each in drivers] == [0, 0], ended
                assert [json.loads(out)["bulk"]["problems"] for out, _ in ended] == [[], []]
                await world.caught_up(topic)
            assert_identical(world, topic, at_least=120_000)

    asyncio.run(scene())


class Tries:
    """The attempts of Spark tasks that write to the presence log."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[str] = set()

    @property
    def of(self) -> dict[str, set[str]]:
        """Names of the attempts by run and task."""
        found: dict[str, set[str]] = {}
        for name in self.seen:
            found.setdefault("-".join(name.split("-")[:3]), set()).add(name)
        return found

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        def look(_: State) -> bool | None:
            words = self.world.log.alive(MirrorPresence)
            self.seen |= {word.instance for word in words if word.engine is CopyEngine.SPARK}
            return holds() or None

        await self.world.log.wait(look, 90, what)


async def copied(target: KafkaCluster, topic: str, offsets: int) -> None:
    """Wait until the target holds that many offsets, all partitions together."""
    deadline = time.monotonic() + 120
    while sum(end for _, end in (await asyncio.to_thread(bounds, target.bootstrap, topic)).values()) < offsets:
        assert time.monotonic() < deadline, f"{offsets} offsets of {topic} on the target"
        await asyncio.sleep(0.2)
