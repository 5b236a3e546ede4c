"""After a promote the mirror keeps the source identical, until somebody else writes there, or the topic is rolled back.

The tests write the records of a flip and of a rollback themselves: these tests are about the mirror alone.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PartitionBarrier, TopicRecord, WayBack
from kmigrate.model.sharing import assigned
from kmigrate.model.state import State
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.mirror_world import (
    World,
    all_the_time,
    assert_identical,
    bounds,
    link_between,
    mirror_process,
    produce,
    read_all,
    transactions,
)

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
PARTITIONS = 4
NAMED_WITHIN_S = 5.0


def barrier(cluster: KafkaCluster, topic: str) -> dict[int, PartitionBarrier]:
    return {p: PartitionBarrier(end, -1) for p, (_, end) in bounds(cluster.bootstrap, topic).items()}


def offsets(barriers: Mapping[int, PartitionBarrier]) -> dict[int, int]:
    return {p: each.offset for p, each in barriers.items()}


async def promoted(world: World, topic: str) -> None:
    """Flip the topic, whose logs are identical, and open its way back."""
    at = await asyncio.to_thread(barrier, world.source, topic)

    def flip(record: TopicRecord) -> TopicRecord:
        way_back = WayBack(starts=offsets(at))
        return replace(record, phase=TopicPhase.PROMOTED, barrier=at, way_back=way_back, promoted_ms=1)

    await world.change(topic, flip)


async def rolled_back(world: World, topic: str) -> None:
    """Flip the topic, whose logs are identical, back to the source."""
    at = await asyncio.to_thread(barrier, world.target, topic)

    def flip(record: TopicRecord) -> TopicRecord:
        assert record.way_back is not None and record.way_back.copy is not None
        return replace(
            record,
            phase=TopicPhase.MIRRORING,
            generation=record.generation + 1,
            resumed=offsets(at),
            copy=None,
            way_back=None,
            former_copies=(*record.former_copies, record.way_back.copy.data_id),
            barrier={},
            promoted_ms=0,
        )

    await world.change(topic, flip)


async def owned_by(world: World, topic: str, *instances: str) -> None:
    """Wait until these processes own all partitions."""

    def found(state: State) -> bool | None:
        made = state.assignment(world.link)
        owners = {assigned(made, topic, p).removeprefix(f"{world.link}-") for p in range(PARTITIONS)}
        return (owners == set(instances) and len(world.progress(topic)) == PARTITIONS) or None

    await world.log.wait(found, 30, f"{instances} to own {topic}")


async def ended(world: World, topic: str) -> str:
    """Return the reason why the way back has ended."""

    def found(state: State) -> str | None:
        record = state.topic(world.link, topic)
        assert record is not None and record.way_back is not None
        return record.way_back.ended or None

    return await world.log.wait(found, 30, "the way back to end")


def write(cluster: KafkaCluster, topic: str, count: int = 200, first: int = 0) -> None:
    produce(cluster.bootstrap, topic, count, partitions=PARTITIONS, first=first)


def test_the_source_stays_identical_while_mirrors_sleep_and_die_and_through_changes_of_direction(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """A mirror sleeps through the promote, and wakes up with records of the copy back in the source's answer."""
    topic = unique_name("back")
    make_topic(source, topic, partitions=PARTITIONS)
    write(source, topic)

    def at_target(number: int) -> int:
        write(target, topic, first=number)
        return number + 200

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with mirror_process(world, "a") as first, mirror_process(world, "b"):
                await world.copied(topic)
                await owned_by(world, topic, "a", "b")
                first.send_signal(signal.SIGSTOP)
                await owned_by(world, topic, "b")
                await promoted(world, topic)
                write(target, topic, first=1_000)
                await world.caught_up(topic)
                first.send_signal(signal.SIGCONT)
                await owned_by(world, topic, "a", "b")
                told = read_all(target.bootstrap, topic)
                assert sum(map(len, told.values())) == 400, "the copy back is not copied to the target once more"

                with all_the_time(at_target, first=2_000):
                    await world.until(topic, lambda told: 0 in told and told[0].position > 300, "records to go back")
                    first.kill()
                    await asyncio.to_thread(transactions, target.bootstrap, topic, 5, name=topic, partitions=PARTITIONS)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=1_000)
                await owned_by(world, topic, "b")

                await rolled_back(world, topic)
                write(source, topic, first=50_000)
                await world.caught_up(topic)
                await promoted(world, topic)
                write(target, topic, first=60_000)
                await world.caught_up(topic)
                told = assert_identical(world, topic, at_least=1_600)
                values = [record[2] for records in told.values() for record in records]
                assert len(set(values)) == len(values), "nothing is doubled"
                assert not {p: seen.problem for p, seen in world.progress(topic).items() if seen.problem}

    asyncio.run(scene())


def test_a_record_of_somebody_else_at_the_source_ends_the_way_back_by_name(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """On an idle partition the record is found by a look, and under writes by the copy's next write."""
    topic, busy = unique_name("idle"), unique_name("busy")
    for each in (topic, busy):
        make_topic(source, each, partitions=PARTITIONS)
        write(source, each)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with mirror_process(world, "a"):
                for each in (topic, busy):
                    await world.copied(each)
                    await promoted(world, each)
                    await asyncio.to_thread(write, target, each, first=1_000)
                    await world.caught_up(each)

                ends = {each: bounds(source.bootstrap, each) for each in (topic, busy)}
                for each in (topic, busy):
                    produce(source.bootstrap, each, 1, config={"enable.idempotence": True})
                began = time.monotonic()
                write(target, busy, first=2_000)
                reasons = {each: await ended(world, each) for each in (topic, busy)}
                assert time.monotonic() - began < NAMED_WITHIN_S
                for each, reason in reasons.items():
                    assert f"offset {ends[each][0][1]}" in reason and "a batch of producer" in reason, reason
                    assert reason.startswith("partition 0: "), reason
                    ours = read_all(source.bootstrap, each)
                    assert [r[2] for r in ours[0]].count(b"value-0") == 2, "the foreign record stays where it is"
                    kept = read_all(target.bootstrap, each)
                    assert all(kept[p][: len(ours[p])] == ours[p] for p in range(1, PARTITIONS))

    asyncio.run(scene())
