"""A topic in alignment, while clients at a router read an empty topic of the same name on the target."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import MirrorPresence
from kmigrate.model.records import TopicRecord
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.mirror_world import (
    advance,
    assert_identical,
    bounds,
    cut,
    engine_running,
    link_between,
    produce,
)
from tests.integration.router_world import router
from tests.integration.test_upkeep import add_partitions

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


@dataclass
class Poller:
    """Run a librdkafka consumer that polls in another thread while the block lasts."""

    bootstrap: str
    topic: str
    partitions: int
    config: dict[str, Any] = field(default_factory=dict)
    read: dict[int, list[tuple[int, bytes | None]]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _polled: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Poller:
        base = {"bootstrap.servers": self.bootstrap, "group.id": f"poller-{self.topic}", "enable.auto.commit": False}
        self._consumer = Consumer({**base, "auto.offset.reset": "earliest", **self.config}, logger=None)
        self._consumer.assign([TopicPartition(self.topic, p, 0) for p in range(self.partitions)])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if time.monotonic() > began + 2:
                self._polled.set()
            if message is not None and message.error() is None:
                self.read.setdefault(message.partition() or 0, []).append((message.offset() or 0, message.value()))
        self._consumer.close()

    def polls(self) -> None:
        """Wait until the consumer has fetched for a while."""
        assert self._polled.wait(10)

    def has_read(self, count: int) -> None:
        deadline = time.monotonic() + 40
        while sum(map(len, self.read.values())) < count:
            assert time.monotonic() < deadline, {p: len(of) for p, of in self.read.items()}
            time.sleep(0.02)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)


def _begin_late(source: KafkaCluster, topic: str, starts: dict[int, int]) -> None:
    """Have new partitions begin at these offsets, and write 300 records to each of the topic's two partitions."""
    advance(source.bootstrap, topic, starts)
    cut(source.bootstrap, topic, starts)
    produce(source.bootstrap, topic, 600, partitions=2)


@pytest.mark.parametrize(("start", "recreate"), [(1_000, False), (200_000, True)], ids=["adopted", "made-anew"])
def test_a_reader_of_an_empty_target_topic_is_given_no_filler(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, start: int, recreate: bool
) -> None:
    topic = unique_name("adopted")
    make_topic(source, topic, partitions=2)
    _begin_late(source, topic, {0: start, 1: start})
    make_topic(target, topic, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running, Poller(running.bootstrap, topic, 2) as poller:
                await asyncio.to_thread(poller.polls)
                async with engine_running(world):
                    asked = TopicRecord(world.link, topic, TopicPhase.INITIALISING, 1, recreate=recreate)
                    await world.log.append(lambda _: asked)
                    await world.in_phase(topic, TopicPhase.MIRRORING)
                    await asyncio.to_thread(poller.has_read, 600)
                    await asyncio.sleep(0.5)
            assert poller.read.keys() == {0, 1}
            for read in poller.read.values():
                assert [offset for offset, _ in read] == list(range(start, start + 300))
                assert None not in [value for _, value in read]

    asyncio.run(scene())


def test_a_reader_of_a_partition_that_was_added_late_is_given_no_filler(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The source deleted the beginning of a new partition before a mirror saw the partition."""
    topic = unique_name("grown")
    make_topic(source, topic, partitions=1)
    produce(source.bootstrap, topic, 20)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                async with engine_running(world):
                    await world.mirror(topic)
                    await world.in_phase(topic, TopicPhase.MIRRORING)
                add_partitions(source.bootstrap, topic, 2)
                await asyncio.to_thread(_begin_late, source, topic, {1: 500})
                with Poller(running.bootstrap, topic, 2) as poller:
                    await asyncio.to_thread(poller.polls)
                    async with engine_running(world):
                        await asyncio.to_thread(poller.has_read, 20 + 600)
                assert [offset for offset, _ in poller.read[1]] == list(range(500, 800))
                assert None not in [value for _, value in poller.read[1]]
                assert bounds(target.bootstrap, topic)[1] == (500, 800)

    asyncio.run(scene())


def test_the_copys_log_start_follows_the_sources(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("followed")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 2_000, partitions=2)
    quick = MirrorSettings(lease_s=1.5, presence_ms=200, follow_s=0.3)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world, settings=quick):
            await world.copied(topic)
            await asyncio.to_thread(cut, source.bootstrap, topic, {0: 700})
            await world.caught_up(topic)  # Both bounds equal the source's.
            produce(source.bootstrap, topic, 200, partitions=2)
            await world.caught_up(topic)
            found = assert_identical(world, topic)
            assert (found[0][0][0], found[1][0][0]) == (700, 0)
            presence = world.log.alive(MirrorPresence)
            assert not any(word.problems for word in presence), "nobody takes it for a foreign deletion"

    asyncio.run(scene())
