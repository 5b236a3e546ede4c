"""What stops one partition on real brokers: named, alone, and resumed only where that is safe (AL-63)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import PromoteTerms
from kmigrate.model.stops import AcceptedLoss, PartitionStop, Remedy
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.workflow import verbs
from kmigrate.workflow.estate import Estate
from kmigrate.workflow.plan import Plan
from kmigrate.workflow.status import TopicStatus, snapshot
from tests.conftest import Pair
from tests.integration.mirror_world import (
    World,
    assert_identical,
    bounds,
    engine_running,
    link_between,
    produce,
    read_all,
    settings_of,
)

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]
SetConfig = Callable[[KafkaCluster, str, dict[str, str]], None]
PROMOTE = PromoteTerms(1)


def cut(bootstrap: str, topic: str, offsets: dict[int, int]) -> None:
    """DeleteRecords."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(topic, p, o) for p, o in offsets.items()]).values():
        future.result(20)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    deadline = time.monotonic() + 20
    while topic in admin.list_topics(timeout=5).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def estate_of(world: World) -> AsyncIterator[Estate]:
    """What a verb works on, as the command line opens it."""
    known = {"source": world.source.bootstrap, "target": world.target.bootstrap}
    async with await Estate.open(lambda name: settings_of(name, known[name]), "target") as estate:
        yield estate


async def resume(
    world: World, topic: str, partition: int | None = None, loss: tuple[int, int] | None = None
) -> Plan:
    async with estate_of(world) as estate:
        return await verbs.resume_topics(
            estate, world.link, [topic], partition=partition, accept_loss=loss, who="somebody@here"
        )


async def refused(world: World, topic: str, *given: object) -> Refused:
    with pytest.raises(Refused) as caught:
        await resume(world, topic, *given)  # type: ignore[arg-type]
    return caught.value


async def status_of(world: World, topic: str) -> TopicStatus:
    async with estate_of(world) as estate:
        return next(each for each in (await snapshot(estate)).topics if each.topic == topic)


async def stopped(world: World, topic: str, partition: int, ref: str) -> PartitionStop:
    """The stop as the state log keeps it."""
    return await world.log.wait(
        lambda state: (
            stop
            if (record := state.topic(world.link, topic)) is not None
            and (stop := record.stops.get(partition)) is not None
            and stop.ref == ref
            else None
        ),
        30,
        f"{topic}-{partition} to stop by {ref}, not {world.progress(topic)}",
    )


async def waiting(world: World, topic: str, partition: int, ref: str) -> None:
    await world.until(topic, lambda told: ref in told[partition].trouble, f"the trouble {ref}", 30)


async def copied(world: World, topic: str, partition: int, offset: int, timeout: float = 30) -> None:
    await world.until(topic, lambda told: told[partition].position >= offset, f"{partition} at {offset}", timeout)


async def to(function: Callable[..., object], *args: object, **more: object) -> None:
    await asyncio.to_thread(function, *args, **more)


def test_records_deleted_before_they_were_copied_are_named_and_only_their_exact_range_is_given_up(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("overtaken")
    make_topic(source, topic, partitions=2)
    produce(source.bootstrap, topic, 200, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            async with engine_running(world):
                await world.mirror(topic)
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
            # Nobody copies while 150,000 records of partition 1 come and go: more than any hole of compaction.
            await to(produce, source.bootstrap, topic, 300_000, partitions=2, first=200)
            await to(cut, source.bootstrap, topic, {1: 150_050})
            async with engine_running(world, "m2"):
                stop = await stopped(world, topic, 1, "source-range-lost")
                assert (stop.lost, stop.remedy) == ("100..150049", Remedy.ACCEPT_LOSS)
                await copied(world, topic, 0, 150_100)  # its neighbour goes on
                shown = (await status_of(world, topic)).partitions[1]
                assert "offsets 100 to 150049 were deleted on the source" in shown.problem
                assert (await refused(world, topic)).ref == "loss-not-accepted"
                assert (await refused(world, topic, 1)).ref == "loss-not-accepted"
                wrong = await refused(world, topic, 1, (100, 150_000))
                assert wrong.ref == "other-range"
                assert wrong.next_step.endswith("--accept-loss 100..150049")
                assert (await refused(world, topic, 7)).ref == "unknown-partition"
            # A restart does not forget the stop, and the verb works while no mirror runs.
            await resume(world, topic, 1, (100, 150_049))
            async with engine_running(world, "m3"):
                await copied(world, topic, 1, 150_100)
                await to(produce, source.bootstrap, topic, 100, partitions=2, first=300_200)
                await copied(world, topic, 1, 150_150)
                await copied(world, topic, 0, 150_150)
                found, wanted = read_all(target.bootstrap, topic), read_all(source.bootstrap, topic)
                assert found[0] == wanted[0]
                assert found[1][100:] == wanted[1]
                assert [record[0] for record in found[1][:100]] == list(range(100))
                assert bounds(target.bootstrap, topic) == {0: (0, 150_150), 1: (0, 150_150)}
                status = await status_of(world, topic)
                assert status.partitions[1].problem == ""
                (loss,) = status.partitions[1].losses
                assert loss == AcceptedLoss(100, 150_049, "source-range-lost", loss.at_ms, "somebody@here")
                assert loss.at_ms > 0
                assert status.offsets == "identical"

    asyncio.run(scene())


def test_what_was_deleted_between_the_stop_and_the_acceptance_belongs_to_the_range(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("more-lost")
    make_topic(source, topic)
    produce(source.bootstrap, topic, 10)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await world.caught_up(topic)
            async with estate_of(world) as estate:
                await verbs.pause_topics(estate, world.link, [topic])
            await to(produce, source.bootstrap, topic, 100)
            await to(cut, source.bootstrap, topic, {0: 40})
            await asyncio.sleep(0.7)
            assert (await status_of(world, topic)).paused
            assert bounds(target.bootstrap, topic) == {0: (0, 10)}, "a paused topic is not copied"
            async with estate_of(world) as estate:
                with pytest.raises(Refused) as caught:
                    await verbs.promote_topics(estate, world.link, [topic], PROMOTE)
                assert caught.value.ref == "topic-paused"
            await resume(world, topic)
            assert (await stopped(world, topic, 0, "source-range-lost")).lost == "10..39"
            await to(cut, source.bootstrap, topic, {0: 60})
            assert (await refused(world, topic, 0, (10, 39))).next_step.endswith("--accept-loss 10..59")
            async with estate_of(world) as estate:
                with pytest.raises(Refused) as caught:
                    await verbs.promote_topics(estate, world.link, [topic], PROMOTE)
                assert caught.value.ref == "partition-stopped"
            await resume(world, topic, 0, (10, 59))
            await copied(world, topic, 0, 110)
            assert read_all(target.bootstrap, topic)[0][10:] == read_all(source.bootstrap, topic)[0]

    asyncio.run(scene())
