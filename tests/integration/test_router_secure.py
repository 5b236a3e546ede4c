"""The router between clients that log in and two clusters that demand logins."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.security import Permit
from tests.hostile.requests import request
from tests.integration.acl_bindings import exactly
from tests.integration.command_line import program
from tests.integration.java_clients import java_command
from tests.integration.migration import wait_until
from tests.integration.router_world import Writer, link_between, quietly
from tests.integration.secure_router import Calm, SecureRouter, entry, secure_router, written
from tests.integration.secure_world import MOVER, SESSION_MS, SecurePair, token
from tests.integration.test_router_rubbish import Wire, answers_as, unharmed

Names = Callable[[str], str]


@pytest.fixture(scope="module")
def passing(pair: SecurePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRouter]:
    """A router that passes logins through; its table holds the identity of `producers` at the source."""
    folder = tmp_path_factory.mktemp("passing")
    clients = entry("producers", pair.source, "producers")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients) as running:
        yield running


def made(pair: SecurePair, *topics: str) -> None:
    for cluster in (pair.source, pair.target):
        admin = AdminClient(dict(cluster.client()))
        for done in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            done.result(30)


def asked(router: SecureRouter, verb: str) -> Any:
    """Return the JSON document of a verb with the router's configuration."""
    config = router.log.with_name("kmigrate.toml")
    command = program("kmigrate", verb, "--config", str(config), "--json")
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False, timeout=150).stdout)


def without_credential(router: SecureRouter) -> list[dict[str, Any]]:
    return list(asked(router, "status")["without_credential"])


def permit(cluster: KafkaCluster, user: str, name: str, operation: str = "WRITE", resource: str = "TOPIC") -> None:
    admin, rule = AdminClient(dict(cluster.client())), Permit(user, resource, operation, name).binding()
    admin.create_acls([rule])[rule].result(30)
    wait_until(lambda: admin.describe_acls(exactly(rule)).result(30), 20, "the broker to know the rule")


def stored(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    consumer = Consumer({**cluster.client(), "group.id": "stored", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        out: list[bytes | None] = []
        deadline = time.monotonic() + 20
        while len(out) < end:
            assert time.monotonic() < deadline
            out += [m.value() for m in consumer.consume(500, 0.2) if m.error() is None]
        return out
    finally:
        consumer.close()


def bearer(router: SecureRouter, subject: str) -> dict[str, Any]:
    def fetch(_: str) -> tuple[str, float]:
        return token(subject, 600), time.time() + 600

    login = router.client("producers")
    for name in ("sasl.username", "sasl.password"):
        del login[name]
    return {**login, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": fetch}


def mover(router: SecureRouter) -> dict[str, Any]:
    return router.client("producers", "PLAIN") | {"sasl.username": "mover", "sasl.password": MOVER}


def mirrored(pair: SecurePair, link: str, topics: list[str], act: Callable[[], None], group: str = "") -> None:
    """Call `act` while writes to the topics go to the source, and the group follows."""

    async def scenario() -> None:
        async with link_between(pair.source, pair.target, link, pair.settings("target")) as world:
            for topic in topics:
                await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            if group:
                await world.put_group(group, GroupPhase.MIRRORED, GroupMode.FOLLOW)
            await world.routers_apply(1)
            await quietly(act)
            for topic in topics:
                await world.put(topic, TopicPhase.PROMOTED, partitions=1)

    asyncio.run(scenario())


def test_every_mechanism_is_passed_through_and_the_target_judges_the_client_itself(
    pair: SecurePair, passing: SecureRouter, unique_name: Names
) -> None:
    topic, secret = unique_name("own"), unique_name("secret")
    made(pair, topic, secret)
    for user in ("producers", "mover"):
        permit(pair.target, user, topic)
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert written(passing.client("producers", mechanism), topic, mechanism) == [None]
    assert written(bearer(passing, "producers"), topic, "token") == [None]
    assert written(mover(passing), topic, "mover") == [None]
    refused = written(mover(passing), secret, "x")
    assert [error.code() for error in refused if error] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert stored(pair.target, topic) == [b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"token", b"mover"]


def test_forwarded_writes_meet_the_source_as_the_client_and_nobody_else(
    pair: SecurePair, passing: SecureRouter, unique_name: Names
) -> None:
    topic, foreign, group = unique_name("fwd"), unique_name("foreign"), unique_name("group")
    made(pair, topic, foreign)
    users = ("producers", "mover", "consumers")
    for user in users:
        permit(pair.source, user, topic)
        for name in (topic, foreign):
            permit(pair.target, user, name, "DESCRIBE")
    for cluster in (pair.source, pair.target):
        permit(cluster, "consumers", group, "READ", "GROUP")

    def act() -> None:
        assert written(passing.client("producers", "SCRAM-SHA-512"), topic, "by table") == [None]
        assert written(mover(passing), topic, "by password") == [None]
        # No ACL lets `consumers` write at the target: its producer id comes by the router's own right.
        assert written(bearer(passing, "consumers") | {"enable.idempotence": True}, topic, "by token") == [None]
        for config in (mover(passing), bearer(passing, "mover"), passing.client("consumers", "SCRAM-SHA-512")):
            (error,) = written(config, foreign, "x")
            assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        passing.said("cannot log in to the source as consumers: the table of clients has no credential")
        consumer = Consumer({**passing.client("consumers", "SCRAM-SHA-512"), "group.id": group, "client.id": "reader"})
        consumer.subscribe([topic])
        try:
            wait_until(lambda: group in str(without_credential(passing)), 20, "the group among the refused")
        finally:
            consumer.close()
        told = without_credential(passing)
        assert [(each["principal"], each["writes"], each["groups"]) for each in told] == [("consumers", True, [group])]
        assert told[0]["lines"][0] == '[clients."consumers".clusters."source"]'
        (named,) = asked(passing, "doctor")["routers"]
        assert (named["ref"], told[0]["lines"][0] in named["next"]) == ("client-without-credential", True)
        logged = passing.log.read_text("utf-8")
        named_once = [logged.count(f"requests of {who} at 127.0.0.1 as consumers to") for who in ("rdkafka", "reader")]
        assert named_once == [1, 1]
        (error,) = written(passing.client("consumers", "PLAIN"), topic, "another password there")
        assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    mirrored(pair, unique_name("link"), [topic, foreign], act, group)
    assert stored(pair.source, topic) == [b"by table", b"by password", b"by token"]
    assert stored(pair.source, foreign) == []


def test_sessions_are_renewed_through_the_router_on_both_sides(
    pair: SecurePair, passing: SecureRouter, unique_name: Names
) -> None:
    """KIP-368: both clusters end sessions after a few seconds; neither kind of write notices."""
    here, there = unique_name("here"), unique_name("there")
    made(pair, here, there)
    for topic in (here, there):
        permit(pair.target, "mover", topic)
        permit(pair.source, "mover", topic)
    writers: list[Writer] = []

    def act() -> None:
        calm, also = Calm(), Calm()
        with (
            Writer(passing.bootstrap, here, "w", mover(passing) | calm.config, partitions=1) as one,
            Writer(passing.bootstrap, there, "w", bearer(passing, "mover") | also.config, partitions=1) as two,
        ):
            writers.extend((one, two))
            for each in (calm, also):
                each.lasts(2 * SESSION_MS / 1000)

    mirrored(pair, unique_name("link"), [there], act)
    for writer, cluster, topic in zip(writers, (pair.target, pair.source), (here, there), strict=True):
        assert writer.errors == []
        assert stored(cluster, topic) == writer.sent[0]


def test_java_writes_through_a_relayed_scram_login_longer_than_its_session(
    pair: SecurePair, passing: SecureRouter, unique_name: Names, tmp_path: Path
) -> None:
    topic = unique_name("java")
    made(pair, topic)
    for cluster in (pair.source, pair.target):
        permit(cluster, "producers", topic)
    login = passing.client("producers", "SCRAM-SHA-512")
    properties = tmp_path / "producer.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={login['ssl.ca.location']}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="producers" password="{login["sasl.password"]}";\n'
        f"bootstrap.servers={passing.bootstrap}\n",
        encoding="utf-8",
    )
    records = 2 * SESSION_MS // 10
    command = java_command(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--record-size", "100", "--throughput", "100", "--producer.config", str(properties),
    )  # fmt: skip
    told: list[subprocess.CompletedProcess[str]] = []

    def act() -> None:
        told.append(subprocess.run(command, capture_output=True, text=True, timeout=90, check=False))

    mirrored(pair, unique_name("link"), [topic], act)
    assert told[0].returncode == 0, told[0]
    assert len(stored(pair.source, topic)) == records


@pytest.mark.parametrize(
    ("mechanism", "sentence"),
    [
        ("PLAIN", "Invalid username or password"),
        ("SCRAM-SHA-512", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
    ],
)
def test_a_wrong_password_is_answered_in_the_brokers_own_words(
    passing: SecureRouter, mechanism: str, sentence: str
) -> None:
    assert sentence in refusal(passing.client("producers", mechanism) | {"sasl.password": "wrong"})
    assert "wrong" not in passing.log.read_text("utf-8")


def refusal(config: dict[str, Any]) -> str:
    """Return the error of a login that fails."""
    heard: list[KafkaError] = []
    producer = Producer({**config, "error_cb": heard.append})
    deadline = time.monotonic() + 20
    while not any(error.code() == KafkaError._AUTHENTICATION for error in heard):
        assert time.monotonic() < deadline, heard
        producer.poll(0.1)
    return next(error.str() for error in heard if error.code() == KafkaError._AUTHENTICATION)


def test_a_mapped_client_needs_no_credential_of_either_cluster_and_outlives_its_sessions_there(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    """A source that accepts only tokens, as Amazon MSK does, is covered, too:

    a stub of a provider prints the tokens.
    """
    here, there = unique_name("here"), unique_name("there")
    made(pair, here, there)
    permit(pair.target, "producers", here)
    permit(pair.target, "producers", there, "DESCRIBE")
    permit(pair.source, "mover", there)
    held = tmp_path / "token"
    held.write_text(token("mover", 600), encoding="utf-8")
    clients = entry("app", pair.target, "producers", password="app-secret") + (
        '[clients.app.clusters.source]\n"sasl.mechanism" = "OAUTHBEARER"\n'
        f'"sasl.oauthbearer.token.command" = "cat {held}"\n'
    )
    # The source's own section names SCRAM: a client's credential there is the client's alone.
    section = 'security_protocol = "SASL_SSL"\nlogin = "mapped"'
    with secure_router(pair, tmp_path / "mapped", section, clients) as running:

        def config(mechanism: str, password: str = "app-secret") -> dict[str, Any]:
            own = {"sasl.username": "app", "sasl.password": password}
            return running.client("producers", mechanism) | own

        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            assert "Invalid username or password" in refusal(config(mechanism, "wrong"))
        assert written(config("PLAIN"), here, "plain") == [None]

        def act() -> None:
            calm, also = Calm(), Calm()
            with (
                Writer(running.bootstrap, here, "h", config("SCRAM-SHA-256") | calm.config, partitions=1) as one,
                Writer(running.bootstrap, there, "t", config("SCRAM-SHA-512") | also.config, partitions=1) as two,
            ):
                for each in (calm, also):
                    each.lasts(2 * SESSION_MS / 1000)
            assert one.errors == two.errors == []
            assert stored(pair.target, here) == [b"plain", *one.sent[0]]
            assert stored(pair.source, there) == two.sent[0]

        mirrored(pair, unique_name("link"), [there], act)
        assert "app-secret" not in running.log.read_text("utf-8")


def test_a_client_is_known_by_its_certificate_alone(pair: SecurePair, tmp_path: Path, unique_name: Names) -> None:
    here, there = unique_name("here"), unique_name("there")
    made(pair, here, there)
    permit(pair.target, "producers", here)
    permit(pair.target, "producers", there, "DESCRIBE")
    permit(pair.source, "producers", there)
    clients = entry("orders", pair.target, "producers", certificate="CN=orders")
    clients += entry("orders", pair.source, "producers")
    section = f'security_protocol = "SSL"\nclient_ca = "{pair.target.security.ca_file}"'
    with secure_router(pair, tmp_path / "certificates", section, clients) as running:

        def config(name: str) -> dict[str, Any]:
            certificate, key = pair.target.security.issue(name)
            base = {"security.protocol": "SSL", "ssl.ca.location": str(pair.target.security.ca_file)}
            own = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
            return {**running.client(""), **base, **(own if name else {})}

        assert written(config("orders"), here, "known") == [None]
        mirrored(pair, unique_name("link"), [there], lambda: _known(config("orders"), there))
        stranger = config("stranger")
        nobody = {key: value for key, value in stranger.items() if "certificate" not in key and ".key." not in key}
        for unknown in (stranger, nobody):
            with pytest.raises(KafkaException):
                AdminClient(unknown).list_topics(timeout=1)
        running.said("no client of the table has 'CN=stranger'")
    assert stored(pair.target, here) == [b"known"]
    assert stored(pair.source, there) == [b"forwarded"]


def _known(config: dict[str, Any], topic: str) -> None:
    assert written(config, topic, "forwarded") == [None]


METADATA = struct.pack(">ihhihi", 14, 3, 4, 1, -1, -1)
INSIDE = {
    "a request before the login": METADATA,
    "a request longer than a login": struct.pack(">ihhi", 600_000, 36, 2, 1) + b"x" * 1000,
    "a login without its handshake": struct.pack(">ihhihii", 17, 36, 0, 1, -1, 3, 0)[:21],
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "nothing for too long": b"",
    "half a request for too long": METADATA[:9],
}
OUTSIDE = {
    "plaintext": METADATA,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "half a TLS hello": b"\x16\x03\x01\x02\x00\x01",
    "nothing": b"",
}


def test_nonsense_before_a_login_ends_its_own_connection_and_nobody_elses(
    pair: SecurePair, tmp_path: Path, unique_name: Names
) -> None:
    topic = unique_name("calm")
    made(pair, topic)
    permit(pair.target, "mover", topic)
    section = 'security_protocol = "SASL_SSL"\nlogin_timeout_ms = 2500'
    with secure_router(pair, tmp_path / "rubbish", section) as running:
        context = ssl.create_default_context(cafile=str(pair.target.security.ca_file))

        def end_of(address: str, junk: bytes, *, inside: bool) -> bytes:
            """Return all bytes that arrive until the router closes; fail if the router does not close."""
            host, port = address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=20) as plain:
                connection = context.wrap_socket(plain, server_hostname=host) if inside else plain
                try:
                    connection.sendall(junk)
                    heard = b""
                    while more := connection.recv(1000):
                        heard += more
                    return heard
                except (ConnectionError, ssl.SSLEOFError):
                    return heard
                finally:
                    connection.close()

        with unharmed(running, topic, login=mover(running), partitions=1), ThreadPoolExecutor(20) as threads:
            ended = []
            for address in (running.bootstrap, broker_listener(running)):
                ended += [threads.submit(end_of, address, junk, inside=True) for junk in INSIDE.values()]
                ended += [threads.submit(end_of, address, junk, inside=False) for junk in OUTSIDE.values()]
            for each in ended:
                each.result()
        assert "Traceback" not in running.log.read_text("utf-8")


def broker_listener(running: SecureRouter) -> str:
    """Return the router's listener for the target's only broker, as librdkafka gets it."""
    broker = AdminClient(mover(running)).list_topics(timeout=10).brokers[1_000_001]
    return f"{broker.host}:{broker.port}"


def test_rubbish_after_a_login_is_answered_as_the_target_does_or_ends_its_own_connection(
    pair: SecurePair, passing: SecureRouter, unique_name: Names
) -> None:
    topic = unique_name("calm")
    made(pair, topic)
    permit(pair.target, "mover", topic)
    context = ssl.create_default_context(cafile=str(pair.target.security.ca_file))

    def logged_in(address: str) -> Wire:
        wire = Wire(address)
        wire.socket = context.wrap_socket(wire.socket, server_hostname=address.rsplit(":", 1)[0])
        wire.send(request(17, 1, struct.pack(">h", 5) + b"PLAIN"))
        assert wire.answer()[4:6] == b"\0\0"
        words = f"\0mover\0{MOVER}".encode()
        wire.send(request(36, 0, struct.pack(">i", len(words)) + words))
        assert wire.answer()[4:6] == b"\0\0"
        return wire

    with unharmed(passing, topic, login=mover(passing), partitions=1):
        answers_as(pair.target.bootstrap, (passing.bootstrap, broker_listener(passing)), logged_in)
    assert "Traceback" not in passing.log.read_text("utf-8")


def connections_to(process: int, ports: set[int]) -> int:
    """Return the number of connections that a process has to these ports of this machine."""
    inodes = set()
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            inodes.add(str(file.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    return sum(int(row[2].rpartition(":")[2], 16) in ports and row[9] in inodes for row in rows)


def test_connections_that_do_not_log_in_keep_nobody_out_and_reach_no_broker(
    pair: SecurePair, unique_name: Names, tmp_path: Path
) -> None:
    topic, bound = unique_name("crowd"), 4
    made(pair, topic)
    permit(pair.target, "producers", topic)
    section = f'security_protocol = "SASL_SSL"\nmax_connections = 6\nmax_connections_before_login = {bound}\n'
    brokers = {int(each.rpartition(":")[2]) for each in pair.target.bootstrap.split(",")}
    trusting = ssl.create_default_context(cafile=str(pair.target.security.ca_file))
    with secure_router(pair, tmp_path / "crowded", section) as running, ExitStack() as stack:
        host, port = running.bootstrap.rsplit(":", 1)
        before = connections_to(running.process.pid, brokers)
        answered = 0
        for _ in range(4 * bound):
            plain = socket.create_connection((host, int(port)), timeout=10)
            come = stack.enter_context(trusting.wrap_socket(plain, server_hostname=host))
            come.sendall(request(18, 0, b""))
            answered += bool(come.recv(4))
        assert answered == 4 * bound
        assert connections_to(running.process.pid, brokers) == before
        assert written(running.client("producers"), topic, "let in") == [None]
    assert stored(pair.target, topic) == [b"let in"]
