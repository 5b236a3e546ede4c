"""Look-ups by time at a router, in a copy with control markers, are answered as at the source."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as Spec

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import PartitionBarrier
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.workflow.base.control_markers import CopyTimes, copy_times
from tests.integration.mirror_world import (
    bounds,
    cut,
    engine_running,
    link_between,
    produce,
    produce_at,
    read_all,
    settings_of,
    transactions,
)
from tests.integration.router_world import router

DAY = 86_400_000
Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def looked_up(bootstrap: str, topic: str, times: Iterable[int], partition: int = 0) -> list[int]:
    """Return librdkafka's `offsets_for_times` of a partition for each time; −1: no such record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks-up"})
    try:
        return [consumer.offsets_for_times([TopicPartition(topic, partition, at)], 10)[0].offset for at in times]
    finally:
        consumer.close()


def largest(bootstrap: str, topic: str) -> tuple[int, int]:
    """Return offset and time of the record with the largest time, as librdkafka's admin client gets them."""
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
        produce(source.bootstrap, topic, 20, age_ms=300 if number == 3 else 0)  # The times are not in order.
        time.sleep(0.3)
    now = int(time.time() * 1000)
    times = [1, *range(began, now + 200, (now - began) // 30)]
    wanted = looked_up(source.bootstrap, topic, times)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                async with engine_running(world):
                    await world.copied(topic)
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
                assert await asyncio.to_thread(largest, running.bootstrap, topic) == largest(source.bootstrap, topic)
                produce_at(target.bootstrap, topic, [now + 60_000, now + 90_000])
                beyond = [at if at >= 0 else ends for at in wanted]
                assert await asyncio.to_thread(looked_up, running.bootstrap, topic, times) == beyond

                # The source deletes the log's beginning. For times without a record at the source the target answers,
                # too early rather than too late.
                cut(source.bootstrap, topic, {0: 60})
                told = await asyncio.to_thread(looked_up, running.bootstrap, topic, times)
                assert all(early <= right for early, right in zip(told, beyond, strict=True))
                assert told[0] == read_all(target.bootstrap, topic)[0][0][0] == 0

    asyncio.run(scene())


def test_a_copy_says_which_look_ups_are_early_at_the_target_and_how_long_the_copy_is_kept(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, plain = unique_name("figures"), unique_name("plain")
    make_topic(source, topic, partitions=2, config={"retention.ms": str(7 * DAY)})
    make_topic(source, plain)
    oldest = int(time.time() * 1000) - 5 * DAY
    produce_at(source.bootstrap, topic, [oldest, oldest + 1000])
    produce_at(source.bootstrap, plain, [oldest])
    transactions(source.bootstrap, topic, 3, name=topic)
    produce(source.bootstrap, topic, 10, age_ms=1000)
    ends = {p: end for p, (_, end) in bounds(source.bootstrap, topic).items()}

    async def scene() -> list[CopyTimes]:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for name in (topic, plain):
                await world.copied(name)
            barrier = {p: PartitionBarrier(end, 0) for p, end in ends.items()}
            await world.change(topic, lambda was: replace(was, phase=TopicPhase.PROMOTED, barrier=barrier))
            link = world.log.state.link(world.link)
            assert link is not None
            ours = settings_of("target", target.bootstrap)
            async with ClusterClient(ours) as client:
                found = await copy_times(client, Admin(ours), link, world.log.state.topics(world.link))
            assert found is not None
            return found

    [told] = asyncio.run(scene())
    assert (told.topic, told.oldest_ms, told.retention_ms) == (topic, oldest, 7 * DAY)
    early, late = told.began_ms - 1, told.marked_ms + 1
    firsts = {p: looked_up(target.bootstrap, topic, [early], p)[0] for p in ends}
    assert told.read_again == sum(end - firsts[p] for p, end in ends.items() if firsts[p] >= 0) > 10
    assert looked_up(source.bootstrap, topic, [early]) == [-1]  # The source has no record of these times.
    assert looked_up(target.bootstrap, topic, [told.marked_ms, late])[1] == -1
    assert told.kept_until_ms == told.marked_ms + 7 * DAY and told.longer_ms == told.marked_ms - oldest


def test_fillers_do_not_make_the_copy_younger_than_its_records(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("fillers")
    make_topic(source, topic)
    produce_at(source.bootstrap, topic, [int(time.time() * 1000) - 3 * DAY + n for n in range(30)])
    cut(source.bootstrap, topic, {0: 20})

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.copied(topic)

    asyncio.run(scene())
    assert bounds(target.bootstrap, topic) == {0: (20, 30)}
    assert largest(target.bootstrap, topic) == largest(source.bootstrap, topic)
