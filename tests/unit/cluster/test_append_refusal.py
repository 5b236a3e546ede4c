"""Leaders that refuse every append, found with a batch that no leader can store; only a leader's refusal counts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.cluster.append_refusal import Takes, asked_to_append
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.hot import PRODUCE_VERSION
from kmigrate.records.batch import check_crc, walk
from kmigrate.router.wire.produce import PartitionAnswer, encode_answer


@dataclass
class Brokers:
    """Brokers of which node p % 2 leads partition p and answers with the test's error; node −1 is no node."""

    errors: dict[int, int]
    leaders: dict[int, int] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    settings: Any = field(default_factory=lambda: ClusterSettings("source", (), request_timeout_s=5.0))

    def leader(self, topic: str, partition: int) -> int:
        return self.leaders.get(partition, partition % 2)

    async def connection(self, node: int, purpose: str) -> Any:
        self.asked.append(node)

        async def call_raw(_: int, version: int, body: list[Any], **__: Any) -> bytearray:
            assert version == PRODUCE_VERSION
            self.batches += [bytes(part) for part in body[2::2]]
            mine = [p for p in self.errors if self.leader("t", p) == node]
            told = [PartitionAnswer("t", p, self.errors[p], -1) for p in mine]
            return bytearray(encode_answer(told, version=version, correlation=1))

        return SimpleNamespace(call_raw=call_raw)


def told(brokers: Brokers) -> dict[int, Takes]:
    return asyncio.run(asked_to_append(brokers, "t", sorted(brokers.errors)))  # type: ignore[arg-type]


def test_each_leader_is_asked_once_and_speaks_for_its_own_partitions() -> None:
    brokers = Brokers({0: 10, 1: 2, 2: 10})
    assert told(brokers) == {0: Takes.NOTHING, 1: Takes.WRITES, 2: Takes.NOTHING}
    assert sorted(brokers.asked) == [0, 1]


def test_no_broker_can_store_what_it_is_asked_with() -> None:
    brokers = Brokers({0: 10})
    told(brokers)
    batches = [batch for data in brokers.batches for batch in walk(memoryview(data))]
    assert batches
    assert not any(check_crc(batch.view) for batch in batches)


@pytest.mark.parametrize("error", [6, 3, 56])
def test_a_leader_that_is_none_any_more_says_nothing(error: int) -> None:
    with pytest.raises(Unreachable):
        told(Brokers({0: error}))


def test_a_partition_without_a_leader_says_nothing() -> None:
    with pytest.raises(Unreachable, match="t-0 has no leader"):
        told(Brokers({0: 10}, {0: -1}))


@pytest.mark.parametrize("error", [0, 29, 87])
def test_another_answer_than_the_two_is_no_proof(error: int) -> None:
    with pytest.raises(BrokerRefused) as caught:
        told(Brokers({0: error}))
    assert "WRITE" in caught.value.next_step
