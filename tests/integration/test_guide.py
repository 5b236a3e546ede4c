"""`kmigrate init` and the guide, driven through a pseudo-terminal: a topic and its group move between two clusters."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.integration.positions import commit_positions
from tests.terminal import CTRL_C, DOWN, ENTER, Person


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[KafkaCluster]]:
    with running_clusters(tmp_path / "clusters", *source_and_target()) as clusters:
        yield clusters


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    made = Person(tmp_path)
    try:
        yield made
    finally:
        if made.terminal is not None:
            made.terminal.close(force=True)


@pytest.mark.soak
def test_a_person_is_led_from_no_configuration_to_a_promoted_topic(
    pair: list[KafkaCluster], person: Person, tmp_path: Path
) -> None:
    source, target = pair
    _fill(source, "orders", 100)
    commit_positions(source.client(), "billing", [TopicPartition("orders", 0, 40)])

    # Without a word on a terminal the guide opens, and asks for the configuration first.
    person.calls()
    person.answers("How do you begin?", ENTER)
    person.answers("Bootstrap servers of the source", "127.0.0.1:1" + ENTER)
    person.answers("How do clients connect to the source?", ENTER)
    person.reads("cluster-unreachable")
    person.answers("How do you go on?", ENTER)
    person.answers("Bootstrap servers of the source", source.bootstrap + ENTER)
    person.answers("How do clients connect to the source?", ENTER)
    assert "source answers: 1 broker, Kafka 3.9, 1 topic" in person.reads(", cluster id")
    person.answers("Bootstrap servers of the target", target.bootstrap + ENTER)
    person.answers("How do clients connect to the target?", ENTER)
    person.answers("Address of the router", "\x15" + f"127.0.0.1:{free_ports(1)[0]}" + ENTER)
    person.answers("Name of the link?", "\x15blue" + ENTER)
    person.answers("Write this to kmigrate.toml?", "y")
    person.reads("kmigrate doctor")
    written = tomli.loads((tmp_path / "kmigrate.toml").read_text(encoding="utf-8"))
    assert written["clusters"]["source"]["bootstrap.servers"] == source.bootstrap
    assert written["defaults"] == {"target": "target", "link": "blue"}

    # The guide goes on. Ctrl-C leaves nothing half done, and names the command that goes on.
    person.answers("How do you go on?", CTRL_C)
    code, rest = person.ends()
    assert (code, "kmigrate guide" in rest) == (130, True)

    person.calls("guide")
    person.answers("How do you go on?", ENTER)
    person.answers("Name of the new link?", ENTER)
    person.answers("Which topics move?", " ", ENTER)
    person.reads("Groups that read these topics are marked: billing")
    person.answers("Which groups move with them?", ENTER)
    person.answers("Compare all records with Spark", "n")
    person.answers("Run this step?", ENTER)  # link create
    person.reads("kmigrate doctor")
    person.reads("orders: every record keeps its offset")
    person.answers("Write the steps as a playbook", str(tmp_path / "orders.toml") + ENTER)
    person.answers("Run the steps now", "y")
    person.reads("kmigrate wait")
    engines = _engines(person)
    try:
        person.answers("Run this step?", ENTER)  # topic mirror
        person.answers("Run this step?", ENTER)  # group mirror
        person.answers("Have all producers of these topics", ENTER)
        person.answers("Have all consumers of these groups", ENTER)
        person.answers("Run this step?", DOWN, ENTER)  # group promote: stop here
        person.reads("to go on:")
        code, rest = person.ends()
        assert code == 0, rest
        names = "--link blue --source source --target target --topic orders --group billing"
        go_on = f"kmigrate guide {names} --no-verify --run"
        assert go_on in rest

        person.calls(*go_on.split()[1:])
        person.answers("Have all producers of these topics", ENTER)
        person.answers("Have all consumers of these groups", ENTER)
        person.answers("Run this step?", ENTER)
        person.answers("Run this step?", ENTER)
        person.reads("let the clients leave the routers")
        code, rest = person.ends()
        assert code == 0, rest
    finally:
        engines.terminate()
        engines.wait(20)
    assert _end(target, "orders") == 100


def _engines(person: Person) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kmigrate", "run", "--json"],
        cwd=person.folder,
        env=person.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _fill(cluster: KafkaCluster, topic: str, records: int) -> None:
    create_topics(cluster.client(), [NewTopic(topic, 1, 1)])
    producer = Producer(cluster.client())
    for number in range(records):
        producer.produce(topic, b"%d" % number)
    producer.flush()


def _end(cluster: KafkaCluster, topic: str) -> int:
    consumer = Consumer({**cluster.client(), "group.id": "reader"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    consumer.close()
    return int(end)
