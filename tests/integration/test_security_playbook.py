"""The playbook for secured clusters moves a topic between two clusters with TLS, logins and ACLs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic

from kmigrate.sandbox.topics import create_topics
from tests.integration.command_line import Call
from tests.integration.secure_router import entry, secure_router
from tests.integration.secure_world import SecurePair
from tests.integration.test_router_secure import permit, stored
from tests.json_output import documents_in


def test_a_topic_is_moved_and_its_source_refuses_writes(
    pair: SecurePair, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    topic, link = unique_name("secured"), unique_name("link")
    folder = tmp_path / unique_name("edge")
    create_topics(pair.source.client(), [NewTopic(topic, 1, 1)])
    permit(pair.source, "producers", topic)
    producer = Producer(pair.source.client())
    for number in range(100):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(20) == 0

    clients = entry("producers", pair.source, "producers")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients, verb=("run",)):
        values = {"topics": topic, "link": link, "verify": "false"}
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        words = ["playbook", "run", "secured-clusters", *flags, "--approve", "all", "--yes", "--json"]
        done = Call([*words, "--config", str(folder / "kmigrate.toml")]).end(100)
    assert done is not None
    assert done[0] == 0, done
    outcomes = {line["step"]: line["outcome"] for line in documents_in(done[1]) if line.get("event") == "step-ended"}
    assert outcomes == {**dict.fromkeys(range(1, 13), "done"), 7: "skipped", 10: "skipped", 12: "skipped"}
    assert stored(pair.target, topic) == [b"%d" % number for number in range(100)]
    refused: list[KafkaError | None] = []
    producer.produce(topic, b"late" * 10, on_delivery=lambda error, _: refused.append(error))
    producer.flush(20)
    assert [error and error.code() for error in refused] == [KafkaError.MSG_SIZE_TOO_LARGE], "the source is sealed"
