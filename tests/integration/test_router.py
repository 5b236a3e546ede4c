"""The router between real clients and two real clusters: passing, forwarding, fences, flips, crashes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.groups import protocol_type
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.records import GroupRecord, PartitionBarrier
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.topics import STATE_TOPIC
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.controller.controller import Controller
from tests.fakes.proposals import run_verb
from tests.integration.connect_workers import joined_by_a_worker
from tests.integration.migration import wait_until
from tests.integration.router_world import Writer, ends, link_between, quietly, router, settings_of, values

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


async def _aiokafka_writes(bootstrap: str, topic: str, count: int, **config: Any) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        for number in range(count):
            await producer.send(topic, b"a-%d" % number, partition=number % 3)
        await producer.flush()
    finally:
        await producer.stop()


def _read_group(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    out: list[bytes] = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 20
        while len(out) < count and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if message.error() is None:
                    value = message.value()
                    assert value is not None
                    out.append(value)
        consumer.commit(asynchronous=False)
        return out
    finally:
        consumer.close()


def _write_numbers(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(10) == 0


def test_clients_of_two_families_produce_and_consume_through_the_router(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, group = unique_name("pass"), unique_name("g")
    make_topic(target, topic, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")):
            with router("r1", target) as running:
                with Writer(running.bootstrap, topic, "c") as writer:
                    await quietly(writer.until, 300)
                    writer.finish()
                await _aiokafka_writes(running.bootstrap, topic, 300, enable_idempotence=True)
                sent = [value for part in writer.sent.values() for value in part]
                sent += [b"a-%d" % number for number in range(300)]

                read = await quietly(_read_group, running.bootstrap, topic, group, len(sent))
                consumer = AIOKafkaConsumer(
                    topic,
                    bootstrap_servers=running.bootstrap,
                    group_id=group + "2",
                    auto_offset_reset="earliest",
                )
                await consumer.start()
                also = [(await asyncio.wait_for(consumer.getone(), 10)).value for _ in sent]
                await consumer.stop()

        assert writer.errors == []
        assert sorted(read) == sorted(also) == sorted(sent)
        assert values(target.bootstrap, topic)[0] == writer.sent[0] + [b"a-%d" % n for n in range(0, 300, 3)]

    asyncio.run(scenario())


def test_writes_to_a_mirrored_topic_reach_the_source_under_translated_ids(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("fwd")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)
    configs: list[dict[str, Any]] = [
        {},
        {"enable.idempotence": False, "acks": "all"},
        {"enable.idempotence": False, "acks": 1},
        {"enable.idempotence": False, "acks": 0},
    ]

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            writers = []
            with router("r1", target) as running:
                for number, config in enumerate(configs):
                    with Writer(running.bootstrap, topic, f"w{number}", config) as writer:
                        await quietly(writer.until, 200)
                    writers.append(writer)
                    # Without acknowledgements a producer counts a record as written once the bytes have left.
                    count = sum(len(sent) for each in writers for sent in each.sent.values())

                    def stored(count: int = count) -> bool:
                        return sum(ends(source.bootstrap, topic)) >= count

                    await quietly(wait_until, stored, 20, f"{count} records at the source")
                await _aiokafka_writes(running.bootstrap, topic, 300, acks=1)
            ids = await world.source_producers(topic)

        assert [w.errors for w in writers] == [[]] * len(configs)
        found = values(source.bootstrap, topic)
        for partition in range(3):
            expected = [v for w in writers for v in w.sent[partition]]
            assert found[partition] == expected + [b"a-%d" % n for n in range(partition, 300, 3)]
        assert ends(target.bootstrap, topic) == [0, 0, 0]
        assert len(ids) == len(configs) + 1
        assert min(ids) >= 1 << 40

    asyncio.run(scenario())


def test_a_flip_under_traffic_loses_doubles_and_reorders_nothing(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("flip")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)
    configs: dict[str, dict[str, Any]] = {
        "idempotent": {},
        # Without idempotence librdkafka keeps the order over retries only with a single request in flight.
        "acks1": {"enable.idempotence": False, "acks": 1, "max.in.flight": 1},
        "acks0": {"enable.idempotence": False, "acks": 0},
    }

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            with router("r1", target) as one, router("r2", target) as two:
                await world.routers_apply(2)
                writers = [
                    Writer((one, two)[n % 2].bootstrap, topic, name, config).__enter__()
                    for n, (name, config) in enumerate(configs.items())
                ]
                for writer in writers:
                    await quietly(writer.until, 500)
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch, routers=2)
                before = await quietly(ends, source.bootstrap, topic)
                await asyncio.sleep(0.3)
                still = await quietly(ends, source.bootstrap, topic)
                await world.flip(topic, record.fence_epoch, acks)
                for writer in writers:
                    await quietly(writer.until, writer.acked + 500)
                    await quietly(writer.finish)
                holds = [
                    presence.holds_ms.get(record.key, {})
                    for presence, _ in world.log.presence.values()
                    if hasattr(presence, "holds_ms")
                ]

        assert [w.errors for w in writers] == [[]] * len(writers)
        assert before == still == ends(source.bootstrap, topic)
        assert max(ms for held in holds for ms in held.values()) > 200
        old, new = values(source.bootstrap, topic), values(target.bootstrap, topic)
        for partition in range(3):
            stored = old[partition] + new[partition]
            for writer in writers:
                mine = [v for v in stored if v.startswith(writer.name.encode() + b"-")]
                assert mine == writer.sent[partition]
            assert new[partition]

    asyncio.run(scenario())


def test_what_a_group_that_follows_reads_of_a_promoted_topic_it_reads_once_over_its_own_promote_too(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The source keeps the group's committed offsets, and the source's log ends at the barrier."""
    topic, group, link = unique_name("moved"), unique_name("g"), unique_name("link")
    known = {name: settings_of(name, at.bootstrap) for name, at in (("source", source), ("target", target))}

    async def write(cluster: KafkaCluster, numbers: range) -> None:
        await quietly(_write_numbers, cluster.bootstrap, topic, numbers)

    async def scenario() -> tuple[list[bytes], list[bytes]]:
        for cluster in (source, target):
            make_topic(cluster, topic, partitions=1)
            await write(cluster, range(20))
        async with link_between(source, target, link) as world, asyncio.TaskGroup() as tasks:
            barrier = {0: PartitionBarrier(20, 0)}
            await world.put(topic, TopicPhase.PROMOTED, partitions=1, starts={0: 0}, barrier=barrier)
            follows = GroupRecord(link, group, GroupPhase.MIRRORED, 1, mode=GroupMode.FOLLOW)
            await world.log.append(lambda _: follows)
            with router("r1", target) as running:
                await world.routers_apply()
                await write(target, range(20, 30))
                before = await quietly(_read_group, running.bootstrap, topic, group, 30)
                async with await Connections.open(known.__getitem__, "target") as connections:
                    controlling = tasks.create_task(Controller(connections, "c").run())
                    await run_verb(verbs.promote_groups(connections, link, [group]))
                    promoted = await verbs.wait_groups(connections, link, [group], 20)
                    controlling.cancel()
                assert [record.written for record in promoted] == [{topic: {0: 30}}]
                await write(target, range(30, 40))
                return before, await quietly(_read_group, running.bootstrap, topic, group, 10)

    before, after = asyncio.run(scenario())
    assert (before, after) == ([b"%d" % n for n in range(30)], [b"%d" % n for n in range(30, 40)])


def test_a_member_reads_on_whose_coordinator_at_the_source_dies_before_it_tells_positions(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The member reads on, because the router repeats the question for committed offsets.

    After NOT_COORDINATOR librdkafka asks for committed offsets no more, and reads nothing (its issue 5586).
    """
    topic, group, link = unique_name("dies"), unique_name("g"), unique_name("link")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=1)
        _write_numbers(cluster.bootstrap, topic, range(50))
    assigned: list[threading.Thread] = []

    def kill_the_coordinator(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        source.kill(1)
        assigned.append(threading.Thread(target=source.restart, args=(1,)))
        assigned[-1].start()

    def read_on(bootstrap: str) -> tuple[list[int | None], list[str]]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe([topic], on_assign=kill_the_coordinator)
        offsets: list[int | None] = []
        errors: list[str] = []
        deadline = time.monotonic() + 40
        while len(offsets) < 20 and time.monotonic() < deadline:
            for message in consumer.consume(100, 0.2):
                error = message.error()
                if error is None:
                    offsets.append(message.offset())
                else:
                    errors.append(str(error))
        for restarting in assigned:
            restarting.join()
        source.wait_ready()
        consumer.close()
        return offsets, errors

    async def scenario() -> tuple[list[int | None], list[str]]:
        async with link_between(source, target, link) as world:
            await world.put_group(group, GroupPhase.MIRRORED, GroupMode.FOLLOW)
            with router("r1", target) as running:
                await world.routers_apply()
                assert await quietly(_commits, running.bootstrap, group, TopicPartition(topic, 0, 30)) == 0
                return await quietly(read_on, running.bootstrap)

    offsets, errors = asyncio.run(scenario())
    assert (offsets, errors, len(assigned)) == (list(range(30, 50)), [], 1)


def _commits(bootstrap: str, group: str, *positions: TopicPartition) -> int:
    """Commit offsets, and return librdkafka's error code, 0 for success."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=list(positions), asynchronous=False)
    except KafkaException as error:
        return int(error.args[0].code())
    finally:
        consumer.close()
    return 0


def test_what_stands_around_a_group_that_follows_sees_it_at_the_router(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The router shows a group that follows to other tools.

    The test covers lag tools, Streams' purges, topics that only the target has, and workers whose groups are not
    mirrored.
    """
    topic, only, group, workers = unique_name("seen"), unique_name("only"), unique_name("g"), unique_name("workers")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=1)
        _write_numbers(cluster.bootstrap, topic, range(50))
    make_topic(target, only, partitions=1)

    def lag_and_purge(bootstrap: str) -> tuple[list[tuple[str, int]], int, int]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        asked = ConsumerGroupTopicPartitions(group)
        told = admin.list_consumer_group_offsets([asked])[group].result(20).topic_partitions
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        (end,) = admin.list_offsets({TopicPartition(topic, 0): latest}).values()
        (purge,) = admin.delete_records([TopicPartition(topic, 0, 10)]).values()
        refused = purge.exception(20)
        assert isinstance(refused, KafkaException)
        listed = admin.list_topics(timeout=20).topics.keys()
        assert only in listed, "a pattern is held against these"
        assert STATE_TOPIC not in listed
        return [(part.topic, part.offset) for part in told], end.result(20).offset, refused.args[0].code()

    async def worker_groups(bootstrap: str) -> list[str]:
        async with ClusterClient(settings_of("router", bootstrap)) as client:
            await joined_by_a_worker(client, workers)
        found = []
        for cluster in (source, target):
            async with ClusterClient(settings_of("cluster", cluster.bootstrap)) as client:
                found.append(await protocol_type(client, workers))
        return found

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1, starts={0: 0})
            await world.put_group(group, GroupPhase.MIRRORED, GroupMode.FOLLOW)
            with router("r1", target) as running:
                await world.routers_apply()
                both = [TopicPartition(topic, 0, 30), TopicPartition(only, 0, 0)]
                assert await quietly(_commits, running.bootstrap, group, *both) == KafkaError.UNKNOWN_TOPIC_OR_PART
                positions, end, refused = await quietly(lag_and_purge, running.bootstrap)
                assert (positions, end, refused) == ([(topic, 30)], 50, KafkaError.POLICY_VIOLATION)
                assert await worker_groups(running.bootstrap) == ["", "connect"]
                kept = [await quietly(_commit_records, at.bootstrap, group) for at in (source, target, running)]
        assert kept == [1, 0, 0]

    asyncio.run(scenario())


def _commit_records(bootstrap: str, group: str) -> int:
    """Return the number of a group's commit records in the coordinators' log."""
    name = "__consumer_offsets"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    left, found, deadline = set(consumer.list_topics(name, 10).topics[name].partitions), 0, time.monotonic() + 20
    consumer.assign([TopicPartition(name, partition, 0) for partition in left])
    while left and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            if message.error() is not None:
                left.discard(message.partition())
            elif (key := message.key()) is not None and len(key) > 2 and key[1] < 2 and group.encode() in key:
                found += 1
    consumer.close()
    assert not left
    return found


def test_an_unfenced_topic_goes_on_as_before_even_after_the_hold_limit(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("unfence")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            with router("r1", target) as running:
                aiokafka = asyncio.create_task(
                    _aiokafka_writes(running.bootstrap, topic, 6000, enable_idempotence=True, linger_ms=1)
                )
                config = {"max.in.flight.requests.per.connection": 5, "request.timeout.ms": 8000}
                with Writer(running.bootstrap, topic, "w", config) as writer:
                    await quietly(writer.until, 300)
                    record = await world.fence(topic)
                    await world.drained(topic, record.fence_epoch)
                    await asyncio.sleep(3.5)  # This is longer than a quarter of the request timeout.
                    await world.put(topic, TopicPhase.MIRRORING)
                    await quietly(writer.until, writer.acked + 1000)
                await aiokafka

        assert writer.errors == []
        stored = values(source.bootstrap, topic)
        for partition in range(3):
            assert [v for v in stored[partition] if v.startswith(b"w-")] == writer.sent[partition]
            mine = [v for v in stored[partition] if v.startswith(b"a-")]
            assert mine == [b"a-%d" % n for n in range(partition, 6000, 3)]
        assert ends(target.bootstrap, topic) == [0, 0, 0]

    asyncio.run(scenario())


def test_a_router_killed_under_an_idempotent_producer_loses_and_doubles_nothing(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("kill")
    for cluster in (source, target):
        make_topic(cluster, topic, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING)
            with router("r1", target) as one, router("r2", target) as two:
                await world.routers_apply(2)
                both = f"{one.bootstrap},{two.bootstrap}"
                with Writer(both, topic, "w", pause=0.0005) as writer:
                    await quietly(writer.until, 500)
                    one.kill()
                    await quietly(writer.until, writer.acked + 500)
                    restarted = await quietly(_restart, one, target)
                    two.kill()
                    await quietly(writer.until, writer.acked + 500)
                    await quietly(writer.finish)
                restarted.stop()

        assert writer.errors == []
        stored = values(source.bootstrap, topic)
        assert {p: stored[p] for p in range(3)} == writer.sent

    asyncio.run(scenario())


def _restart(dead: Any, target: KafkaCluster) -> Any:
    from tests.integration.router_world import start_router

    return start_router(dead.name, target, int(dead.bootstrap.rsplit(":", 1)[1]))


def _until_stored(bootstrap: str, topic: str, count: int) -> None:
    deadline = time.monotonic() + 15
    while ends(bootstrap, topic, 1) != [count]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("age_days", [0, 3])
def test_a_retry_of_what_the_source_stored_is_answered_as_a_duplicate_after_the_flip(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, age_days: int
) -> None:
    """A retry after the flip is acknowledged at the source's offset.

    The same holds where the source has forgotten the producer by the age of the records (V6), and no router has seen
    it.
    """
    topic = unique_name("retry")
    timestamp = int((time.time() - age_days * 86_400) * 1000)
    told: list[Any] = []

    def noted(error: Any, message: Any) -> None:
        told.append(error if error is not None else message.offset())

    for cluster in (source, target):
        make_topic(cluster, topic)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as first:
                port = int(first.bootstrap.rsplit(":", 1)[1])
                producer = Producer({"bootstrap.servers": first.bootstrap, "enable.idempotence": True})
                producer.produce(topic, b"one", partition=0, timestamp=timestamp, on_delivery=noted)
                await quietly(producer.flush, 10)
                source.pause(1)
                producer.produce(topic, b"two", partition=0, timestamp=timestamp, on_delivery=noted)
                await quietly(producer.poll, 0.5)
                first.kill()
            source.resume(1)
            await quietly(_until_stored, source.bootstrap, topic, 2)
            for _ in range(150 if age_days else 0):
                if not await world.source_producers(topic):
                    break
                await asyncio.sleep(0.1)
            assert bool(await world.source_producers(topic)) is (age_days == 0)
            record = await world.fence(topic)
            await world.flip(topic, record.fence_epoch, [])
            with router("r1", target, port):
                left = await quietly(producer.flush, 20)
                producer.produce(topic, b"three", partition=0, timestamp=timestamp, on_delivery=noted)
                left += await quietly(producer.flush, 20)

        assert left == 0
        assert told == [0, 1, 0], "the second is acknowledged at the offset where the source holds it"
        assert values(source.bootstrap, topic, 1)[0] == [b"one", b"two"]
        assert values(target.bootstrap, topic, 1)[0] == [b"three"]

    asyncio.run(scenario())
