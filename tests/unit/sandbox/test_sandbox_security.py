"""A secure sandbox's secrets: made anew each time, readable to their owner alone, on every listener."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import Access, Launch, ProducerSpec
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.security import CLIENT_USERS, USERS, SandboxSecurity, permits, router_section


def test_every_cluster_has_an_authority_and_passwords_of_its_own(tmp_path: Path) -> None:
    one, two = (SandboxSecurity.create(tmp_path / name) for name in ("one", "two"))
    for user in USERS:
        assert one.access(user).librdkafka()["sasl.password"] != two.access(user).librdkafka()["sasl.password"]
    assert one.ca_file.read_bytes() != two.ca_file.read_bytes()
    for secret in [*one.folder.glob("*.password"), *one.folder.glob("*.key"), one.folder / "broker.keystore.pem"]:
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600, secret
    assert stat.S_IMODE(one.folder.stat().st_mode) == 0o700


def test_no_listener_of_a_secure_broker_is_open_to_all(tmp_path: Path) -> None:
    security = SandboxSecurity.create(tmp_path / "s")
    for controller_port in (1002, None):  # with KRaft, with a ZooKeeper
        properties = security.broker_properties(1001, controller_port)
        listeners = properties["listeners"].split(",")
        assert "SASL_SSL://127.0.0.1:1001" in listeners and len(listeners) == 1 + (controller_port is not None)
        assert "PLAINTEXT" not in properties["listener.security.protocol.map"]
        assert properties["super.users"] == "User:broker;User:admin"
        assert properties["authorizer.class.name"].endswith(
            "StandardAuthorizer" if controller_port else "AclAuthorizer"
        )
    assert security.access("kmigrate").librdkafka()["sasl.password"] not in security.access("kmigrate").toml()


def test_no_client_may_write_to_the_target_before_the_migration_lets_it() -> None:
    assert {permit.user for permit in permits("target") if permit.resource == "TOPIC"} == {"kmigrate"}
    assert {permit.user for permit in permits("source")} == {"kmigrate", "producers", "consumers"}
    assert not [
        p
        for p in permits("source")
        if p.user == "kmigrate" and p.operation not in ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
    ]


def test_a_secure_cluster_is_one_for_other_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "libs").mkdir(parents=True)
    (home / "libs" / f"kafka-clients-{TARGET_VERSION}.jar").touch()
    monkeypatch.setenv("KMIGRATE_KAFKA_HOME", str(home))
    made = KafkaCluster.create(ClusterSpec("target", TARGET_VERSION, 3, secure=True), tmp_path)
    assert stat.S_IMODE(made.brokers[2].properties.stat().st_mode) == 0o600
    seen = KafkaCluster.from_json(made.as_json())
    assert seen.client("kmigrate") == made.client("kmigrate")
    assert seen.client()["sasl.username"] == "admin"


def test_a_client_is_told_where_its_password_is_not_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("s3cret", encoding="utf-8")
    access = Access("producers", str(tmp_path / "p"), str(tmp_path / "ca.pem"))
    launch = Launch(ProducerSpec("shop", "librdkafka", "orders", 1.0), "h:1", 1, 0, "h.jsonl", access=access)
    assert "s3cret" not in launch.to_json()
    again = Launch.from_json(launch.to_json())
    assert again == launch
    assert again.librdkafka["sasl.password"] == "s3cret"


def test_a_machine_without_openssl_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Failed, match="openssl-missing"):
        SandboxSecurity.create(tmp_path / "s")


def test_the_table_of_a_secure_sandbox_has_each_user_of_the_live_clients(tmp_path: Path) -> None:
    """A user without an entry could neither write to the source nor join a group that follows."""
    source, target = (SandboxSecurity.create(tmp_path / side) for side in ("source", "target"))
    section = tomllib.loads(router_section(source, target))
    table = Path(section["credentials"])
    clients = tomllib.loads(table.read_text("utf-8"))["clients"]
    assert clients.keys() == set(CLIENT_USERS.values())
    assert {entry["clusters"]["source"]["sasl.username"] for entry in clients.values()} == clients.keys()
    assert stat.S_IMODE(table.stat().st_mode) == 0o600
