"""A login that lacks a right on the state log gets the name of that right, and no advice to remove the topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kmigrate.cli.commands.probes import probe_cluster
from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import BrokerRefused, KmigrateError, Refused, Unreachable
from kmigrate.model.presences import ControllerPresence
from kmigrate.model.records import LeaseRecord
from kmigrate.model.security import Login, Security
from kmigrate.model.settings import ClusterSettings
from kmigrate.sandbox.security import Permit
from kmigrate.state.log import StateLog
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC, ensure_map_topic, ensure_state_log
from tests.integration.acl_bindings import in_force
from tests.integration.migration import wait_until
from tests.integration.secure_world import STRANGER, SecurePair

WITHOUT_RIGHTS = "stranger"
"""A user of the target without any right there."""


@pytest.fixture
def login(pair: SecurePair) -> ClusterSettings:
    """Return the login without rights, on a target whose state log has records in both topics."""

    async def make() -> None:
        ours = pair.settings("target")
        with Admin(ours) as admin:
            async with ClusterClient(ours) as client:
                await ensure_state_log(client, admin)
                await ensure_map_topic(client, admin)
                async with StateLog(client) as log:
                    await log.append(lambda known: None if known.lease("w") else LeaseRecord("w", "nobody", 1))
                    await log.announce(ControllerPresence("nobody", 1, False, 500, {}))

    asyncio.run(make())
    ours = pair.settings("target")
    return replace(ours, security=Security(ours.security.tls, Login("PLAIN", WITHOUT_RIGHTS, STRANGER)))


def allowed(pair: SecurePair, operation: str, topics: Sequence[str]) -> AbstractContextManager[None]:
    """Grant a right on some topics to the login, for the time of a with block."""
    return in_force(pair.target, *(Permit(WITHOUT_RIGHTS, "TOPIC", operation, topic).binding() for topic in topics))


async def _opened(settings: ClusterSettings) -> None:
    async with ClusterClient(settings) as client, StateLog(client):
        pass


async def _written(settings: ClusterSettings) -> None:
    async with ClusterClient(settings) as client, StateLog(client) as log:
        await log.append(lambda _: LeaseRecord("nobody", "nobody", 1))


async def _announced(settings: ClusterSettings) -> None:
    async with ClusterClient(settings) as client, StateLog(client) as log:
        await log.announce(ControllerPresence("nobody", 1, False, 500, {}))


async def _ensured(settings: ClusterSettings) -> None:
    with Admin(settings) as admin:
        async with ClusterClient(settings) as client:
            await ensure_state_log(client, admin)


async def _maps_ensured(settings: ClusterSettings) -> None:
    with Admin(settings) as admin:
        async with ClusterClient(settings) as client:
            await ensure_map_topic(client, admin)


def refusal(act: Any, settings: ClusterSettings) -> KmigrateError:
    """Return the error of an act, which comes soon and advises to remove nothing."""
    began = time.monotonic()
    with pytest.raises(KmigrateError) as caught:
        asyncio.run(act(settings))
    assert time.monotonic() - began < 15
    assert "remove" not in str(caught.value)
    assert "delete" not in str(caught.value)
    return caught.value


def assert_names(error: KmigrateError, operation: str, topic: str) -> None:
    assert f"refused {operation} on topic {topic} to User:{WITHOUT_RIGHTS}" in error.what
    assert f"allow User:{WITHOUT_RIGHTS} {operation} on topic {topic}" in error.next_step


def test_a_login_without_a_right_on_the_state_log_is_told_the_right(pair: SecurePair, login: ClusterSettings) -> None:
    both = [STATE_TOPIC, PRESENCE_TOPIC]
    for act in (_opened, _ensured):
        error = refusal(act, login)
        assert isinstance(error, BrokerRefused)
        assert_names(error, "DESCRIBE", STATE_TOPIC)
    for readable, unreadable in (both, both[::-1]):
        with allowed(pair, "DESCRIBE", both), allowed(pair, "READ", [readable]):
            assert_names(refusal(_opened, login), "READ", unreadable)
    with allowed(pair, "READ", both):
        asyncio.run(_opened(login))
        assert_names(refusal(_written, login), "WRITE", STATE_TOPIC)
        said = refusal(_announced, login)
        assert isinstance(said, Unreachable)
        assert_names(said, "WRITE", PRESENCE_TOPIC)
        assert_names(refusal(_ensured, login), "DESCRIBE_CONFIGS", STATE_TOPIC)
    assert_names(refusal(_maps_ensured, login), "DESCRIBE", "__kmigrate_offset_maps")


def test_doctor_names_the_right_and_calls_no_topic_bad(login: ClusterSettings) -> None:
    (told,) = [each for each in asyncio.run(probe_cluster(login)) if "only a target needs this right" in each.what]
    assert (told.level, told.ref) == ("warn", "access-denied")
    assert f"allow User:{WITHOUT_RIGHTS} DESCRIBE on topic {STATE_TOPIC}" in told.next_step


def test_a_state_topic_that_cannot_be_used_is_deleted_only_while_it_is_empty(own_cluster: Any, make_topic: Any) -> None:
    """A topic with two partitions is no state log, but its records may still be state."""
    cluster = own_cluster()
    make_topic(cluster, STATE_TOPIC, partitions=2, config={"cleanup.policy": "compact"})
    address = cluster.bootstrap.rsplit(":", 1)
    conf = ClusterSettings("target", ((address[0], int(address[1])),))
    ends = {TopicPartition(STATE_TOPIC, each): OffsetSpec.latest() for each in (0, 1)}  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def told() -> bool:
        with suppress(KafkaException):
            return [each.result(30).offset for each in admin.list_offsets(ends).values()] == [0, 0]
        return False

    wait_until(told, 30, "both partitions to have a leader, so that the log ends can be told")
    for act in (_opened, _ensured):
        with pytest.raises(Refused, match="bad-state-topic") as caught:
            asyncio.run(act(conf))
        assert f"delete the empty topic {STATE_TOPIC}" in caught.value.next_step
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(STATE_TOPIC, b"{}", b"link/l", partition=1)
    assert producer.flush(30) == 0
    for act in (_opened, _ensured):
        error = refusal(act, conf)
        assert "2 partitions" in error.what
        assert "holds records" in error.still_true
        assert f"keep topic {STATE_TOPIC}" in error.next_step
