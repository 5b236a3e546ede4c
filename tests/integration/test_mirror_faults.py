"""Killed, doubled and stopped mirrors on real brokers: the target's log has each record once and in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import CopyIdentity
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from tests.conftest import Pair
from tests.integration.mirror_world import (
    World,
    all_the_time,
    assert_identical,
    copier,
    engine_running,
    link_between,
    mirror_process,
    produce,
    settings_of,
    transactions,
)

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]

THREE_DAYS_MS = 3 * 86_400_000
FORGETFUL = {"producer.id.expiration.check.interval.ms": "1000", "producer.id.expiration.ms": "2000"}


def writing(bootstrap: str, plain: str, transactional: str, age_ms: int = 0) -> AbstractContextManager[None]:
    """Write plain records and transactions while the block lasts."""

    def write(number: int) -> int:
        produce(bootstrap, plain, 200, partitions=2, first=number, age_ms=age_ms)
        transactions(
            bootstrap, transactional, 3, name=f"{transactional}-live", partitions=2, first=number, age_ms=age_ms
        )
        return number + 200

    return all_the_time(write, first=100_000)


async def mirror_both(world: World, *topics: str) -> None:
    for topic in topics:
        await world.mirror(topic)
    for topic in topics:
        await world.in_phase(topic, TopicPhase.MIRRORING)


def positions(world: World, topic: str) -> int:
    return sum(max(p.position, 0) for p in world.progress(topic).values())


@pytest.mark.soak
def test_a_mirror_killed_while_it_copies_and_started_again_ends_identical(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    plain, txn = unique_name("kill-plain"), unique_name("kill-txn")
    for topic in (plain, txn):
        make_topic(source, topic, partitions=2)
    produce(source.bootstrap, plain, 150_000, partitions=2, config={"batch.num.messages": 50})
    transactions(source.bootstrap, txn, 60, name=txn, partitions=2)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(plain)
            await world.mirror(txn)
            with writing(source.bootstrap, plain, txn):
                for run in range(4):
                    before = positions(world, plain)
                    with mirror_process(world, f"k{run}") as process:
                        # The first two processes die while the topics are being made or aligned, or soon after.
                        if run > 1:
                            await world.until(
                                plain,
                                lambda _, before=before: positions(world, plain) > before,  # type: ignore[misc]
                                "some copying",
                            )
                        await asyncio.sleep((0.25, 1.8, 0.1, 0.2)[run])
                        process.kill()
            with mirror_process(world, "last"):
                for topic in (plain, txn):
                    await world.caught_up(topic)
                    assert_identical(world, topic, at_least=300)

    asyncio.run(scene())


def assert_remembers(world: World) -> None:
    """Check that the target keeps producer state, and that the link knows the value to put back (W1)."""
    resource = ConfigResource(ResourceType.BROKER, "1")
    told = AdminClient({"bootstrap.servers": world.target.bootstrap})
    entry = told.describe_configs([resource])[resource].result(10)["producer.id.expiration.ms"]
    assert entry.value == "2147483647"
    link = world.log.state.link(world.link)
    assert link is not None and link.copy is not None and link.restore_expiration == ""


@pytest.mark.parametrize(
    "age_ms", [pytest.param(0, id="fresh"), pytest.param(THREE_DAYS_MS, id="three-days-old", marks=pytest.mark.soak)]
)
def test_a_stopped_and_continued_mirror_harms_nothing_though_another_took_over(
    own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names, age_ms: int
) -> None:
    source, target = own_cluster(version=SOURCE_VERSION), own_cluster(config=FORGETFUL)
    plain, txn = unique_name("zombie-plain"), unique_name("zombie-txn")
    for topic in (plain, txn):
        make_topic(source, topic, partitions=2, config={"retention.ms": "-1"})
    produce(source.bootstrap, plain, 20_000, partitions=2, age_ms=age_ms, config={"batch.num.messages": 50})
    transactions(source.bootstrap, txn, 40, name=txn, partitions=2, age_ms=age_ms)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(plain)
            await world.mirror(txn)
            with mirror_process(world, "a") as first, writing(source.bootstrap, plain, txn, age_ms):
                await world.in_phase(txn, TopicPhase.MIRRORING)
                assert_remembers(world)
                with mirror_process(world, "b") as second:
                    for stopped, other in ((first, "b"), (second, "a")):
                        await asyncio.sleep(0.7)
                        stopped.send_signal(signal.SIGSTOP)
                        what = f"mirror/{world.link}"
                        holder = f"{world.link}-{other}"
                        await world.log.wait(
                            lambda state, what=what, holder=holder: (  # type: ignore[misc]
                                True if (lease := state.lease(what)) and lease.holder == holder else None
                            ),
                            10,
                            f"{other} to take over",
                        )
                        at = positions(world, plain)
                        await world.until(
                            plain,
                            lambda _, at=at: positions(world, plain) > at,  # type: ignore[misc]
                            f"{other} to copy",
                            10,
                        )
                        stopped.send_signal(signal.SIGCONT)
                    await asyncio.sleep(0.7)
                    first.kill()
            with mirror_process(world, "last"):
                for topic in (plain, txn):
                    await world.caught_up(topic)
                    assert_identical(world, topic, at_least=200)

    asyncio.run(scene())


def test_two_copiers_at_once_write_every_record_once(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    plain, txn = unique_name("two-plain"), unique_name("two-txn")
    for topic in (plain, txn):
        make_topic(source, topic, partitions=2)
        make_topic(target, topic, partitions=2)
    produce(source.bootstrap, plain, 100_000, partitions=2, config={"batch.num.messages": 20})
    transactions(source.bootstrap, txn, 80, name=txn, partitions=2)

    async def scene() -> None:
        async with (
            ClusterClient(settings_of("target", target.bootstrap)) as client,
            link_between(source, target, unique_name("link")) as world,
        ):
            identity = CopyIdentity(*await client.init_producer_id())
            both = (
                copier(source, target, identity, [plain, txn], fills=True),
                copier(source, target, identity, [plain, txn], fills=False),
            )
            with writing(source.bootstrap, plain, txn):
                async with both[0] as one, both[1] as two:
                    await asyncio.sleep(4)
                    assert all(lane.target.position > 0 for lane in [*one.lanes.values(), *two.lanes.values()])
                    for lane in [*one.lanes.values(), *two.lanes.values()]:
                        assert not lane.report.problem, lane.report.problem
            async with copier(source, target, identity, [plain, txn], fills=True):
                for topic in (plain, txn):
                    await world.caught_up(topic)
                    assert_identical(world, topic, at_least=400)

    asyncio.run(scene())


def test_several_leaders_on_both_sides_and_the_death_of_one_on_each(
    clusters3: Pair, make_topic: MakeTopic, unique_name: Names
) -> None:
    source, target = clusters3.source, clusters3.target
    topic = unique_name("leaders")
    make_topic(source, topic, partitions=6, replicas=3, config={"min.insync.replicas": "2"})

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world) as engine:
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            writer = asyncio.get_running_loop().run_in_executor(
                None,
                lambda: produce(source.bootstrap, topic, 60_000, partitions=6, config={"batch.num.messages": 20}),
            )
            await world.until(topic, lambda told: min(p.position for p in told.values()) > 0, "all to be copied")
            target.kill(2)
            await asyncio.sleep(1)
            source.kill(3)
            await writer
            await world.caught_up(topic, 120)
            assert not engine.done()
            for cluster, node in ((target, 2), (source, 3)):
                cluster.restart(node)
                await asyncio.to_thread(cluster.wait_ready)
            await asyncio.to_thread(produce, source.bootstrap, topic, 600, partitions=6)
            await world.caught_up(topic, 120)
            assert not [p.problem for p in world.progress(topic).values() if p.problem]
            assert_identical(world, topic, at_least=60_600)

    asyncio.run(scene())
