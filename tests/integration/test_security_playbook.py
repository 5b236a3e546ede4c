"""A playbook and a rehearsal between two clusters with TLS, logins and ACLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
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
from tests.integration.secure_router import answered, entry, secure_router
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

    clients = entry("producers", pair.source, "producers")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients, verb=("run",)):
        values = {"topics": topic, "link": link, "verify": "false"}
        flags = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        words = ["playbook", "run", "secured-clusters", *flags, "--approve", "all", "--yes", "--json"]
        done = Call([*words, "--config", str(folder / "kmigrate.toml")]).end(100)
    assert done is not None
    assert done[0] == 0, done
    outcomes = {line["step"]: line["outcome"] for line in documents_in(done[1]) if line.get("event") == "step-ended"}
    skipped = dict.fromkeys((7, 10, 12), "skipped")
    assert outcomes == {**dict.fromkeys(range(1, 13), "done"), 3: "nothing to do", **skipped}
    assert stored(pair.target, topic) == [b"%d" % number for number in range(100)]


@pytest.mark.soak
def test_a_rehearsal_takes_the_printed_rights_and_no_others_beside_those_of_a_migration(
    pair: SecurePair, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    topic, link = unique_name("rehearsed"), unique_name("link")
    folder = tmp_path / unique_name("edge")
    create_topics(pair.source.client(), [NewTopic(topic, 1, 1)])
    clients = entry("kmigrate", pair.source, "kmigrate")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients, verb=("run",)):

        def done(*words: str) -> dict[str, Any]:
            return answered(folder, *words, within_s=200)

        done("link", "create", link, "--source", "source", "--target", "target")
        rights = done("rehearse", "--print-acls", "--link", link)["rights"]
        for cluster in (pair.source, pair.target):
            grant(cluster, (each for each in rights if each["cluster"] == cluster.spec.name))
        told = done("rehearse", topic, "--link", link, "--traffic", "1", "--yes")
    (outcome,) = told["rehearsal"]["topics"]
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
    admin = AdminClient(dict(cluster.client()))
    for outcome in admin.create_acls(rules).values():
        outcome.result(30)
