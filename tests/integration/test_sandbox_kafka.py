"""The sandbox's promises about its brokers, tested on real brokers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox import kafka
from kmigrate.sandbox.distribution import Distribution, archive_path
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, Broker, ClusterSpec, KafkaCluster


def _produce(cluster: KafkaCluster, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def _read_first(cluster: KafkaCluster, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": f"reads-{topic}"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
        return None if message is None else message.value()
    finally:
        consumer.close()


def test_source_and_target_are_two_clusters_of_the_two_promised_versions(
    source: KafkaCluster, target: KafkaCluster, source_admin: AdminClient, target_admin: AdminClient
) -> None:
    source_id = source_admin.describe_cluster().result(30).cluster_id
    target_id = target_admin.describe_cluster().result(30).cluster_id
    assert (source_id, target_id) == (source.cluster_id, target.cluster_id)
    assert source_id != target_id
    if "KMIGRATE_KAFKA_HOME" not in os.environ:
        assert (source.version, target.version) == (SOURCE_VERSION, TARGET_VERSION)


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has mapped is told by /proc")
def test_brokers_begin_with_the_classes_that_an_earlier_one_of_their_version_had_loaded(
    source: KafkaCluster, target: KafkaCluster
) -> None:
    for cluster in (source, target):
        if not isinstance(cluster.distribution, Distribution):
            pytest.skip("a container's Java is not ours to tell")
        mapped = Path(f"/proc/{cluster.brokers[1].pid}/maps").read_text(encoding="utf-8")
        assert str(archive_path(cluster.distribution.jars, find_java())) in mapped


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.soak), "target"])
def test_a_killed_broker_comes_back_on_its_port_with_its_data(
    side: str,
    own_cluster: Callable[..., KafkaCluster],
    unique_name: Callable[[str], str],
    make_topic: Callable[..., None],
) -> None:
    cluster = own_cluster(SOURCE_VERSION if side == "source" else TARGET_VERSION)
    topic = unique_name("survives")
    make_topic(cluster, topic)
    _produce(cluster, topic, b"before the kill")
    before = cluster.brokers[1].pid
    cluster.restart(1)
    cluster.wait_ready()
    assert cluster.brokers[1].pid != before
    assert _read_first(cluster, topic) == b"before the kill"


def test_a_paused_broker_says_nothing_until_it_is_resumed(own_cluster: Callable[..., KafkaCluster]) -> None:
    cluster = own_cluster()
    cluster.pause(1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    with pytest.raises(Exception, match=r"_TRANSPORT|timed out|Timed out"):
        admin.list_topics(timeout=1)
    cluster.resume(1)
    assert set(admin.list_topics(timeout=20).brokers) == {1}


def test_kafkas_tool_formats_a_folder_of_a_version_and_each_copy_has_ids_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_tool: list[Path] = []
    format_by_tool = KafkaCluster._format_by_tool

    def counted(cluster: KafkaCluster, distribution: Distribution, broker: Broker) -> None:
        by_tool.append(broker.folder)
        format_by_tool(cluster, distribution, broker)

    monkeypatch.setattr(KafkaCluster, "_format_by_tool", counted)
    monkeypatch.setattr(kafka, "_FORMATS", {})
    clusters = [KafkaCluster.create(ClusterSpec(name, TARGET_VERSION, 2), tmp_path) for name in ("first", "second")]
    if not isinstance(clusters[0].distribution, Distribution):
        pytest.skip("a container formats its own folder")
    found = []
    for cluster in clusters:
        cluster.format()
        for node, broker in cluster.brokers.items():
            lines = (broker.folder / "data" / "meta.properties").read_text(encoding="utf-8").splitlines()
            ids = dict(line.split("=") for line in lines if "=" in line)
            assert (ids["cluster.id"], ids["node.id"], ids["version"]) == (cluster.cluster_id, str(node), "1")
            found.append((ids["directory.id"], (broker.folder / "data" / "bootstrap.checkpoint").read_bytes()))
    assert by_tool == [clusters[0].brokers[1].folder]
    assert len({directory for directory, _ in found}) == 4
    assert len({features for _, features in found}) == 1
