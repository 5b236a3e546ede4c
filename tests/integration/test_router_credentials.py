"""Credentials that change while a router runs: the router's own, and its clients'.

Further tests have clients that reach both clusters by certificates.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.security import Permit
from tests.integration.acl_bindings import exactly
from tests.integration.java_clients import java_command
from tests.integration.migration import wait_until
from tests.integration.router_world import Writer, link_between, quietly
from tests.integration.secure_router import SecureRouter, by_certificate, entry, secure_router, shown, written
from tests.integration.secure_world import SecurePair, decisions
from tests.integration.test_router_secure import made, mirrored, permit, refusal, stored

Names = Callable[[str], str]
JAVAS = 20
"""Number of records that Java writes at a time."""


def set_password(cluster: KafkaCluster, user: str, password: str) -> None:
    admin = AdminClient(dict(cluster.client()))
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # A request may change a user only once.
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), password.encode())
        admin.alter_user_scram_credentials([change])[user].result(30)


@contextmanager
def rotated(cluster: KafkaCluster, user: str) -> Iterator[Path]:
    """Change a user's password at its cluster to "rotated"; yield the file that still holds the old password."""
    held = Path(cluster.security.access(user).password_file)
    old = held.read_text("utf-8")
    try:
        set_password(cluster, user, "rotated")
        yield held
    finally:
        set_password(cluster, user, old)
        held.write_text(old, encoding="utf-8")


MAPPED = 'security_protocol = "SASL_SSL"\nlogin = "mapped"'


def test_clients_stay_while_the_routers_password_is_rotated_and_one_of_its_table(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    """The router names a refused password of its own, and goes on.

    Such a password ends neither the router nor a client's connection, and the new password works without a restart.
    """
    topic, held = unique_name("here"), tmp_path / "app.password"
    made(pair, topic)
    permit(pair.target, "producers", topic)
    held.write_text("f1rst-secret", "utf-8")
    app = entry("app", pair.target, "producers", password="x").replace('"x"', f'{{ file = "{held}" }}', 1)
    with secure_router(pair, tmp_path / "rotated", MAPPED, app) as running:
        before, after = (
            running.client("producers") | {"sasl.username": "app", "sasl.password": password}
            for password in ("f1rst-secret", "s2cond-secret")
        )
        with Writer(running.bootstrap, topic, "w", before, 0.01, 1) as writer:
            writer.until(5)
            with rotated(pair.target, "kmigrate") as ours:
                held.write_text("s2cond-secret", "utf-8")
                running.said("read again: changed: app")
                running.said("refused the SCRAM-SHA-512 login")
                assert written(after, topic, "by the new one") == [None]
                ours.write_text("rotated", "utf-8")
                running.said("this router is heard again")
            writer.until(writer.acked + 50)
    assert writer.errors == []
    assert [value for value in stored(pair.target, topic) if value != b"by the new one"] == writer.sent[0]


@pytest.mark.soak
def test_a_table_is_written_anew_while_the_routers_password_is_rotated(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    here, there = unique_name("here"), unique_name("there")
    made(pair, here, there)
    permit(pair.target, "producers", here)
    permit(pair.target, "producers", there, "DESCRIBE")
    permit(pair.source, "producers", there)
    folder, held = tmp_path / "table", tmp_path / "app.password"
    held.write_text("f1rst-secret", "utf-8")
    app = entry("app", pair.target, "producers", password="x").replace('"x"', f'{{ file = "{held}" }}', 1)
    leaver = entry("leaver", pair.target, "producers", password="leaver-secret")
    with secure_router(pair, folder, MAPPED, app + leaver) as running:
        clients = folder / "clients.toml"

        def config(name: str, password: str) -> dict[str, Any]:
            return running.client("producers") | {"sasl.username": name, "sasl.password": password}

        def forwarded() -> None:
            assert written(config("app", "s2cond-secret"), there, "by the new table") == [None]

        soon = {"message.timeout.ms": 2000}
        with (
            Writer(running.bootstrap, here, "w", config("app", "f1rst-secret"), 0.01, 1) as stays,
            Writer(running.bootstrap, here, "l", config("leaver", "leaver-secret") | soon, 0.05, 1) as goes,
        ):
            stays.until(50)
            goes.until(5)
            with rotated(pair.target, "kmigrate") as ours:
                held.write_text("s2cond-secret", "utf-8")
                running.said("read again: changed: app")
                running.said("refused the SCRAM-SHA-512 login")
                assert written(config("app", "s2cond-secret"), here, "again") == [None]
                assert "Invalid username or password" in refusal(config("app", "f1rst-secret"))
                clients.write_text("", "utf-8")
                running.said("has no client")
                clients.write_text(app + leaver + "[clients.", "utf-8")
                running.said("the table of clients stays as it was")
                goes.until(goes.acked + 5)
                ours.write_text("rotated", "utf-8")
                running.said("this router is heard again")
            clients.write_text(app + entry("app", pair.source, "producers"), "utf-8")
            running.said("changed: app; gone: leaver")
            mirrored(pair, unique_name("link"), [there], forwarded)
            stays.until(stays.acked + 50)
            wait_until(lambda: goes.errors, 15, "who is gone from the table to be let go")
        assert stays.errors == []
        log = running.log.read_text("utf-8")
    assert "-secret" not in log
    assert log.count("refused the SCRAM-SHA-512 login") <= 2, "by the state log's word, and by a look at the brokers"
    assert stored(pair.source, there) == [b"by the new table"]
    assert [value for value in stored(pair.target, here) if value and value.startswith(b"w-")] == stays.sent[0]


@dataclass
class Certified:
    """Two routers whose clients reach both clusters by certificates alone.

    Each router identifies its clients in another way.
    """

    pair: SecurePair
    topic: str
    folder: Path
    named: SecureRouter
    """Router that identifies clients by name and password."""
    subjects: SecureRouter
    """Router that identifies clients by their own certificates."""

    @property
    def orders(self) -> list[tuple[SecureRouter, dict[str, Any]]]:
        """Clients with the right to write."""
        return [(self.named, self._login("orders")), (self.subjects, self._certificate("here"))]

    @property
    def billing(self) -> list[tuple[SecureRouter, dict[str, Any]]]:
        """Clients without the right to write."""
        return [(self.named, self._login("billing")), (self.subjects, self._certificate("elsewhere"))]

    def _login(self, name: str) -> dict[str, Any]:
        return self.named.client("producers") | {"sasl.username": name, "sasl.password": "secret"}

    def _certificate(self, name: str) -> dict[str, Any]:
        security = self.pair.target.security
        return self.subjects.client("") | {
            "security.protocol": "SSL",
            "ssl.ca.location": str(security.ca_file),
            "ssl.certificate.location": str(security.folder / f"{name}.pem"),
            "ssl.key.location": str(security.folder / f"{name}.key"),
        }

    def write(self, when: str) -> None:
        for number, (_, config) in enumerate(self.orders):
            assert written(config | {"enable.idempotence": True}, self.topic, f"{when} {number}") == [None]
        for _, config in self.billing:
            denied(config, self.topic)

    def write_in_java(self) -> None:
        java_writes(*self.orders[1], self.topic, self.folder, JAVAS)

    def read(self, group: str) -> None:
        for _, config in self.orders:
            read(config, self.topic, group, JAVAS + 2)

    def right_withdrawn(self) -> None:
        """Withdraw a right at the cluster, check the cluster's error, grant the right again, and write."""
        with withdrawn(self.pair.target, Permit("orders", "TOPIC", "WRITE", self.topic)):
            for _, config in self.orders:
                denied(config, self.topic)
        for _, config in self.orders:
            assert written(config, self.topic, "granted again") == [None]

    def expired_at_source(self) -> None:
        """Let a certificate expire at the source:

        the router names the certificate, and writes wait for the new certificate.
        """
        security = self.pair.source.security
        security.issue("orders", days=-1)
        router, config = self.orders[1]
        with Writer(router.bootstrap, self.topic, "waits", config, partitions=1, pause=0.1) as writer:
            router.said("orders does not reach the source of")
            security.issue("orders")
            writer.until(1)
        assert writer.errors == []

    def expired_at_target(self) -> None:
        """Let a certificate expire at the target:

        the router names it, and the next connection uses the new certificate.
        """
        security = self.pair.target.security
        security.issue("orders", days=-1)
        for router, config in self.orders:
            with pytest.raises(KafkaException):
                AdminClient(config).list_topics(timeout=2)
            router.said("refused our side of TLS")
        security.issue("orders")
        for _, config in self.orders:
            assert written(config, self.topic, "renewed") == [None]


def table(pair: SecurePair, known_by: dict[str, str]) -> str:
    """Return a table of clients that show certificates of their own to both clusters."""
    text = ""
    for name, how in known_by.items():
        text += f"[clients.{name}]\n{how}\n"
        for cluster in (pair.source, pair.target):
            own = cluster.security.issue(name)
            text += f"[clients.{name}.clusters.{cluster.spec.name}]\n{shown(*own)}"
    return text


@contextmanager
def certified(pair: SecurePair, topic: str, folder: Path) -> Iterator[Certified]:
    permit(pair.source, "CN=kmigrate", "*", "READ")
    permit(pair.source, "CN=orders", topic)
    permit(pair.target, "orders", topic)
    permit(pair.target, "billing", topic, "DESCRIBE")  # The client learns the partition's leader from the target.
    for name in ("here", "elsewhere"):
        pair.target.security.issue(name)
    names = table(pair, {"orders": 'password = "secret"', "billing": 'password = "secret"'})
    subjects = table(pair, {"orders": 'certificate = "CN=here"', "billing": 'certificate = "CN=elsewhere"'})
    mutual = f'security_protocol = "SSL"\nclient_ca = "{pair.target.security.ca_file}"'
    clusters = by_certificate(pair)
    with (
        secure_router(pair, folder / "names", MAPPED, names, clusters) as named,
        secure_router(pair, folder / "subjects", mutual, subjects, clusters) as known,
    ):
        yield Certified(pair, topic, folder, named, known)
        assert not [each for each in (named, known) if "Traceback" in each.log.read_text("utf-8")]


def migrated(scene: Certified, link: str, before: list[Callable[[], None]], after: list[Callable[[], None]]) -> None:
    """Run these acts of clients before and after the topic's promote."""
    pair, topic = scene.pair, scene.topic

    async def scenario() -> None:
        async with link_between(pair.source, pair.target, link, pair.settings("target")) as world:
            for phase, acts in ((TopicPhase.MIRRORING, before), (TopicPhase.PROMOTED, after)):
                await world.put(topic, phase, partitions=1)
                await world.routers_apply(2)
                for act in acts:
                    await quietly(act)

    asyncio.run(scenario())


def test_clients_meet_both_clusters_by_certificates_of_the_table_before_and_after_a_promote(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    """The principals are the clients' own:

    `User:CN=orders` at the source, `User:orders` where brokers map the subject.
    """
    topic = unique_name("orders")
    made(pair, topic)
    with certified(pair, topic, tmp_path) as scene:
        migrated(scene, unique_name("link"), [partial(scene.write, "before")], [partial(scene.write, "after")])
    for cluster, when, principal in ((pair.source, "before", "CN=orders"), (pair.target, "after", "orders")):
        assert stored(cluster, topic) == [b"%s %d" % (when.encode(), number) for number in (0, 1)]
        assert ("TOPIC", "WRITE") in decisions(cluster, principal, "Allowed")
    assert ("TOPIC", "WRITE") in decisions(pair.source, "CN=billing", "Denied")
    assert ("TOPIC", "WRITE") not in decisions(pair.source, "CN=kmigrate", "Allowed")


@pytest.mark.soak
def test_java_groups_and_rights_and_certificates_that_end_behind_certificates_of_the_table(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    topic, group = unique_name("orders"), unique_name("group")
    made(pair, topic)
    permit(pair.target, "orders", topic, "READ")
    allow(pair.target, Permit("orders", "GROUP", "READ", group))
    with certified(pair, topic, tmp_path) as scene:
        before = [scene.write_in_java, scene.expired_at_source]
        after: list[Callable[[], None]] = [
            scene.write_in_java,
            partial(scene.write, "after"),
            partial(scene.read, group),
            scene.right_withdrawn,
            scene.expired_at_target,
        ]
        migrated(scene, unique_name("link"), before, after)


def denied(config: dict[str, Any], topic: str) -> None:
    (error,) = written(config, topic, "x")
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, error


def allow(cluster: KafkaCluster, rule: Permit) -> None:
    binding = rule.binding()
    admin = AdminClient(dict(cluster.client()))  # The client must live until the answer arrives.
    admin.create_acls([binding])[binding].result(30)


@contextmanager
def withdrawn(cluster: KafkaCluster, rule: Permit) -> Iterator[None]:
    same, admin = exactly(rule.binding()), AdminClient(dict(cluster.client()))
    admin.delete_acls([same])[same].result(30)
    wait_until(lambda: not admin.describe_acls(same).result(30), 20, "the broker to forget the rule")
    try:
        yield
    finally:
        allow(cluster, rule)
        wait_until(lambda: admin.describe_acls(same).result(30), 20, "the broker to know the rule")


def read(config: dict[str, Any], topic: str, group: str, records: int) -> None:
    """Check that a member of a group without committed offsets gets all records."""
    consumer = Consumer({**config, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    found: list[bytes] = []
    try:
        consumer.subscribe([topic])

        def whole() -> bool:
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                found.append(message.value() or b"")
            return len(found) >= records

        wait_until(whole, 30, lambda: f"the group to be given everything: {len(found)}")
        assert len(found) == records
    finally:
        consumer.close()


def java_writes(running: SecureRouter, login: dict[str, Any], topic: str, folder: Path, records: int) -> None:
    """Write records with Kafka's own performance tool, with a single PEM file as key store."""
    store, properties = folder / "java.pem", folder / "java.properties"
    store.write_text("".join(Path(login[f"ssl.{part}.location"]).read_text("utf-8") for part in ("key", "certificate")))
    properties.write_text(
        f"security.protocol=SSL\nssl.keystore.type=PEM\nssl.keystore.location={store}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={login['ssl.ca.location']}\n"
        f"bootstrap.servers={running.bootstrap}\n",
        encoding="utf-8",
    )
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", "100", "--throughput", "-1", "--producer.config", str(properties),
    )  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 0, ended
    assert f"{records} records sent" in ended.stdout, ended
