"""The clients of a rehearsal: records are copied as they are, idle topics get records, and refusals are named."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.settings import ClusterSettings
from kmigrate.workflow.rehearsal import feed, reader
from kmigrate.workflow.rehearsal.contents import Content
from kmigrate.workflow.rehearsal.feed import Feed, Shadow
from kmigrate.workflow.rehearsal.reader import Reader
from tests.unit.workflow.rehearsal.test_contents import Record

WEST = ClusterSettings("west", (("127.0.0.1", 1),))
ROUTER = ClusterSettings("east", (("127.0.0.1", 2),))
REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
SHADOW = Shadow("t", "shadow-t", 2, compacted=False)


class Brokers:
    """The clusters behind the clients: records to read, and the records written, by address."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.written: dict[str, list[tuple[Any, ...]]] = {}
        self.refusal: Any = None
        self.stuck = threading.Event()
        self.subscribed: list[str] = []

    def consumer(self, config: dict[str, Any]) -> Any:
        return _Consumer(self, config)

    def producer(self, config: dict[str, Any]) -> Any:
        return _Producer(self, config["bootstrap.servers"])


class _Consumer:
    def __init__(self, brokers: Brokers, config: dict[str, Any]) -> None:
        self._brokers, self._config = brokers, config

    def assign(self, parts: Any) -> None:
        assert not self._config["enable.auto.commit"]

    def subscribe(self, topics: list[str]) -> None:
        self._brokers.subscribed.append(self._config["bootstrap.servers"])

    def consume(self, *_: Any) -> list[Record]:
        time.sleep(0.002)
        found, self._brokers.records = self._brokers.records, []
        return found

    def close(self) -> None:
        while self._brokers.stuck.is_set():
            time.sleep(0.01)


class _Producer:
    def __init__(self, brokers: Brokers, address: str) -> None:
        self._brokers, self._address, self._open = brokers, address, list[Callable[[], None]]()

    def produce(self, topic: str, value: Any, key: Any, partition: int, answered: Any, **more: Any) -> None:
        row = (topic, partition, key, value, more["timestamp"], more["headers"])
        self._brokers.written.setdefault(self._address, []).append(row)
        self._open.append(lambda: answered(self._brokers.refusal, None))

    def poll(self, _: float) -> None:
        self.flush(0)

    def flush(self, _: float) -> int:
        while self._brokers.stuck.is_set():
            time.sleep(0.01)
        answers, self._open = self._open, []
        for answer in answers:
            answer()
        return 0


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    made = Brokers()
    monkeypatch.setattr(feed, "Consumer", made.consumer)
    monkeypatch.setattr(feed, "Producer", made.producer)
    monkeypatch.setattr(reader, "Consumer", made.consumer)
    yield made
    made.stuck.clear()


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_record_keeps_all_that_it_has_and_goes_to_the_router_after_the_roll(brokers: Brokers) -> None:
    async def run() -> Feed:
        copier = Feed([SHADOW], WEST)
        copier.start()
        brokers.records = [Record(0, b"one", 11)]
        until(lambda: copier.copied("t") == 1)
        await copier.move(ROUTER, 5.0)
        brokers.records = [Record(1, b"two", 12)]
        until(lambda: copier.copied("t") == 2)
        await copier.stop()
        copier.check()
        return copier

    copier = asyncio.run(run())
    assert brokers.written["127.0.0.1:1"] == [("shadow-t", 0, b"k", b"one", 11, [("h", None)])]
    assert brokers.written["127.0.0.1:2"] == [("shadow-t", 0, b"k", b"two", 12, [("h", None)])]
    whole = Content()
    whole.add(b"k", b"one")
    whole.add(b"k", b"two")
    assert copier.acknowledged["shadow-t", 0].fingerprint == whole.fingerprint


def test_an_idle_topic_gets_records_in_each_partition(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_IDLE_S", 0.0)
    copier = Feed([SHADOW], WEST)
    copier.start()
    until(lambda: copier.synthetic("t") >= 4)
    asyncio.run(copier.stop())
    assert {row[1] for row in brokers.written["127.0.0.1:1"]} == {0, 1}
    assert copier.copied("t") == 0
    assert sum(each.records for each in copier.acknowledged.values()) == copier.synthetic("t")


@pytest.mark.parametrize("reading", [True, False])
def test_a_refused_client_of_the_feed_is_named(brokers: Brokers, *, reading: bool) -> None:
    copier = Feed([SHADOW], WEST)
    brokers.refusal = None if reading else REFUSED
    brokers.records = [Record(0, error=REFUSED if reading else None)]
    copier.start()
    asyncio.run(copier.stop())
    with pytest.raises(Failed, match="the feed of the shadow topics has failed") as refused:
        copier.check()
    assert refused.value.ref == "rehearsal-client-failed"


def test_clients_that_do_not_reach_the_routers_are_named(brokers: Brokers) -> None:
    async def run(client: Feed | Reader) -> str:
        client.start()
        until(lambda: client is not None and (isinstance(client, Feed) or brokers.subscribed))
        brokers.stuck.set()
        with pytest.raises(WaitTimedOut) as late:
            await client.move(ROUTER, 0.05)
        brokers.stuck.clear()
        await client.stop()
        return late.value.ref

    assert asyncio.run(run(Feed([SHADOW], WEST))) == "rehearsal-slow"
    assert asyncio.run(run(Reader("g", ["shadow-t"], WEST))) == "rehearsal-slow"


def test_a_member_counts_records_that_are_read_again_or_skipped_and_moves(brokers: Brokers) -> None:
    async def run() -> Reader:
        member = Reader("g", ["shadow-t"], WEST)
        member.start()
        brokers.records = [Record(5), Record(6), Record(6), Record(9)]
        until(lambda: member.records == 4)
        await member.move(ROUTER, 5.0)
        brokers.records = [Record(10)]
        until(lambda: member.records == 5)
        await member.stop()
        member.check()
        return member

    member = asyncio.run(run())
    assert (member.read_again, member.skipped) == (1, 2)
    assert brokers.subscribed == ["127.0.0.1:1", "127.0.0.1:2"]


def test_a_refused_member_is_named(brokers: Brokers) -> None:
    member = Reader("g", ["shadow-t"], WEST)
    brokers.records = [Record(0, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))]
    member.start()
    until(lambda: member._failure)
    asyncio.run(member.stop())
    with pytest.raises(Failed, match="the member of group g has failed"):
        member.check()
