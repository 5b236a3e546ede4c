"""A request that waits for a leader's answer hears of the next leader, and still gets a slow leader's answer."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kmigrate.cluster import leader_request
from kmigrate.cluster.broker_health import BrokerHealth
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.leader_request import while_it_leads
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import Unreachable


class Cluster:
    """A cluster whose broker 1 leads t-0 and is silent; the other brokers name the leader, each in turn."""

    def __init__(self, *told: int | Unreachable) -> None:
        self._led = 1
        self.told = list(told)
        self.asked_while_silent: list[bool] = []
        self.metadata = Metadata("c", {1: ("a", 1), 2: ("b", 2)})
        self.silence = BrokerHealth()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def leader(self, topic: str, partition: int) -> int:
        return self._led

    async def refresh(self, topics: list[str]) -> None:
        self.asked_while_silent.append("a:1" in self.silence)
        told = self.told.pop(0)
        if not self.told and not isinstance(told, Unreachable):
            self.answer.set_result("slow")
        if isinstance(told, Unreachable):
            raise told
        self._led = told


async def asked(cluster: Cluster) -> str:
    async def asking() -> str:
        return await cluster.answer

    return await while_it_leads(cast("ClusterClient", cluster), "t", 0, asking())


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_request, "_PATIENCE_S", 0.001)


def test_a_silent_leader_is_waited_for_until_another_leads() -> None:
    async def scene() -> None:
        cluster = Cluster(1, Unreachable("no-answer", "of anybody"), -1, 2, 2)
        with pytest.raises(Unreachable) as caught:
            await asked(cluster)
        assert caught.value.ref == "leader-moved"
        assert cluster.told == [2]
        assert all(cluster.asked_while_silent), "else it would be asked itself, first of all"
        assert cluster.answer.cancelled(), "nobody waits for it any more"

    asyncio.run(scene())


def test_an_answer_of_who_leads_still_counts_however_slow_it_is() -> None:
    async def scene() -> None:
        cluster = Cluster(1, 1, 1)
        assert await asked(cluster) == "slow"
        assert "a:1" not in cluster.silence

    asyncio.run(scene())


def test_who_is_asked_before_a_leader_is_known_is_no_leader_that_moved() -> None:
    async def scene() -> None:
        cluster = Cluster(-1, 1, 1)
        cluster._led = -1
        assert await asked(cluster) == "slow"
        assert ":-1" not in cluster.silence

    asyncio.run(scene())
