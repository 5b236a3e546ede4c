"""A playbook and a rehearsal between two clusters with TLS, logins and ACLs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.integration.command_line import Call
from tests.integration.secure_router import entry, secure_router
from tests.integration.secure_world import SecurePair
from tests.integration.test_router_secure import permit, stored
from tests.json_output import documents_in


def test_a_topic_is_moved_between_clusters_with_tls_logins_and_acls(
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

    clients = entry("producers", pair.source, "producers") + entry("kmigrate", pair.source, "kmigrate")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients, verb=("run",)):
        values = {"topics": topic, "link": link, "verify": "false"}
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        words = ["playbook", "run", "secured-clusters", *flags, "--approve", "all", "--yes", "--json"]
        done = Call([*words, "--config", str(folder / "kmigrate.toml")]).end(100)
        rehearsed(pair, folder / "kmigrate.toml", unique_name("next"), link)
    assert done is not None
    assert done[0] == 0, done
    outcomes = {line["step"]: line["outcome"] for line in documents_in(done[1]) if line.get("event") == "step-ended"}
    skipped = dict.fromkeys((7, 10, 12), "skipped")
    assert outcomes == {**dict.fromkeys(range(1, 13), "done"), 3: "nothing to do", **skipped}
    assert stored(pair.target, topic) == [b"%d" % number for number in range(100)]


def rehearsed(pair: SecurePair, config: Path, topic: str, link: str) -> None:
    """Rehearse a topic with the printed rights, beside those of a migration."""
    create_topics(pair.source.client(), [NewTopic(topic, 1, 1)])
    options = ["--link", link, "--config", str(config), "--json"]
    printed = Call(["rehearse", "--print-acls", *options]).end(60)
    assert printed is not None and printed[0] == 0, printed
    rights = json.loads(printed[1])["rights"]
    for cluster in (pair.source, pair.target):
        grant(cluster, (each for each in rights if each["cluster"] == cluster.spec.name))
    done = Call(["rehearse", topic, "--traffic", "1", "--yes", *options]).end(200)
    assert done is not None and done[0] == 0, done
    (outcome,) = json.loads(done[1])["rehearsal"]["topics"]
    assert outcome["rollback"] is not None and not outcome["differing"], outcome


def grant(cluster: KafkaCluster, rights: Iterable[Mapping[str, Any]]) -> None:
    """Give kmigrate's principal rights as `--print-acls --json` lists them."""
    rules = [
        AclBinding(
            ResourceType[each["resource"]],
            name,
            ResourcePatternType.PREFIXED if each["prefixed"] else ResourcePatternType.LITERAL,
            each["principal"],
            "*",
            AclOperation[each["operation"]],
            AclPermissionType.ALLOW,
        )
        for each in rights
        for name in each["names"]
    ]
    for outcome in AdminClient(dict(cluster.client())).create_acls(rules).values():
        outcome.result(30)
