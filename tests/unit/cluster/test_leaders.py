"""Tests of waits for a leader's answer, and of log ends according to all replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster import leaders
from kmigrate.cluster.client import LOG_END, ClusterClient, LogOffset
from kmigrate.cluster.health import BrokerHealth
from kmigrate.cluster.leaders import refuse_unwitnessed, while_it_leads, witnessed_ends
from kmigrate.cluster.metadata import Metadata, PartitionInfo
from kmigrate.errors import Refused, Unreachable
from kmigrate.protocol.codes import Code


class Cluster:
    """A cluster whose broker 1 leads t-0 and is silent; the other brokers name the leader, each in turn."""

    def __init__(self, *told: int | Unreachable) -> None:
        self._led = 1
        self.told = list(told)
        self.asked_while_silent: list[bool] = []
        self.metadata = Metadata("c", {1: ("a", 1), 2: ("b", 2)})
        self.health = BrokerHealth()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def leader(self, topic: str, partition: int) -> int:
        return self._led

    async def refresh(self, topics: list[str]) -> None:
        self.asked_while_silent.append("a:1" in self.health)
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
    monkeypatch.setattr(leaders, "_PATIENCE_S", 0.001)


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
        assert "a:1" not in cluster.health

    asyncio.run(scene())


def test_who_is_asked_before_a_leader_is_known_is_no_leader_that_moved() -> None:
    async def scene() -> None:
        cluster = Cluster(-1, 1, 1)
        cluster._led = -1
        assert await asked(cluster) == "slow"
        assert ":-1" not in cluster.health

    asyncio.run(scene())


KEY = ("t", 0)
END, FOLLOWS = LogOffset(0, 100, 3), LogOffset(0, 90, 3)
BEHIND, LATER, ELSEWHERE, NOT_HERE = (
    LogOffset(code, -1, -1)
    for code in (
        Code.UNKNOWN_LEADER_EPOCH,
        Code.FENCED_LEADER_EPOCH,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    )
)
UNPROVEN = LogOffset(Code.REPLICA_NOT_AVAILABLE, -1, -1)


@dataclass
class Brokers:
    """Brokers with scripted answers: None means that a broker is gone, no answer that the broker stands still."""

    says: dict[int, LogOffset | None]
    part: PartitionInfo = field(default_factory=lambda: PartitionInfo(1, 3, (1, 2, 3), (1, 2, 3)))
    heard: PartitionInfo | None = None
    """The partition's metadata at the next refresh."""
    alive: tuple[int, ...] = (1, 2, 3)
    told_of: list[int] = field(default_factory=list)
    """Brokers that were asked for a later leader."""
    settings: Any = field(default_factory=lambda: SimpleNamespace(name="source"))

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(partition=lambda *_: self.part, brokers=dict.fromkeys(self.alive))

    def leader(self, *_: Any) -> int:
        return self.part.leader

    async def refresh(self, topics: Any) -> None:
        assert topics == {"t"}
        self.part = self.heard or self.part

    async def topic_at(self, node: int, topic: str) -> None:
        self.told_of.append(node)

    async def list_offsets_at(
        self, node: int, wanted: Any, *, epochs: Mapping[tuple[str, int], int], replica_id: int
    ) -> dict[tuple[str, int], LogOffset]:
        assert (node in self.alive, replica_id, epochs) == (True, LOG_END, {KEY: 3})
        if node not in self.says:
            await asyncio.Event().wait()
        told = self.says[node]
        if told is None:
            raise Unreachable("connection-lost", f"broker {node} is gone")
        return {KEY: told}


def ends(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> LogOffset:
    monkeypatch.setattr(leaders, "_REPLICA_PATIENCE_S", 0.01)
    return asyncio.run(witnessed_ends(brokers, [KEY]))[KEY]  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [FOLLOWS, ELSEWHERE, BEHIND])
def test_an_end_is_believed_where_all_in_sync_know_of_no_later_leader(
    other: LogOffset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends(Brokers({1: END, 2: FOLLOWS, 3: other}), monkeypatch) == END


@pytest.mark.parametrize("in_sync", [(1, 2, 3), (1,)])
def test_one_replica_that_knows_of_a_later_leader_is_enough_to_doubt_it(
    in_sync: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers({1: END, 2: FOLLOWS, 3: LATER}, PartitionInfo(1, 3, (1, 2, 3), in_sync))
    assert ends(brokers, monkeypatch) == LATER
    assert brokers.told_of == [3]


@pytest.mark.parametrize("silent", [{3: None}, {}, {3: NOT_HERE}])
def test_nothing_is_proven_without_a_word_of_each_in_sync(
    silent: dict[int, LogOffset | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = Brokers({1: END, 2: FOLLOWS, **silent})
    assert ends(brokers, monkeypatch) == UNPROVEN
    with pytest.raises(Refused, match=r"in sync for t-0 \(1, 2, 3\), one did not answer"):
        refuse_unwitnessed(brokers, {KEY: UNPROVEN})  # type: ignore[arg-type]
    refuse_unwitnessed(brokers, {KEY: END})  # type: ignore[arg-type]


def test_one_in_sync_that_its_cluster_does_not_count_among_the_living_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert ends(Brokers({1: END, 2: FOLLOWS}, alive=(1, 2)), monkeypatch) == UNPROVEN


def test_one_that_has_been_taken_out_of_sync_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = PartitionInfo(1, 3, (1, 2, 3), (1, 2))
    assert ends(Brokers({1: END, 2: FOLLOWS}, heard=gone), monkeypatch) == END
    elected = PartitionInfo(2, 4, (1, 2, 3), (2,))
    assert ends(Brokers({1: END, 2: FOLLOWS}, heard=elected), monkeypatch) == UNPROVEN


def test_a_leader_that_knows_another_epoch_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers({1: LATER, 2: FOLLOWS, 3: FOLLOWS})
    assert ends(brokers, monkeypatch) == LATER
    assert brokers.told_of == [1]


def test_a_leader_that_does_not_answer_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable, match="broker 1 is gone"):
        ends(Brokers({1: None, 2: FOLLOWS, 3: FOLLOWS}), monkeypatch)


def test_a_partition_that_nobody_leads_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = PartitionInfo(-1, 3, (1, 2, 3), (1,))
    assert ends(Brokers({}, nobody), monkeypatch).error == Code.LEADER_NOT_AVAILABLE
