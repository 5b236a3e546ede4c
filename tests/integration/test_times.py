"""Look-ups by time at a router, in a copy with control markers, are answered as at the source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as Spec

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import PartitionBarrier
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.mirror_world import (
    bounds,
    cut,
    engine_running,
    link_between,
    produce,
    produce_at,
    read_all,
    transactions,
)
from tests.integration.router_world import router

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def looked_up(bootstrap: str, topic: str, times: Iterable[int]) -> list[int]:
    """What librdkafka's `offsets_for_times` says of partition 0, one time after the other; −1: no such record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks-up"})
    try:
        return [consumer.offsets_for_times([TopicPartition(topic, 0, at)], 10)[0].offset for at in times]
    finally:
        consumer.close()


def largest(bootstrap: str, topic: str) -> tuple[int, int]:
    """Offset and time of the record with the largest time, as librdkafka's admin client is told."""
    asked = {TopicPartition(topic, 0): Spec.max_timestamp()}  # type: ignore[no-untyped-call]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (told,) = [future.result(10) for future in admin.list_offsets(asked).values()]
    return told.offset, told.timestamp


def test_times_are_looked_up_as_at_the_source_before_and_after_the_promote(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, began = unique_name("times"), int(time.time() * 1000)
    make_topic(source, topic)
    for number in range(5):
        transactions(source.bootstrap, topic, 3, name=topic, first=3 * number)
        produce(source.bootstrap, topic, 20, age_ms=300 if number == 3 else 0)  # not in order
        time.sleep(0.3)
    now = int(time.time() * 1000)
    times = [1, *range(began, now + 200, (now - began) // 30)]
    wanted = looked_up(source.bootstrap, topic, times)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                async with engine_running(world):
                    await world.mirror(topic)
                    await world.in_phase(topic, TopicPhase.MIRRORING)
                    await world.caught_up(topic)
                ends = bounds(source.bootstrap, topic)[0][1]
                at_target = await asyncio.to_thread(looked_up, target.bootstrap, topic, times)
                assert at_target != wanted, "the target's own answers name the first marker"
                assert all(0 <= early <= right for early, right in zip(at_target, wanted, strict=True) if right >= 0)
                assert await asyncio.to_thread(looked_up, running.bootstrap, topic, times) == wanted
                assert await asyncio.to_thread(largest, running.bootstrap, topic) == largest(source.bootstrap, topic)

                barrier = {0: PartitionBarrier(ends, 0)}
                await world.change(topic, lambda was: replace(was, phase=TopicPhase.PROMOTED, barrier=barrier))
                epoch = world.log.state.epoch
                await world.log.wait(
                    lambda _: [p for p in world.log.alive(RouterPresence) if p.applied >= epoch] or None, 15, "a router"
                )
                assert await asyncio.to_thread(looked_up, running.bootstrap, topic, times) == wanted
                produce_at(target.bootstrap, topic, [now + 60_000, now + 90_000])
                beyond = [at if at >= 0 else ends for at in wanted]
                assert await asyncio.to_thread(looked_up, running.bootstrap, topic, times) == beyond

                # The source deletes its beginning: what it cannot know any more, the target tells by itself, too early
                # rather than too late.
                cut(source.bootstrap, topic, {0: 60})
                told = await asyncio.to_thread(looked_up, running.bootstrap, topic, times)
                assert all(early <= right for early, right in zip(told, beyond, strict=True))
                assert told[0] == read_all(target.bootstrap, topic)[0][0][0] == 0

    asyncio.run(scene())
