"""A source with the target's cluster id, and a source that advertises an unresolvable address."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.cluster.client import ClusterClient
from kmigrate.sandbox.kafka import SOURCE_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.workflow.base.bootstraps import Leads, ask_bootstraps
from tests.integration.migration import Migration
from tests.integration.router_process import cluster_settings
from tests.integration.router_world import links_gone

NOWHERE = "broker.nowhere.invalid"


@pytest.fixture(scope="module")
def twin(target: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, int]]:
    """Start a cluster with the cluster id of the target; the second listener advertises an unresolvable name."""
    folder = tmp_path_factory.mktemp("twin")
    made = KafkaCluster.create(ClusterSpec("source", SOURCE_VERSION), folder)
    cluster = replace(made, cluster_id=target.cluster_id)
    broker = cluster.brokers[1]
    (port,) = free_ports(1)
    lines = {
        "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},FAR://127.0.0.1:{port},"
        f"CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker.port},FAR://{NOWHERE}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    with broker.properties.open("a", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in lines.items())
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster, port
    finally:
        cluster.stop()


@pytest.fixture
def link(target: KafkaCluster, unique_name: Callable[[str], str]) -> Iterator[str]:
    """Yield a link's name, and delete the link's records from the target at the end.

    The source ends with this module.
    """
    name = unique_name("link")
    yield name
    asyncio.run(links_gone(target, name))


def test_two_clusters_with_one_cluster_id_are_told_apart(
    twin: tuple[KafkaCluster, int],
    target: KafkaCluster,
    tmp_path: Path,
    link: str,
    unique_name: Callable[[str], str],
) -> None:
    source, _ = twin
    topic = unique_name("t")
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    run = Migration(source, target, tmp_path / "run")
    run.does("link", "create", link, "--source", "source")
    found = {each["ref"]: each["level"] for each in run.cli("link", "check", link).told["findings"]}
    assert found["source-answers"] == "ok"
    assert "source-is-target" not in found
    assert run.does("topic", "mirror", topic, "--link", link, "--no-wait")["applied"]

    async def leads() -> Leads:
        async with ClusterClient(cluster_settings("target", target.bootstrap)) as client:
            return (await ask_bootstraps(client, [source.bootstrap]))[0].leads

    assert asyncio.run(leads()) is Leads.ELSEWHERE


def test_an_advertised_name_that_is_not_resolved_is_found_and_blamed(
    twin: tuple[KafkaCluster, int], target: KafkaCluster, tmp_path: Path, link: str
) -> None:
    source, port = twin
    run = Migration(source, target, tmp_path / "run")
    near, far = f'"{source.bootstrap}"', f'"127.0.0.1:{port}"'
    run.config.write_text(run.config.read_text(encoding="utf-8").replace(near, far), encoding="utf-8")
    run.does("link", "create", link, "--source", "source")
    checked = run.cli("link", "check", link)
    (fault,) = [each for each in checked.told["findings"] if each["ref"] == "advertised-unreachable"]
    assert (checked.code, fault["level"]) == (3, "refuse")
    planned = run.cli("plan", "--link", link)
    assert (planned.code, planned.told["error"]) == (1, "advertised-unreachable"), planned
    for text in (fault["what"], planned.told["what"]):
        assert f"broker 1 of cluster source advertises {NOWHERE}:{port} (advertised.listeners)" in text
    assert f"127.0.0.1:{port}" not in planned.told["what"]
    doctor = run.cli("doctor").told["cluster source"]
    assert "advertised-unreachable" in [each["ref"] for each in doctor]
