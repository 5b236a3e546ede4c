"""Tests of the addresses that brokers advertise."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster import advertised
from kmigrate.cluster.advertised import advertised_faults, refuse_unreachable_brokers
from kmigrate.errors import Unreachable


class Brokers:
    """Three brokers: the first is reached, the second has an unknown name, the third never answers."""

    settings = SimpleNamespace(name="source")
    metadata = SimpleNamespace(brokers={1: ("one", 9092), 2: ("nowhere", 9093), 3: ("silent", 9094)})

    async def connection(self, node: int) -> None:
        if node == 2:
            raise Unreachable("broker-unreachable", "no connection to nowhere:9093: Name or service not known")
        if node == 3:
            await asyncio.sleep(60)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertised, "_CONNECT_S", 0.1)


def test_each_broker_that_is_not_reached_is_named_with_the_address_that_the_broker_advertises() -> None:
    brokers: Any = Brokers()
    second, third = asyncio.run(advertised_faults(brokers))
    assert "broker 2 of cluster source advertises nowhere:9093" in second.text
    assert "Name or service not known" in second.text
    assert "advertised.listeners of broker 2" in second.next_step
    assert (third.node, third.address) == (3, "silent:9094")
    with pytest.raises(Unreachable, match="advertised-unreachable"):
        asyncio.run(refuse_unreachable_brokers(brokers))
