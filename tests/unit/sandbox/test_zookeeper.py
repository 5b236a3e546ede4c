"""Clusters of versions before KRaft: these versions, the brokers' settings, and the tracked processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kmigrate.sandbox import distribution
from kmigrate.sandbox.distribution import Distribution, find_distribution
from kmigrate.sandbox.estate import SandboxEstate
from kmigrate.sandbox.kafka import Broker, ClusterSpec, KafkaCluster
from kmigrate.sandbox.processes import ProcessIdentity
from kmigrate.sandbox.properties import broker_properties
from kmigrate.sandbox.zookeeper import ZooKeeper, needs_zookeeper

GONE = ProcessIdentity(1, "before this machine was started")


@pytest.mark.parametrize(
    ("version", "needs"), [("2.8.2", True), ("3.2.3", True), ("3.3.0", False), ("3.9.1", False), ("4.3.1", False)]
)
def test_versions_before_kraft_need_one(version: str, needs: bool) -> None:
    assert needs_zookeeper(version) is needs


def test_such_brokers_are_told_of_it_and_of_nothing_that_makes_a_kraft_broker(tmp_path: Path) -> None:
    told = broker_properties(1, {1: (9092, 9093)}, tmp_path, {"a": "b"}, ZooKeeper(0, 2181, tmp_path))
    assert (told["broker.id"], told["zookeeper.connect"], told["a"]) == ("1", "127.0.0.1:2181", "b")
    assert not [key for key in told if key.startswith(("process.", "controller.", "node.", "share."))]


def test_they_run_from_jars_also_where_a_container_engine_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KMIGRATE_KAFKA_HOME", raising=False)
    monkeypatch.setenv("KMIGRATE_CACHE", str(tmp_path))
    (tmp_path / "kafka-2.8.2").mkdir()
    monkeypatch.setattr(distribution, "engine_answers", lambda: True)
    assert find_distribution("2.8.2") == Distribution(tmp_path / "kafka-2.8.2", "2.8.2")


def _cluster(name: str, root: Path, zookeeper: ZooKeeper | None) -> KafkaCluster:
    broker = Broker(1, 9092, root / f"{name}-1", GONE, controller_port=9093)
    return KafkaCluster(
        ClusterSpec(name, "2.8.2"), Distribution(root, "2.8.2"), "id", {1: broker}, detached=True, zookeeper=zookeeper
    )


def test_another_process_finds_it_again_and_counts_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    keeper = ZooKeeper(0, 2181, data / "source-zookeeper", GONE)
    source = _cluster("source", data, keeper)
    assert KafkaCluster.from_json(source.as_json()) == source
    sandbox = SandboxEstate(tmp_path, data, source, _cluster("target", data, None))
    told = sandbox.status()
    assert told.clusters[0].zookeeper is not None and told.clusters[1].zookeeper is None
    assert (told.clusters[0].zookeeper.port, told.state) == (2181, "ended")
    left = replace(told.clusters[0], zookeeper=replace(told.clusters[0].zookeeper, alive=True))
    assert replace(told, clusters=(left,)).state == "partly"
