"""Logins to real brokers: each mechanism works, each failure has its name, and no error shows a secret."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import AuthenticationFailed, KmigrateError, Unreachable
from kmigrate.model.security import Bearer, Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.estate import SandboxEstate
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from tests.integration.secure_world import SESSION_MS, SecurePair, reached, token, without_notes
from tests.integration.test_cli_sandbox import Shell


async def _ask(settings: ClusterSettings) -> str:
    async with ClusterClient(settings) as client:
        return (await client.refresh([])).cluster_id


def _cluster_id(settings: ClusterSettings) -> str:
    return asyncio.run(_ask(settings))


def _groups(settings: ClusterSettings) -> set[str]:
    return set(without_notes(asyncio.run(Admin(settings).groups())))


def _failure(settings: ClusterSettings, secret: str = "") -> KmigrateError:
    started = time.monotonic()
    with pytest.raises(KmigrateError) as caught:
        _cluster_id(settings)
    assert time.monotonic() - started < 8, "a failed login must be told at once"
    assert not secret or secret not in f"{caught.value} {caught.value.__cause__} {settings!r}"
    # An error about unreadable credentials names the file or the command instead.
    assert settings.name in caught.value.what or caught.value.ref == "credentials-unreadable"
    return caught.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_name_and_password_log_in_wire_client_and_admin_client_alike(pair: SecurePair, mechanism: str) -> None:
    for side in ("source", "target"):
        settings = pair.settings(side, mechanism=mechanism)
        assert _cluster_id(settings) == getattr(pair, side).cluster_id
        assert _groups(settings) <= {"readers"}  # Another test makes the group `readers`.


@pytest.mark.parametrize("source", ["file", "command"])
def test_a_bearers_token_logs_in_wire_client_and_admin_client_alike(
    pair: SecurePair, tmp_path: Path, source: str
) -> None:
    held = tmp_path / "token"
    held.write_text(token("kmigrate") + "\n", encoding="utf-8")
    command = (sys.executable, "-c", f"print(open({str(held)!r}).read())")
    bearer = Bearer(str(held)) if source == "file" else Bearer(token_command=command)
    settings = reached("target", pair.target.bootstrap, Security(Tls(str(pair.target.security.ca_file)), bearer))
    assert _cluster_id(settings) == pair.target.cluster_id
    assert _groups(settings) <= {"readers"}


def test_a_client_certificate_logs_in_where_the_broker_demands_one(pair: SecurePair) -> None:
    certificate, key = pair.target.security.issue("kmigrate")
    mutual = Tls(str(pair.target.security.ca_file), str(certificate), str(key))
    settings = reached("target", f"127.0.0.1:{pair.certificate_ports['target']}", Security(mutual))
    assert _cluster_id(settings) == pair.target.cluster_id

    without = _failure(dataclasses.replace(settings, security=Security(Tls(mutual.ca_file))))
    assert (type(without), without.ref) == (AuthenticationFailed, "tls-refused")
    assert "certificate" in without.next_step

    stranger, strangers_key = pair.source.security.issue("kmigrate")
    foreign = Security(Tls(mutual.ca_file, str(stranger), str(strangers_key)))
    assert _failure(dataclasses.replace(settings, security=foreign)).ref == "tls-refused"

    expired, expired_key = pair.target.security.issue("expired", days=-1)
    old = Security(Tls(mutual.ca_file, str(expired), str(expired_key)))
    assert _failure(dataclasses.replace(settings, security=old)).ref == "tls-refused"


def test_a_client_certificate_that_has_expired_is_named_and_the_renewed_one_serves_without_a_restart(
    pair: SecurePair,
) -> None:
    """The wire client and the admin client keep running, as a mirror's clients do for months."""
    security = pair.target.security
    certificate, key = security.issue("renewed", days=-1)
    mutual = Tls(str(security.ca_file), str(certificate), str(key))
    settings = reached("target", f"127.0.0.1:{pair.certificate_ports['target']}", Security(mutual))

    async def run() -> None:
        async with ClusterClient(settings) as client:
            with Admin(dataclasses.replace(settings, request_timeout_s=2.0)) as admin:
                with pytest.raises(AuthenticationFailed, match="tls-refused"):
                    await client.refresh([])
                with pytest.raises(AuthenticationFailed, match="not logged in"):
                    await admin.groups()
                security.issue("renewed")
                await asyncio.sleep(1)  # Clients retry no refused login earlier.
                assert (await client.refresh([])).cluster_id == pair.target.cluster_id
                await admin.groups()

    asyncio.run(run())


def test_a_session_is_renewed_before_it_ends_while_requests_flow(pair: SecurePair, tmp_path: Path) -> None:
    """KIP-368: a broker closes a connection that is used beyond its session; ours stays open, with the newest token."""
    held = tmp_path / "token"
    held.write_text(token("kmigrate", 600), encoding="utf-8")
    tls = Tls(str(pair.target.security.ca_file))
    settings = reached("target", pair.target.bootstrap, Security(tls, Bearer(str(held))))

    async def run() -> None:
        async with ClusterClient(settings) as client, ClusterClient(pair.settings("source")) as other:
            first, theirs = await client.bootstrap(), await other.bootstrap()
            for moment in range(3 * SESSION_MS // 40):
                if moment == 50:
                    held.write_text(token("kmigrate", 600), encoding="utf-8")
                await asyncio.wait([asyncio.create_task(c.refresh([])) for c in (client, other) for _ in range(3)])
                await asyncio.sleep(0.02)
            assert await client.bootstrap() is first
            assert await other.bootstrap() is theirs
            assert not first.lost
            assert not theirs.lost
            # The next renewal finds and names a token that is no longer accepted.
            held.write_text(token("kmigrate", -60), encoding="utf-8")
            with pytest.raises(AuthenticationFailed, match="authentication-failed"):
                await ask_for_ever(client)

    async def ask_for_ever(client: ClusterClient) -> None:
        while True:
            await client.refresh([])
            await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(), 25))


def test_a_password_that_is_changed_in_its_file_serves_the_next_login(pair: SecurePair, tmp_path: Path) -> None:
    right = pair.settings("target").security.sasl
    assert isinstance(right, Login)
    held = tmp_path / "password"
    held.write_text("not this", encoding="utf-8")
    tls = Tls(str(pair.target.security.ca_file))
    login = dataclasses.replace(right, password_file=str(held))
    settings = reached("target", pair.target.bootstrap, Security(tls, login))
    admin = Admin(dataclasses.replace(settings, request_timeout_s=2.0))

    async def run() -> None:
        async with ClusterClient(settings) as client:
            with pytest.raises(AuthenticationFailed):
                await client.refresh([])
            with pytest.raises(AuthenticationFailed, match="not logged in"):
                await admin.groups()
            with pytest.raises(AuthenticationFailed):
                await client.refresh([])
            held.write_text(Path(right.password_file).read_text(encoding="utf-8"), encoding="utf-8")
            # Clients do not retry within a second, because accounts get locked.
            with pytest.raises(AuthenticationFailed):
                await client.refresh([])
            await asyncio.sleep(1)
            await client.refresh([])
            await admin.groups()

    asyncio.run(run())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_named_and_never_shown(pair: SecurePair, mechanism: str) -> None:
    tls = Tls(str(pair.target.security.ca_file))
    login = Login(mechanism, "kmigrate", "w0rd-of-mouth")
    failure = _failure(reached("target", pair.target.bootstrap, Security(tls, login)), "w0rd-of-mouth")
    assert (type(failure), failure.ref, failure.exit_code) == (AuthenticationFailed, "authentication-failed", 1)
    assert "sasl.password" in failure.next_step


def test_a_token_that_has_expired_is_named_and_never_shown(pair: SecurePair, tmp_path: Path) -> None:
    held = tmp_path / "token"
    held.write_text(token("kmigrate", -60), encoding="utf-8")
    security = Security(Tls(str(pair.target.security.ca_file)), Bearer(str(held)))
    failure = _failure(reached("target", pair.target.bootstrap, security), held.read_text(encoding="utf-8"))
    assert failure.ref == "authentication-failed"
    gone = Security(security.tls, Bearer(str(tmp_path / "gone")))
    assert _failure(reached("target", pair.target.bootstrap, gone)).ref == "credentials-unreadable"
    loud = Security(security.tls, Bearer(token_command=("sh", "-c", "echo s3cret >&2; exit 3")))
    failure = _failure(reached("target", pair.target.bootstrap, loud), "s3cret")
    assert "exit code 3" in failure.what


def test_every_mismatch_of_protocol_mechanism_or_certificate_has_its_name(
    pair: SecurePair, own_cluster: Callable[..., KafkaCluster]
) -> None:
    source = own_cluster(version=SOURCE_VERSION)
    target, ca = pair.target.bootstrap, str(pair.target.security.ca_file)
    login = pair.settings("target").security.sasl
    assert isinstance(login, Login)
    other_name = f"127.1:{target.split(':')[1]}"  # The name leads to the same address, and no certificate has the name.
    cases = {
        "unknown-authority": reached("target", target, Security(Tls(str(pair.source.security.ca_file)), login)),
        "wrong-host-name": reached("target", other_name, Security(Tls(ca), login)),
        "tls-wanted": reached("target", target, Security()),
        "sasl-not-offered": reached("plain", source.bootstrap, Security(None, login)),
    }
    for ref, settings in cases.items():
        failure = _failure(settings)
        assert (failure.ref, type(failure)) == (ref, AuthenticationFailed), failure
    # A listener that closes gives no reason: the error names the observation, and the sentence names the likely reason.
    tls_to_plain = _failure(reached("plain", source.bootstrap, Security(Tls(ca), login)))
    assert isinstance(tls_to_plain, Unreachable)
    assert "may be a plaintext listener" in tls_to_plain.what


def test_a_mechanism_that_the_broker_does_not_offer_is_named_with_those_it_offers(pair: SecurePair) -> None:
    access = pair.source.security.access("kmigrate")
    controller = f"127.0.0.1:{pair.source.brokers[1].controller_port}"  # The controller offers only PLAIN.
    login = Login("SCRAM-SHA-512", "kmigrate", "", access.password_file)
    failure = _failure(reached("source", controller, Security(Tls(access.ca_file), login)))
    assert failure.ref == "sasl-mechanism-refused"
    assert "it offers PLAIN" in failure.what


def test_a_secure_sandbox_is_reached_by_the_configuration_it_writes_and_by_nobody_else(tmp_path: Path) -> None:
    kmigrate = Shell(tmp_path)
    kmigrate.environment.pop("KMIGRATE_CONFIG")
    up = kmigrate("sandbox", "up", "--secure")
    kmigrate.environment["KMIGRATE_CONFIG"] = "build/sandbox/kmigrate.toml"
    written = (tmp_path / "build/sandbox/kmigrate.toml").read_text(encoding="utf-8")
    secrets = Path(written.split('"ssl.ca.location" = "')[1].split('"')[0]).parent
    try:
        assert (secrets / "kmigrate.password").read_text(encoding="utf-8") not in written
        assert kmigrate("link", "list", code=3)["error"] == "no-state-log"  # This error shows that the login succeeded.
        routed = kmigrate.run_engines()["bootstrap"]
        target = SandboxEstate.load(tmp_path / "build/sandbox").target
        login = {**target.security.access("producers").librdkafka(), "bootstrap.servers": routed}
        seen = AdminClient(login).list_topics(timeout=10)
        assert (seen.cluster_id, list(seen.brokers)) == (target.cluster_id, [1_000_001])  # type: ignore[comparison-overlap]
        kmigrate.stop_engines()
        kmigrate.environment["KMIGRATE_CONFIG"] = "open.toml"
        (tmp_path / "open.toml").write_text(written.split("[router]")[0], encoding="utf-8")
        assert kmigrate("router", "run", "--target", "target", code=3)["error"] == "router-not-secure"
        stranger = AdminClient({"bootstrap.servers": up["clusters"][0]["bootstrap"], "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=1)
    finally:
        if kmigrate.engines is not None and kmigrate.engines.poll() is None:
            kmigrate.stop_engines()
        kmigrate.environment["KMIGRATE_CONFIG"] = "build/sandbox/kmigrate.toml"
        kmigrate("sandbox", "down")
    assert not secrets.exists()
