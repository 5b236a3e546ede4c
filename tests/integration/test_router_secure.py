"""The router between clients that log in and two clusters that ask who they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.security import Permit
from tests.integration.router_world import Writer, link_between, quietly
from tests.integration.secure_router import SecureRouter, entry, secure_router, written
from tests.integration.secure_world import MOVER, SESSION_MS, SecurePair, token

Names = Callable[[str], str]


@pytest.fixture(scope="module")
def passing(pair: SecurePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRouter]:
    """A router that passes logins through; its table says as whom `producers` meets the source."""
    folder = tmp_path_factory.mktemp("passing")
    clients = entry("producers", pair.source, "producers")
    with secure_router(pair, folder, 'security_protocol = "SASL_SSL"', clients) as running:
        yield running


def made(pair: SecurePair, *topics: str) -> None:
    for cluster in (pair.source, pair.target):
        admin = AdminClient(cluster.client())
        for done in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            done.result(30)


def permit(cluster: KafkaCluster, user: str, topic: str, operation: str = "WRITE") -> None:
    admin = AdminClient(cluster.client())
    for done in admin.create_acls([Permit(user, "TOPIC", operation, topic).binding()]).values():
        done.result(30)


def stored(cluster: KafkaCluster, topic: str) -> list[bytes]:
    consumer = Consumer({**cluster.client(), "group.id": "stored", "enable.auto.commit": False})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        out: list[bytes] = []
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


def mirrored(pair: SecurePair, link: str, topics: list[str], act: Callable[[], None]) -> None:
    """Do something while writes to the topics go to the source."""

    async def scenario() -> None:
        async with link_between(pair.source, pair.target, link, pair.settings("target")) as world:
            for topic in topics:
                await world.put(topic, TopicPhase.MIRRORING, partitions=1)
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
    topic, foreign = unique_name("fwd"), unique_name("foreign")
    made(pair, topic, foreign)
    for user in ("producers", "mover"):
        permit(pair.source, user, topic)
    for name in (topic, foreign):
        permit(pair.target, "mover", name, "DESCRIBE")
        permit(pair.target, "producers", name, "DESCRIBE")
        permit(pair.target, "consumers", name, "WRITE")

    def act() -> None:
        assert written(passing.client("producers", "SCRAM-SHA-512"), topic, "by table") == [None]
        assert written(mover(passing), topic, "by password") == [None]
        assert written(bearer(passing, "mover"), topic, "by token") == [None]
        for config in (mover(passing), bearer(passing, "mover"), passing.client("consumers", "SCRAM-SHA-512")):
            (error,) = written(config, foreign, "x")
            assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        passing.said("cannot log in to the source as consumers")
        (error,) = written(passing.client("consumers", "PLAIN"), topic, "another password there")
        assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    mirrored(pair, unique_name("link"), [topic, foreign], act)
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
        ends = time.monotonic() + 3 * SESSION_MS / 1000
        with (
            Writer(passing.bootstrap, here, "w", {**mover(passing), "acks": "all"}, partitions=1) as one,
            Writer(passing.bootstrap, there, "w", {**bearer(passing, "mover")}, partitions=1) as two,
        ):
            writers.extend((one, two))
            while time.monotonic() < ends:
                time.sleep(0.1)

    mirrored(pair, unique_name("link"), [there], act)
    for writer, cluster, topic in zip(writers, (pair.target, pair.source), (here, there), strict=True):
        assert writer.errors == []
        assert stored(cluster, topic) == writer.sent[0]
