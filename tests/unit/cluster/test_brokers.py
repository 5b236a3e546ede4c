"""Tests of advertised addresses, and of log directories as brokers report them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster import brokers
from kmigrate.cluster.brokers import advertised_faults, read_log_dirs, refuse_unreachable_brokers, topic_bytes
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code


class Brokers:
    """Three brokers: the first is reached, the second has an unknown name, the third never answers."""

    settings = SimpleNamespace(name="source")
    metadata = SimpleNamespace(brokers={1: ("one", 9092), 2: ("nowhere", 9093), 3: ("silent", 9094)})

    async def connection(self, node: int) -> None:
        if node == 2:
            raise Unreachable("broker-unreachable", "no connection to nowhere:9093: Name or service not known")
        if node == 3:
            await asyncio.sleep(60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "_CONNECT_S", 0.1)


def test_each_broker_that_is_not_reached_is_named_with_the_address_that_the_broker_advertises() -> None:
    brokers: Any = Brokers()
    second, third = asyncio.run(advertised_faults(brokers))
    assert "broker 2 of cluster source advertises nowhere:9093" in second.text
    assert "Name or service not known" in second.text
    assert "advertised.listeners of broker 2" in second.next_step
    assert (third.node, third.address) == (3, "silent:9094")
    with pytest.raises(Unreachable, match="advertised-unreachable"):
        asyncio.run(refuse_unreachable_brokers(brokers))


class Cluster:
    """Two brokers, each with two log directories; `newest` is the version of DescribeLogDirs that both take."""

    def __init__(self, newest: int = 4, *, error: int = 0, offline: int = 0, silent: int = -1) -> None:
        self.settings = ClusterSettings("t", (("h", 1),))
        self.metadata = SimpleNamespace(brokers={1: ("h", 1), 2: ("h", 2)})
        self.newest, self.error, self.offline, self.silent = newest, error, offline, silent
        self.asked: list[tuple[int, int, dict[str, tuple[int, ...]]]] = []

    async def call(self, request: Any, node: int, *, purpose: str) -> Any:
        assert purpose == "log-dirs"
        if int(request.__api_key__) == 18:
            return SimpleNamespace(api_keys=[SimpleNamespace(api_key=35, max_version=self.newest)])
        if node == self.silent:
            raise Unreachable("no-answer", "no answer within 30 s")
        version = int(request.__version__)
        self.asked.append((node, version, {str(t.topic): t.partitions for t in request.topics}))
        size = SimpleNamespace(partition_size=10 * node)
        room = {"total_bytes": 1000 * node, "usable_bytes": 100 * node} if version >= 4 else {}
        dirs = [
            SimpleNamespace(
                error_code=self.offline if path == "/b" else 0,
                log_dir=path,
                topics=[
                    SimpleNamespace(name=topic.topic, partitions=[size for p in topic.partitions if p % 2 == side])
                    for topic in request.topics
                ],
                **room,
            )
            for side, path in enumerate(["/a", "/b"])
        ]
        return SimpleNamespace(error_code=self.error, results=[] if self.error else dirs)


def read(cluster: Cluster, topics: dict[str, range] | None = None) -> dict[int, Any]:
    return asyncio.run(read_log_dirs(cast("ClusterClient", cluster), topics))


def test_room_and_sizes_are_told_by_broker_and_log_directory() -> None:
    told = read(Cluster(), {"x": range(3), "y": range(1)})
    assert [(d.path, d.total, d.usable, dict(d.sizes)) for d in told[2]] == [
        ("/a", 2000, 200, {"x": 40, "y": 20}),
        ("/b", 2000, 200, {"x": 20, "y": 0}),
    ]
    assert topic_bytes(told, ["x", "y", "z"]) == {"x": 90, "y": 30, "z": 0}


def test_no_topic_is_asked_for_where_only_the_room_is_wanted() -> None:
    cluster = Cluster()
    assert [each.sizes for each in read(cluster)[1]] == [{}, {}]
    assert [topics for _, _, topics in cluster.asked] == [{}, {}]


@pytest.mark.parametrize(("newest", "sent"), [(2, 2), (3, 3), (4, 4), (9, 4)])
def test_the_newest_version_that_both_know_is_asked(newest: int, sent: int) -> None:
    cluster = Cluster(newest)
    told = read(cluster)
    assert {version for _, version, _ in cluster.asked} == {sent}
    assert {each.usable for each in told[1]} == {100 if sent >= 4 else -1}


@pytest.mark.parametrize("newest", [2, 4])
def test_a_broker_that_denies_us_is_no_broker_without_topics(newest: int) -> None:
    told = read(Cluster(newest, error=Code.CLUSTER_AUTHORIZATION_FAILED), {"x": range(1)})
    assert all(isinstance(each, Failed) and "DESCRIBE on cluster" in each.next_step for each in told.values())
    assert topic_bytes(told, ["x"]) is None


def test_a_sum_of_which_a_part_is_unknown_is_unknown() -> None:
    for cluster in (Cluster(silent=2), Cluster(offline=Code.KAFKA_STORAGE_ERROR)):
        assert topic_bytes(read(cluster, {"x": range(2)}), ["x"]) is None
    assert topic_bytes({}, ["x"]) is None, "no broker is known"


def test_ten_thousand_partitions_are_asked_for_in_portions_that_are_soon_decoded() -> None:
    cluster = Cluster()
    topics = {f"t{number}": range(100) for number in range(100)}
    told = read(cluster, topics)
    sizes = topic_bytes(told, topics)
    assert sizes == dict.fromkeys(topics, 100 * 10 + 100 * 20)
    portions = [sum(len(partitions) for partitions in asked.values()) for _, _, asked in cluster.asked]
    assert max(portions) == 500
    assert sum(portions) == 2 * 10_000
