"""Tests of reads of a log's tail while others append, and of leaders that refuse every append."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmigrate.cluster import append
from kmigrate.cluster.append import Takes, ask_to_append, read_tail, settled_end
from kmigrate.cluster.client import ClusterClient, LogOffset, ProducerState
from kmigrate.errors import BrokerRefused, Unreachable
from kmigrate.model.settings import ClusterSettings
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import PRODUCE_VERSION, FetchedPartition, FetchPartition
from kmigrate.records.batch import check_crc, stamp, walk
from kmigrate.router.wire.produce import PartitionAnswer, encode_answer
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched


def written(
    base: int, count: int, *, producer: int = 77, producer_epoch: int, sequence: int = -1, marker: bool = False
) -> bytes:
    """Return a batch or a control marker as it stands on a log."""
    data = bytearray(
        batch(base, count, producer=producer, sequence=sequence, attributes=CONTROL | TRANSACTIONAL if marker else 0)
    )
    stamp(memoryview(data), producer_id=producer, epoch=producer_epoch, sequence=sequence, base_offset=None)
    return bytes(data)


class Growing:
    """A log that was empty at the request for its end, and to which somebody appends without a pause."""

    def __init__(self) -> None:
        self.end = 0
        self.asked = 0

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked += 1
        assert self.asked < 100, "it asks for ever"
        end, self.end = self.end, self.end + 1
        return LogOffset(0, end, 0)

    async def log_start(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, 0, 0)

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, ()


class WrittenOnce(Growing):
    """A log that was found empty, and in which another copier's first batch then arrives."""

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        self.asked += 1
        return LogOffset(0, 0 if self.asked == 1 else 3, 0)

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, (ProducerState(77, 0, 2, 0, -1),)


def test_a_first_batch_that_comes_between_two_questions_is_not_taken_for_control_records() -> None:
    """The slower of two copiers started at the same time used to stop its partition as diverged."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", WrittenOnce()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"


def test_a_log_that_grows_while_it_seemed_empty_is_looked_at_anew() -> None:
    """The writer used to stay unnamed: the partition waited in silence until the writer paused."""
    with pytest.raises(Unreachable) as told:
        asyncio.run(read_tail(cast("ClusterClient", Growing()), "t", 0, 77))
    assert told.value.ref == "unsettled-log"


class Written(Growing):
    """A log of batches and markers that stays as it is."""

    def __init__(self, *batches: bytes, state: tuple[ProducerState, ...] = ()) -> None:
        super().__init__()
        self.data, self.state = b"".join(batches), state
        self.end = max((each.next_offset for each in walk(memoryview(bytearray(self.data)))), default=0)

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        return LogOffset(0, self.end, 0)

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def producers(self, key: tuple[str, int]) -> tuple[int, tuple[ProducerState, ...]]:
        return 0, self.state


@pytest.mark.parametrize(
    ("log", "sequence", "epoch"),
    [
        ((written(0, 3, sequence=4, producer_epoch=2), written(3, 1, producer_epoch=2, marker=True)), 7, 2),
        ((written(0, 3, sequence=4, producer_epoch=2), written(3, 1, producer_epoch=3, marker=True)), 0, 3),
        (
            (
                written(0, 1, producer_epoch=3, marker=True),
                written(1, 2, sequence=0, producer_epoch=3),
                written(3, 1, producer=9, producer_epoch=8, marker=True),
            ),
            2,
            3,
        ),
    ],
    ids=["marker-of-the-epoch", "marker-of-a-raised-epoch", "marker-of-another-id"],
)
def test_behind_a_marker_of_a_raised_epoch_the_next_sequence_is_0(
    monkeypatch: pytest.MonkeyPatch, log: tuple[bytes, ...], sequence: int, epoch: int
) -> None:
    it = Written(*log)

    async def fetch(client: object, node: int, part: FetchPartition, **_: object) -> FetchedPartition:
        return fetched(it.data)

    monkeypatch.setattr(append, "fetch_one", fetch)
    tail = asyncio.run(read_tail(cast("ClusterClient", it), "t", 0, 77))
    assert (tail.sequence, tail.epoch, tail.end) == (sequence, epoch, it.end)


def test_a_log_with_markers_alone_has_the_epoch_of_the_brokers_state(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Written(written(0, 1, producer_epoch=3, marker=True), state=(ProducerState(77, 3, -1, 0, -1, 5),))

    async def fetch(*_: object, **__: object) -> FetchedPartition:
        return fetched(it.data)

    monkeypatch.setattr(append, "fetch_one", fetch)
    tail = asyncio.run(read_tail(cast("ClusterClient", it), "t", 0, 77))
    assert (tail.sequence, tail.epoch, tail.data_end, tail.end) == (0, 3, 0, 1)


class Replicating:
    """A log with a scripted end and high watermark for each look; the last values stay, and time passes by sleeping."""

    def __init__(self, *looks: tuple[int, int]) -> None:
        self.looks = list(looks)
        self.now = 0.0

    async def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], LogOffset]:
        mark = self.looks[0][1]
        return dict.fromkeys(wanted, LogOffset(0 if mark >= 0 else Code.OFFSET_NOT_AVAILABLE, mark, 0))

    async def log_end(self, key: tuple[str, int]) -> LogOffset:
        end, _ = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return LogOffset(0, end, 0)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def rested(monkeypatch: pytest.MonkeyPatch, log: Replicating, patience_s: float = 30.0) -> int:
    monkeypatch.setattr(append, "sleep", log.sleep)
    monkeypatch.setattr(append, "monotonic", lambda: log.now)
    return asyncio.run(settled_end(cast("ClusterClient", log), "t", 0, 1.0, patience_s, replicated=True))


def test_a_log_end_is_believed_once_all_replicas_have_had_it_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then a broker works on a request of ours, and another request may wait behind that request."""
    log = Replicating(*[(5, 4)] * 20, *[(5, -1)] * 3, *[(5, 5)] * 3, (6, 6))
    assert rested(monkeypatch, log) == 6
    assert log.now >= 0.25 * 26 + 1.0


def test_a_log_end_that_replicas_do_not_have_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreachable) as told:
        rested(monkeypatch, Replicating((5, 4)))
    assert told.value.ref == "unsettled-log"


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
    return asyncio.run(ask_to_append(brokers, "t", sorted(brokers.errors)))  # type: ignore[arg-type]


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
