"""While a promoted topic has a way back, deny ACLs keep other writers out of its source, and leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.security import Permit
from tests.integration.acl_bindings import in_force
from tests.integration.migration import wait_until
from tests.integration.router_world import Writer
from tests.integration.secure_router import answered, entry, secure_router, written
from tests.integration.secure_world import MOVER, SecurePair
from tests.integration.test_router_secure import permit, stored

_WINDOW_S = 0.5
"""Seconds for which a direct write keeps a topic from being promoted."""


def test_deny_acls_keep_other_writers_out_until_the_rollback_and_until_the_end_of_the_way_back(
    pair: SecurePair, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    topic, link = unique_name("paid"), unique_name("link")
    source, folder = pair.source, tmp_path / unique_name("edge")
    admin = AdminClient(dict(source.client()))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    for user in ("producers", "mover"):
        permit(source, user, topic)
    plain = source.client("producers", "PLAIN")
    direct = {**plain, "sasl.username": "mover", "sasl.password": MOVER}

    def kmigrate(*words: str) -> dict[str, Any]:
        return answered(folder, *words)

    def at_source() -> str:
        (found,) = [each for each in kmigrate("status")["topics"] if each["topic"] == topic]
        return f"{found['source_closed']}; {found['way_back']}"

    def promoted() -> None:
        """Promote the topic, and wait until others may not write at the source."""
        refs = {each["ref"]: each["what"] for each in kmigrate("promote", topic, "--link", link, "--plan")["findings"]}
        assert "User:mover, User:producers may not write it at source" in refs["writers-denied"]
        kmigrate("promote", topic, "--link", link, "--yes")
        wait_until(lambda: at_source() == "denied to User:mover, User:producers; open", 30, "the deny ACLs")

    settings = 'security_protocol = "SASL_SSL"'
    clients = entry("producers", source, "producers")
    grants = (
        Permit("kmigrate", "TOPIC", "WRITE", topic),
        Permit("kmigrate", "TOPIC", "ALTER_CONFIGS", topic),
        Permit("kmigrate", "CLUSTER", "ALTER", "kafka-cluster"),
    )
    with (
        in_force(source, *(each.binding() for each in grants)),
        secure_router(pair, folder, settings, clients, verb=("run",)) as router,
    ):
        kmigrate("link", "create", link, "--source", "source", "--set", f"straggler_window_s={_WINDOW_S}")
        kmigrate("topic", "mirror", topic, "--link", link)
        # before, the router's metadata refuses the writer, and librdkafka gives up
        wait_until(lambda: acls(pair.target, topic, AclPermissionType.ALLOW), 120, "the ACLs to be mirrored")
        with Writer(router.bootstrap, topic, "routed", router.client("producers"), 0.01, 1) as writer:
            writer.until(20)
            promoted()
            for client in (direct, plain):
                assert written(client, topic, "direct") == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
            writer.until(writer.acked + 20)
            assert at_source().endswith("; open")

            kmigrate("rollback", topic, "--link", link, "--yes")
            assert (denials(source, topic), denials(pair.target, topic)) == ([], [])
            writer.until(writer.acked + 20)
            writer.finish()
        assert written(direct, topic, "direct") == [None]
        assert writer.errors == []
        values = [value for value in stored(source, topic) if value is not None]
        assert values == [*writer.sent[0], b"direct"]

        time.sleep(2 * _WINDOW_S)  # then the direct write no longer counts as a writer's
        promoted()
        kmigrate("promote", topic, "--link", link, "--no-way-back", "--yes")
        wait_until(lambda: at_source().startswith("closed; ended"), 30, "the source to be closed")
        wait_until(lambda: not denials(source, topic), 30, "the deny ACLs to be gone")
        assert written(direct, topic, "too large for a marker" * 9) == [KafkaError.MSG_SIZE_TOO_LARGE]
        assert denials(pair.target, topic) == []


def denials(cluster: KafkaCluster, topic: str) -> list[AclBinding]:
    """Return the deny ACLs on a topic, as an administrator's client lists them."""
    return acls(cluster, topic, AclPermissionType.DENY)


def acls(cluster: KafkaCluster, topic: str, kind: AclPermissionType) -> list[AclBinding]:
    """Return the ACLs of a kind on a topic, for principals other than kmigrate's own."""
    everything = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.MATCH,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        kind,
    )
    admin = AdminClient(dict(cluster.client()))
    found: list[AclBinding] = admin.describe_acls(everything).result(30)
    return [each for each in found if each.principal != "User:kmigrate"]
