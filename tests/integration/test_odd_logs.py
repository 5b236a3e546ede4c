"""Odd source logs: records of any age, odd headers, batches too large for the target, no records, open transactions."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from crc32c import crc32c
from rich.console import Console

from kmigrate.cli.views.snapshots import snapshot_view
from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, FetchPartition, decode_produce, encode_produce
from kmigrate.records.batch import walk
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.status.snapshot import Snapshot, TopicStatus, snapshot
from tests.emptied import BUSY_CLEANER
from tests.integration.java_clients import java_command
from tests.integration.mirror_world import (
    World,
    assert_identical,
    bounds,
    engine_running,
    link_between,
    produce,
    produce_at,
    read_all,
    settings_of,
)
from tests.integration.test_mirror_batches import COMPACTED

MakeTopic = Callable[..., None]
Names = Callable[[str], str]
OwnCluster = Callable[..., KafkaCluster]
Headers = list[tuple[str, str | bytes | None]]

DAY_MS = 86_400_000
END_OF_9999 = 253_402_300_799_999


def produce_sizes(bootstrap: str, topic: str, sizes: list[int], partition: int = 0) -> None:
    """Write a record of each size, each in a batch of its own."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 30 << 20, "linger.ms": 0})
    for number, size in enumerate(sizes):
        producer.produce(topic, bytes([number]) * size, b"key", partition)
        assert producer.flush(30) == 0


async def produce_raw(cluster: KafkaCluster, topic: str, times: list[int]) -> None:
    """Write records, each in a batch of its own, with times that client libraries replace or refuse."""
    async with ClusterClient(settings_of("source", cluster.bootstrap)) as client:
        producer_id, epoch = await client.init_producer_id()
        for number, moment in enumerate(times):
            batch = one_record_batch(
                b"raw", b"at %d" % moment, timestamp=moment, producer_id=producer_id, epoch=epoch, sequence=number
            )
            assert (await append_alone(client, topic, 0, batch, purpose="test")).error == 0


def produce_headers(bootstrap: str, topic: str) -> list[Headers]:
    """Write a record of 10,000 headers between records with odd headers; return the headers.

    The odd headers have repeated keys, empty keys, and no values.
    """
    odd: Headers = [("k", b"1"), ("k", None), ("", b"2"), ("k", b"1"), ("", b""), ("\u00e9", b"\0")]
    many: Headers = [(f"header-{number % 7_000}", b"%d" % number) for number in range(10_000)]
    written = [odd, many, odd]
    producer = Producer({"bootstrap.servers": bootstrap})
    for headers in written:
        producer.produce(topic, b"value", b"key", headers=headers)
    assert producer.flush(30) == 0
    return written


async def look(world: World, topic: str) -> tuple[Snapshot, TopicStatus]:
    """Return what `kmigrate status` shows now."""
    known = {each: settings_of(each, getattr(world, each).bootstrap) for each in ("source", "target")}
    async with await Connections.open(known.__getitem__, "target") as connections:
        shot = await snapshot(connections)
    return shot, next(t for t in shot.topics if (t.link, t.topic) == (world.link, topic))


def text_of(shot: Snapshot) -> str:
    console = Console(width=2_000)
    with console.capture() as captured:
        console.print(snapshot_view(shot))
    return captured.get()


def test_records_of_any_age_and_headers_large_batches_and_empty_partitions_are_copied(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    ages, large, empty, headers = (unique_name(stem) for stem in ("ages", "large", "empty", "headers"))
    make_topic(source, ages, config={"message.timestamp.after.max.ms": str(END_OF_9999)})
    now = int(time.time() * 1000)
    times = [1, 946_684_800_000, now, now + 30 * DAY_MS, now - 40 * DAY_MS, END_OF_9999]
    produce_at(source.bootstrap, ages, times)
    asyncio.run(produce_raw(source, ages, [0, -1, END_OF_9999, 0]))
    produce_at(source.bootstrap, ages, times)
    make_topic(source, headers)
    written = produce_headers(source.bootstrap, headers)
    make_topic(source, large, config={"max.message.bytes": str(20 << 20), "segment.bytes": str(20 << 20)})
    produce_sizes(source.bootstrap, large, [100, 18 << 20, 100, 5 << 20, 9 << 20, 100])
    make_topic(source, empty, 3)
    produce_sizes(source.bootstrap, empty, [10] * 40, partition=0)
    produce_sizes(source.bootstrap, empty, [10] * 50, partition=2)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    for deleted in admin.delete_records([TopicPartition(empty, 2, 50)]).values():
        deleted.result(30)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in (ages, large, empty, headers):
                await world.mirror(topic)
            for topic in (ages, large, empty, headers):
                record = await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
                found = assert_identical(world, topic, at_least=3)[0]
                if topic == ages:
                    assert record.restore_configs == {"message.timestamp.after.max.ms": str(END_OF_9999)}
                    assert "message.timestamp.before.max.ms" in record.drop_configs
                    assert [each[4][1] for each in found] == [*times, 0, -1, END_OF_9999, 0, *times]
                if topic == headers:
                    assert [each[3] for each in found] == written

    asyncio.run(scene())
    assert bounds(target.bootstrap, empty) == {0: (0, 40), 1: (0, 0), 2: (50, 50)}


def _damage_on_disk(cluster: KafkaCluster, topic: str, offset: int) -> None:
    """Change the last byte of the batch that begins at `offset`, in the broker's log file."""
    log = cluster.brokers[1].folder / "data" / f"{topic}-0" / "00000000000000000000.log"
    with log.open("r+b") as file:
        at = 0
        while True:
            file.seek(at)
            base, length = struct.unpack(">qi", file.read(12))
            at += 12 + length
            if base == offset:
                break
        file.seek(at - 1)
        (last,) = file.read(1)
        file.seek(at - 1)
        file.write(bytes([last ^ 1]))


def test_a_batch_that_is_damaged_on_the_sources_disk_is_named_and_nothing_from_it_on_is_copied(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("damaged")
    make_topic(source, topic)
    produce_sizes(source.bootstrap, topic, [100] * 9)
    _damage_on_disk(source, topic, 4)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            told = await world.until(topic, lambda found: bool(found[0].problem), "the damage to be named")
            assert told[0].problem == "corrupt-source-batch: the batch at offset 4 does not fit its CRC"
            assert told[0].position == 4
        assert bounds(target.bootstrap, topic) == {0: (0, 4)}

    asyncio.run(scene())


def test_status_names_the_open_transaction_that_the_mirror_waits_for(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, name = unique_name("held"), unique_name("slow-writer")
    make_topic(source, topic, 2)
    produce(source.bootstrap, topic, 20, partitions=2)
    writer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name})
    writer.init_transactions(30)
    writer.begin_transaction()
    before = int(time.time() * 1000)
    writer.produce(topic, b"not yet", partition=0)
    assert writer.flush(30) == 0
    produce(source.bootstrap, topic, 20, partitions=2, first=20)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.until(topic, lambda told: [told[p].position for p in told] == [10, 20], "the copy to wait")
            await asyncio.sleep(max(0.0, 2.2 - (time.time() * 1000 - before) / 1000))
            shot, status = await look(world, topic)
            held, free = status.partitions
            assert (held.target_end, held.source_end, held.lag, free.lag) == (10, 21, 11, 0)
            assert held.waits_for is not None and free.waits_for is None
            assert (held.waits_for.offset, held.waits_for.transactional_id) == (10, name)
            assert held.waits_for.hanging is False
            assert before - 1_000 <= held.waits_for.started_ms <= before + 5_000
            assert f"waits at offset 10 for the transaction of {name} (producer " in text_of(shot)
            written = next(t for t in shot.as_json()["topics"] if t["topic"] == topic)
            assert written["partitions"][0]["waits_for"]["transactional_id"] == name
            await asyncio.to_thread(writer.commit_transaction, 30)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=41)
            assert (await look(world, topic))[1].partitions[0].waits_for is None

    asyncio.run(scene())


async def _write_without_coordinator(cluster: KafkaCluster, topic: str) -> None:
    """Write a transactional record that no coordinator knows.

    A dead producer's late write leaves such a record (KIP-890).
    """
    batch = one_record_batch(
        b"late", b"never to be committed", timestamp=int(time.time() * 1000), producer_id=990_017, epoch=0, sequence=0
    )
    struct.pack_into(">h", batch, 21, 0x10)  # This is the transactional bit.
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    body = encode_produce([(topic, 0, batch)])
    body[0] = b"\x05late" + bytes(body[0])[1:]  # This is the transactional id, which other requests lack.
    async with ClusterClient(settings_of("source", cluster.bootstrap)) as client:
        await client.refresh([topic])
        connection = await client.connection(client.leader(topic, 0))
        frame = await connection.call_raw(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True)
        assert decode_produce(frame)[(topic, 0)].error == 0


def test_a_hanging_transaction_is_named_and_the_copy_goes_on_once_an_operator_has_ended_it(
    own_cluster: OwnCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    source = own_cluster(version=SOURCE_VERSION, config={"transaction.partition.verification.enable": "false"})
    topic = unique_name("hanging")
    make_topic(source, topic)
    produce(source.bootstrap, topic, 20, partitions=1)
    asyncio.run(_write_without_coordinator(source, topic))
    produce(source.bootstrap, topic, 20, partitions=1, first=20)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.until(topic, lambda told: [told[p].position for p in told] == [20], "the copy to wait")

            async def named() -> str:
                while True:  # Status names only transactions that have been open for a while.
                    shot, status = await look(world, topic)
                    if "waits at" in text_of(shot):
                        assert status.partitions[0].waits_for is not None
                        assert status.partitions[0].waits_for.hanging
                        return text_of(shot)
                    await asyncio.sleep(0.3)

            text = await asyncio.wait_for(named(), 30)
            assert "waits at offset 20 for the transaction of producer 990017 (hanging: no coordinator" in text
            await asyncio.to_thread(_end_hanging, source, topic, 20)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=40)

    asyncio.run(scene())


def _cleaned_to_its_end(source: KafkaCluster, topic: str) -> None:
    """Have a cleaner remove two of three records, and their batches.

    The cleaner leaves the newest segment alone, so an empty segment is put behind the records' segment. A leader has
    such an empty segment after a record that was never replicated.
    """
    producer = Producer({"bootstrap.servers": source.bootstrap})
    for key, value in ((b"kept", b"for good"), (b"gone", b"soon"), (b"gone", None)):
        producer.produce(topic, value, key, 0)
        assert producer.flush(30) == 0

    async def left() -> list[int]:
        async with ClusterClient(settings_of("source", source.bootstrap)) as client:
            await client.refresh([topic])
            wanted = FetchPartition(topic, 0, 0, 1 << 20)
            answer = await fetch_one(client, client.leader(topic, 0), wanted, purpose="test")
            assert answer.last_stable_offset == 3
            return [batch.base_offset for batch in walk(answer.records)]

    data = source.brokers[1].folder / "data"
    for _ in range(10):  # The cleaner removes a tombstone at its second pass.
        source.terminate(1)
        (data / f"{topic}-0" / f"{3:020d}.log").touch()
        (data / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        source.restart(1)
        source.wait_ready()
        time.sleep(2)
        if asyncio.run(left()) == [0]:
            return
    pytest.fail("the log cleaner has left the batches")


@pytest.mark.soak
def test_a_log_without_a_batch_up_to_its_end_is_named_and_copied_on_with_the_next_record(
    own_cluster: OwnCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Log cleaners before Kafka 4.0 leave such logs (KAFKA-17076)."""
    source = own_cluster(version=SOURCE_VERSION, config=BUSY_CLEANER)
    topic = unique_name("bare")
    make_topic(source, topic, config={**COMPACTED, "min.cleanable.dirty.ratio": "0.0", "delete.retention.ms": "0"})
    _cleaned_to_its_end(source, topic)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.until(topic, lambda told: "source-without-batch" in told[0].trouble, "its name", 20)
            _, status = await look(world, topic)
            assert "no batch from offset 1 to its end 3; a record that is" in status.partitions[0].trouble
            assert world.progress(topic)[0].position == 1
            producer = Producer({"bootstrap.servers": source.bootstrap})
            producer.produce(topic, b"new", b"key", 0)
            assert await asyncio.to_thread(producer.flush, 30) == 0
            await world.until(topic, lambda told: told[0].position == 4 and not told[0].trouble, "the rest", 20)
            assert_identical(world, topic, at_least=2)

    asyncio.run(scene())


def _end_hanging(cluster: KafkaCluster, topic: str, offset: int) -> None:
    """Run the command that status tells the operator to run: `kafka-transactions.sh abort`."""
    command = java_command(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap,
        "abort", "--topic", topic, "--partition", "0", "--start-offset", str(offset),
    )  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_target_with_times_and_limits_of_its_own_keeps_the_sources_times_and_names_what_it_cannot_take(
    source: KafkaCluster, own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    target = own_cluster(
        config={"log.message.timestamp.type": "LogAppendTime", "socket.request.max.bytes": str(6 << 20)}
    )
    topic = unique_name("limits")
    make_topic(source, topic, 2, config={"max.message.bytes": str(20 << 20)})
    produce(source.bootstrap, topic, 100, partitions=2, age_ms=3_600_000)
    produce_sizes(source.bootstrap, topic, [4 << 20, 7 << 20, 100], partition=0)
    produce_sizes(source.bootstrap, topic, [4 << 20, 5 << 20, 100], partition=1)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            record = await world.in_phase(topic, TopicPhase.MIRRORING)
            assert record.restore_configs["message.timestamp.type"] == "CreateTime"
            told = await world.until(
                topic, lambda told: bool(told[0].problem) and told[1].position == 53, "one partition to stop"
            )
            assert told[0].problem.startswith("batch-too-large: the batch at offset 51 has 7,340,")
            assert told[1].problem == ""

    asyncio.run(scene())
    wanted, found = (read_all(each.bootstrap, topic) for each in (source, target))
    assert (found[1], found[0]) == (wanted[1], wanted[0][:51])
