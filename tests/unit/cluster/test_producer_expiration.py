"""Brokers made to remember producers for long: an answer counts only from brokers with that setting."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.admin import ConfigValue
from kmigrate.cluster.client import PRODUCER_EXPIRATION
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION, lengthen_memory, producer_memory, short_memory
from kmigrate.errors import BrokerRefused, Failed, Unreachable
from kmigrate.protocol.codes import Code

A_DAY = ConfigValue("86400000", False)
RAISED = ConfigValue(RAISED_EXPIRATION, True)


@dataclass
class Cluster:
    """A cluster as the client and the admin client show the cluster."""

    shown: ConfigValue | Failed | None
    says: int | Failed = 0
    metadata: Any = field(default_factory=lambda: SimpleNamespace(brokers={1: ("h", 1)}))
    asked: list[bool] = field(default_factory=list)
    """Requests to raise the setting, each True if the request was a validation only."""

    async def broker_config(self, node: int, key: str) -> ConfigValue | None:
        assert (node, key) == (1, PRODUCER_EXPIRATION)
        if isinstance(self.shown, Failed):
            raise self.shown
        return self.shown

    async def set_broker_default(self, key: str, value: str | None, *, only_ask: bool = False) -> int:
        assert (key, value) == (PRODUCER_EXPIRATION, RAISED_EXPIRATION)
        self.asked.append(only_ask)
        if isinstance(self.says, Failed):
            raise self.says
        return self.says


async def raised(cluster: Any) -> str:
    return await lengthen_memory(cluster, await producer_memory(cluster, cluster))


def test_a_broker_that_knows_the_setting_is_made_to_remember() -> None:
    cluster = Cluster(A_DAY)
    assert asyncio.run(raised(cluster)) == ""
    assert cluster.asked == [False]


def test_what_is_raised_already_is_not_raised_again() -> None:
    cluster = Cluster(RAISED, says=Code.CLUSTER_AUTHORIZATION_FAILED)
    assert asyncio.run(raised(cluster)) == ""
    assert cluster.asked == []


@pytest.mark.parametrize("shown", [None, ConfigValue("", True)], ids=["never set", "set by an earlier start"])
def test_an_older_broker_that_takes_any_key_is_not_believed(shown: ConfigValue | None) -> None:
    cluster = Cluster(shown)
    assert asyncio.run(raised(cluster)) == "its brokers do not know producer.id.expiration.ms (Kafka before 3.4)"
    assert cluster.asked == []


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (
            Code.CLUSTER_AUTHORIZATION_FAILED,
            "it does not let producer.id.expiration.ms be raised: CLUSTER_AUTHORIZATION_FAILED (31)",
        ),
        (Unreachable("x", "connection lost"), "producer.id.expiration.ms could not be raised: connection lost"),
    ],
)
def test_a_cluster_that_does_not_let_it_be_raised_says_why(says: int | Failed, why: str) -> None:
    assert asyncio.run(raised(Cluster(A_DAY, says))) == why


def test_whether_it_may_be_raised_is_asked_without_raising_it() -> None:
    cluster: Any = Cluster(A_DAY, Code.CLUSTER_AUTHORIZATION_FAILED)
    assert "CLUSTER_AUTHORIZATION_FAILED" in asyncio.run(short_memory(cluster, cluster))
    assert cluster.asked == [True]
    hidden: Any = Cluster(BrokerRefused("x", "no right to describe"))
    assert asyncio.run(short_memory(hidden, hidden)) == "producer.id.expiration.ms cannot be read: no right to describe"
