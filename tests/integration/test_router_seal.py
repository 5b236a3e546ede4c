"""A router that does not answer at a promote: the source broker holds the fence in its place, and lets go again."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.kafka import ClusterSpec, KafkaCluster
from tests.integration.migration import Migration, wait_until
from tests.integration.router_world import ends

pytestmark = pytest.mark.timeout(240)

LIMIT = "max.message.bytes"


@pytest.fixture
def migration(tmp_path: Path) -> Iterator[Migration]:
    """Two fresh clusters of one broker each, because a state log has one name."""
    settings = "[promote]\nfence_timeout_s = 8.0\nstraggler_window_s = 2.0\nrouter_silent_s = 2.0\n"
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


def limit(cluster: KafkaCluster, topic: str) -> str:
    """The topic's own limit, '' where it has none."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = admin.describe_configs([resource])[resource].result()[LIMIT]
    return str(entry.value) if not entry.is_default else ""


def test_a_silent_router_is_overcome_by_a_fence_that_the_source_broker_holds(migration: Migration) -> None:
    """Topics with a limit of their own and without; one router stands still with its clients' writes in its hands."""
    run = migration
    run.make_topic("orders", 3, **{LIMIT: "2000000"})
    run.make_topic("bills", 3)
    traffic = run.run_clients(
        [ProducerSpec("p1", "librdkafka", "orders", 200.0), ProducerSpec("p2", "aiokafka", "bills", 200.0)]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router-a", "router-b", "controller")
    run.does("topic", "mirror", "orders", "bills")
    traffic.roll("producers", run.routers)
    time.sleep(3)
    run.kill("router-b", signal.SIGSTOP)
    told = run.does("promote", "orders", "bills", "--yes")
    barriers = {}
    for topic in told["topics"]:
        barriers[topic["topic"]] = [topic["barrier"][str(p)]["offset"] for p in range(3)]
        assert list(topic["seal"]["routers"].values()) == ["b"], topic
    assert (limit(run.source, "orders"), limit(run.source, "bills")) == ("1", "1")
    assert (limit(run.target, "orders"), limit(run.target, "bills")) == ("2000000", "")
    run.kill("router-b", signal.SIGCONT)
    wait_until(lambda: limit(run.source, "orders") == "2000000", 30, "the seal of orders to be taken off")
    wait_until(lambda: limit(run.source, "bills") == "", 30, "the seal of bills to be taken off")
    wait_until(lambda: all(not t["sealed_for"] for t in run.does("status")["topics"]), 30, "the record to say so")
    time.sleep(1)
    verdict = run.judge("orders", "bills")
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"
    assert {topic: ends(run.source.bootstrap, topic) for topic in barriers} == barriers, "both clusters accepted"
