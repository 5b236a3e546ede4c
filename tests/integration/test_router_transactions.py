"""Transactional producers behind the router, on real clusters: before, during and after the promote of their topics."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmigrate.sandbox.client_specs import ClientSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.jars import ensure_jars
from kmigrate.sandbox.java import find_java
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster
from tests.integration.migration import Migration, wait_until

pytestmark = pytest.mark.timeout(240)

JAVA_RECORDS = 4_000


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    settings = "[promote]\nfence_timeout_s = 10.0\nstraggler_window_s = 2.0\n"
    made = [
        KafkaCluster.create(ClusterSpec(name, version), tmp_path)
        for name, version in (("source", "3.9.1"), ("target", "4.3.1"))
    ]
    for cluster in made:
        cluster.start()
    for cluster in made:
        cluster.wait_ready()
    run = Migration(made[0], made[1], tmp_path / "run", settings)
    yield run
    run.stop()
    for cluster in made:
        cluster.stop()


def java_transactions(bootstrap: str, topic: str, name: str) -> subprocess.Popen[str]:
    """Kafka's own producer, in transactions of 50 ms; its values count up."""
    command = [
        str(find_java().executable), "-Xmx128m", "-cp", f"{ensure_jars('kafka-tools', TARGET_VERSION)}/*",
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(JAVA_RECORDS),
        "--payload-monotonic", "--throughput", "250", "--transactional-id", name, "--transaction-duration-ms", "50",
        "--producer-props", f"bootstrap.servers={bootstrap}",
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_transactional_producers_of_two_families_are_promoted_live(migration: Migration) -> None:
    run = migration
    for topic in ("payments", "java"):
        run.make_topic(topic, 2)
    clients: list[ClientSpec] = [
        TransactionalSpec("till", "payments", rate=200.0),
        ProducerSpec("shop", "librdkafka", "payments", 100.0),
    ]
    traffic = run.run_clients(clients)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", "payments", "java")
    traffic.roll("producers", run.routers)
    traffic.roll("transactional", run.routers)
    with java_transactions(run.routers, "java", "java-tx") as java:
        committed = wait_until(lambda: len(list(read_topic(run.target.bootstrap, "java"))) > 300, 30, "committed records")
        assert committed
        time.sleep(2)
        told = run.does("promote", "payments", "java", "--yes")
        print(told)
        out, _ = java.communicate(timeout=60)
    assert java.returncode == 0, out
    assert "Exception" not in out, out
    time.sleep(2)
    values = [int(record.value or b"-1") for record in read_topic(run.target.bootstrap, "java")]
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for record in read_topic(run.target.bootstrap, "java"):
        by_partition[record.partition].append(int(record.value or b"-1"))
    assert sorted(values) == list(range(JAVA_RECORDS))
    assert all(part == sorted(part) for part in by_partition.values())
    verdict = run.judge("payments")
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"
