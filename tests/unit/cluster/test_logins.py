"""A broker that refuses our login is left alone and delays no other; a wrong login is not tried at each broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kmigrate.cluster import logins as module
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import AuthenticationFailed
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from tests.unit.cluster.test_silent_brokers import _Broker, _Cluster, at


class _Estate(_Cluster):
    """Three brokers, some of which refuse our login, and a clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing: set[str] = set()
        self.tried: list[str] = []
        self.now = 100.0

    async def open(self, host: str, port: int, **_: Any) -> _Broker:
        address = f"{host}:{port}"
        self.tried.append(address)
        if address in self.refusing:
            raise AuthenticationFailed("authentication-failed", f"{address} does not know us")
        return await super().open(host, port)

    def tried_anew(self) -> list[str]:
        told, self.tried = self.tried, []
        return told


@pytest.fixture
def estate(monkeypatch: pytest.MonkeyPatch) -> _Estate:
    made = _Estate()
    monkeypatch.setattr(BrokerConnection, "open", made.open)
    monkeypatch.setattr(module, "monotonic", lambda: made.now)
    return made


def client() -> ClusterClient:
    made = ClusterClient(ClusterSettings("c", tuple(("127.0.0.1", node) for node in (1, 2, 3))))
    made.layout.known = Metadata("c", {node: ("127.0.0.1", node) for node in (1, 2, 3)})
    return made


async def accepted(client: ClusterClient, node: int, purpose: str = "read") -> bool:
    try:
        await client.connection(node, purpose)
    except AuthenticationFailed:
        return False
    return True


def test_a_broker_that_refuses_us_holds_up_none_that_has_accepted_us(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            assert await accepted(ours, 2)
            estate.refusing = {at(1)}
            assert not await accepted(ours, 1)
            assert await accepted(ours, 2, "write")
            estate.tried_anew()
            for _ in range(9):
                assert not await accepted(ours, 1)
                estate.now += 0.11
            assert not estate.tried_anew(), "nor is it asked again within a second"
            estate.now += 0.11
            estate.refusing.clear()
            assert await accepted(ours, 1)

    asyncio.run(scene())


def test_others_come_to_their_turn_however_often_one_is_asked_that_refuses_us(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1)}
            taken = set()
            for _ in range(25):
                for node in (1, 1, 2, 3):
                    if await accepted(ours, node):
                        taken.add(node)
                estate.now += 0.1
            assert taken == {2, 3}
            assert estate.tried.count(at(1)) == 3

    asyncio.run(scene())


def test_a_login_that_is_wrong_everywhere_is_tried_little_more_than_once_a_second(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1), at(2), at(3)}
            for _ in range(100):
                for node in (1, 2, 3):
                    assert not await accepted(ours, node)
                estate.now += 0.1
            assert 10 <= len(estate.tried) <= 14

    asyncio.run(scene())


def test_one_that_no_longer_counts_is_tried_at_each_broker_that_took_it_once(estate: _Estate) -> None:
    async def scene() -> None:
        async with client() as ours:
            for node in (1, 2, 3):
                assert await accepted(ours, node)
            estate.refusing = {at(1), at(2), at(3)}
            estate.tried_anew()
            for _ in range(10):
                for node in (1, 2, 3):
                    assert not await accepted(ours, node, "write")
                estate.now += 0.07
            assert sorted(estate.tried) == [at(1), at(2), at(3)]

    asyncio.run(scene())


def test_the_layout_is_asked_of_a_broker_that_accepts_us(estate: _Estate) -> None:
    """Each refresh of the metadata used to fail as long as the first broker refused our login."""

    async def scene() -> None:
        async with client() as ours:
            estate.refusing = {at(1)}
            with pytest.raises(AuthenticationFailed):
                await ours.refresh([])
            assert estate.tried_anew() == [at(1)], "a wrong password is told at once"
            with pytest.raises(AuthenticationFailed):
                await ours.refresh([])
            assert not estate.tried_anew()
            estate.now += 0.8
            await ours.refresh([])
            assert estate.tried_anew() == [at(2)]

    asyncio.run(scene())
