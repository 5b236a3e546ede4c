"""The mirror between secure clusters with its least privileges, judged by users that are not its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.committed_offsets import read_positions, write_positions
from kmigrate.cluster.groups import GroupHold
from kmigrate.model.grants import GRANTS, OPTIONAL_GRANTS
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.security import Permit
from tests.integration.acl_bindings import in_force
from tests.integration.migration import Migration, wait_until
from tests.integration.secure_world import SecurePair, decisions, log_size, without_notes

TOPIC = "orders"
CLIENTS = [
    Permit("producers", "TOPIC", "WRITE"),
    Permit("producers", "TRANSACTIONAL_ID", "WRITE"),
    Permit("consumers", "TOPIC", "READ"),
    Permit("consumers", "GROUP", "READ"),
]


class SecureMigration(Migration):
    """The same command line, with a configuration that logs in as `kmigrate`."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "kmigrate.toml"
        sections = []
        for cluster in (self.source, self.target):
            access = cluster.security.access("kmigrate")
            held = self.password_file(cluster)
            held.write_text(Path(access.password_file).read_text(encoding="utf-8"), encoding="utf-8")
            section = f'[clusters.{cluster.spec.name}]\n"bootstrap.servers" = "{cluster.bootstrap}"\n'
            sections.append(section + replace(access, password_file=str(held)).toml())
        self.config.write_text("\n".join([*sections, '[defaults]\ntarget = "target"\nlink = "blue"\n']), "utf-8")

    def password_file(self, cluster: KafkaCluster) -> Path:
        return self.folder / f"{cluster.spec.name}.password"


@pytest.fixture
def migration(pair: SecurePair, tmp_path: Path) -> Iterator[SecureMigration]:
    made = SecureMigration(pair.source, pair.target, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_mirror_needs_exactly_the_documented_grants_and_names_the_one_that_is_missing(
    migration: SecureMigration, pair: SecurePair
) -> None:
    source, target = migration.source, migration.target
    since = {cluster.spec.name: log_size(cluster) for cluster in (source, target)}
    for cluster in (source, target):
        cluster.security.admit(cluster.bootstrap, CLIENTS)
    admin = AdminClient(dict(source.client()))
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(30)
    _produce(source, 0, 200)
    for moved in admin.delete_records([TopicPartition(TOPIC, 0, 30)]).values():
        moved.result(30)

    migration.start("mirror")
    assert migration.cli("link", "create", "blue", "--source", "source").code == 0
    told = migration.cli("topic", "mirror", TOPIC, timeout=60)
    assert (told.code, told.told["topics"][0]["phase"]) == (0, "mirroring"), told
    _produce(source, 200, 200)
    _until_copied(migration)
    asyncio.run(_promote_by_hand(pair))

    for cluster in (source, target):
        listed = {(g.resource, g.operation) for g in GRANTS if g.side == cluster.spec.name}
        implied = {(resource, "DESCRIBE") for resource, operation in listed if operation == "READ"} - listed
        begun = since[cluster.spec.name]
        assert decisions(cluster, "kmigrate", "Allowed", begun) - implied <= listed
        # Other tests on these clusters may have used a right that is needed once, such as the right to create the state
        # log.
        assert listed <= decisions(cluster, "kmigrate", "Allowed")
        assert decisions(cluster, "kmigrate", "Denied", begun) == set()

    _rotate_a_password(migration)

    _name_optional_rights_alone(migration)
    _take_rights_away(migration)


def _name_optional_rights_alone(migration: SecureMigration) -> None:
    """Check that `doctor` and `plan` miss no needed right, and miss each optional right that brokers report."""
    for side in ("source", "target"):
        found = migration.cli("doctor").told[f"rights {side}"]
        optional = [g for g in OPTIONAL_GRANTS if g.side == side and g.resource != "TRANSACTIONAL_ID"]
        assert [each["ref"] for each in found] == ["right-optional"] * len(optional), found
        for finding, grant in zip(found, optional, strict=True):
            resource = "the cluster" if grant.resource == "CLUSTER" else f"topic {TOPIC}"
            assert f"User:kmigrate lacks {grant.operation} on {resource}" in finding["what"]
    sentences = migration.cli("plan", TOPIC).told["rights"]
    assert len(sentences) == len([g for g in OPTIONAL_GRANTS if g.resource != "TRANSACTIONAL_ID"]), sentences
    printed = migration.cli("plan", TOPIC, "--print-acls").told
    assert {(each["side"], each["resource"], each["operation"]) for each in printed["rights"]} == {
        (grant.side, grant.resource, grant.operation) for grant in (*GRANTS, *OPTIONAL_GRANTS)
    }


def _take_rights_away(migration: SecureMigration) -> None:
    """Check that each missing right is named at its resource, and that the copy continues once the right is back."""

    def names(ref: str) -> bool:
        return ref in json.dumps(migration.cli("status").told)

    _produce(migration.source, 500, 20)
    with _banned(migration.target, ResourceType.TOPIC, TOPIC, AclOperation.WRITE):
        _produce(migration.source, 520, 20)
        wait_until(lambda: names("target-denied"), 20, "the missing grant to be named")
        for said in (migration.cli("doctor").told["rights target"], migration.cli("plan", TOPIC).told["rights"]):
            assert f"User:kmigrate lacks WRITE on topic {TOPIC} of target; needed for" in json.dumps(said)
    with _banned(migration.source, ResourceType.TOPIC, TOPIC, AclOperation.READ):
        wait_until(lambda: names("source-denied"), 20, "the missing grant to be named")
        _produce(migration.source, 540, 20)
    _until_copied(migration)

    admin = AdminClient(dict(migration.source.client()))  # The client must live until the answer arrives.
    admin.create_topics([NewTopic("late", 1, 1)])["late"].result(30)
    with _banned(migration.target, ResourceType.TOPIC, "late", AclOperation.CREATE):
        assert migration.cli("topic", "mirror", "late", "--no-wait").code == 0
        wait_until(lambda: names("TOPIC_AUTHORIZATION_FAILED"), 20, "the refused creation to be named")
    told = migration.cli("topic", "mirror", "late", timeout=60)
    assert (told.code, [topic["phase"] for topic in told.told["topics"] if topic["topic"] == "late"]) == (
        0,
        ["mirroring"],
    )


def _banned(
    cluster: KafkaCluster, kind: ResourceType, name: str, operation: AclOperation
) -> AbstractContextManager[None]:
    pattern = ResourcePatternType.LITERAL
    return in_force(cluster, AclBinding(kind, name, pattern, "User:kmigrate", "*", operation, AclPermissionType.DENY))


def _rotate_a_password(migration: SecureMigration) -> None:
    """Change a password: the renewal of the session names the refused login.

    The new password in its file helps without a restart.
    """
    target, log = migration.target, migration.folder / "mirror.log"
    held = migration.password_file(target)
    old = held.read_text(encoding="utf-8")
    admin = AdminClient(dict(target.client()))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    try:
        change = UserScramCredentialUpsertion("kmigrate", info, b"rotated")
        admin.alter_user_scram_credentials([change])["kmigrate"].result(30)
        wait_until(lambda: '"error": "authentication-failed"' in log.read_text("utf-8"), 10, "the failed login")
        for verb in ("status", "doctor"):
            said = migration.cli(verb, timeout=20)
            assert (said.code, "authentication-failed" in json.dumps(said.told)) == (1, True), said
        _produce(migration.source, 400, 100)
        held.write_text("rotated", encoding="utf-8")
        _until_copied(migration)
        assert migration.engines["mirror"].poll() is None
        assert not [word for word in (old, "rotated") if word in log.read_text("utf-8")]
    finally:
        back = UserScramCredentialUpsertion("kmigrate", info, old.encode())
        admin.alter_user_scram_credentials([back])["kmigrate"].result(30)
        held.write_text(old, encoding="utf-8")


async def _promote_by_hand(pair: SecurePair) -> None:
    """Send the requests of group promote and topic promote to the clusters.

    Both promotes need a router, and this test has none.
    """
    source = Admin(pair.settings("source"))
    groups = await source.groups()
    assert [(each, groups[each]) for each in without_notes(groups)] == [("readers", "empty")]
    assert [state.members for state in (await source.describe_groups(["readers"])).values()] == [()]
    async with ClusterClient(pair.settings("source")) as old, ClusterClient(pair.settings("target")) as new:
        offsets = await read_positions(old, "readers")
        assert offsets

        async def fine() -> None: ...

        assert await write_positions(new, "readers", offsets, fine) == {}
        assert await read_positions(new, "readers") == offsets
        hold = GroupHold(old, "readers")
        assert await hold.take() == 0
        await hold.release()
    await Admin(pair.settings("target")).alter_topic_configs(TOPIC, {"retention.ms": "86400000"})


def _until_copied(migration: SecureMigration) -> None:
    deadline = time.monotonic() + 30
    while (wanted := _values(migration.source)) != (found := _values(migration.target)):
        assert time.monotonic() < deadline, (len(wanted), len(found))
    assert len(wanted) > 250


def _produce(cluster: KafkaCluster, first: int, count: int) -> None:
    producer = Producer({**cluster.client("producers", "SCRAM-SHA-256"), "transactional.id": f"t-{first}"})
    producer.init_transactions(30)
    for number in range(first, first + count):
        if number % 20 == 0:
            producer.begin_transaction()
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
        if number % 100 == 99:
            producer.abort_transaction(30)
        elif number % 20 == 19:
            producer.commit_transaction(30)


def _values(cluster: KafkaCluster) -> list[tuple[int, int, bytes]]:
    """Return every committed record, as a consumer with its own credentials gets them."""
    login = cluster.client("consumers", "SCRAM-SHA-512")
    consumer = Consumer({**login, "group.id": "readers", "enable.partition.eof": True, "enable.auto.commit": False})
    parts = [TopicPartition(TOPIC, p, consumer.get_watermark_offsets(TopicPartition(TOPIC, p), 10)[0]) for p in (0, 1)]
    consumer.assign(parts)
    found: list[tuple[int, int, bytes]] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 20
    while len(ended) < 2:
        assert time.monotonic() < deadline
        for message in consumer.consume(500, 0.2):
            if message.error():
                ended.add(message.partition())
            else:
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None and offset is not None and value is not None
                found.append((partition, offset, value))
    if cluster.spec.name == "source":
        consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()
    return sorted(found)
