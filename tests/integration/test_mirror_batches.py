"""Batches that the mirror must rewrite: thinned by a log cleaner, stamped with broker times, in every codec."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from kmigrate.cluster.append import append_alone, read_tail
from kmigrate.cluster.client import ClusterClient
from kmigrate.kafka_jars.java import find_java
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from tests.emptied import BUSY_CLEANER
from tests.integration.java_clients import SOURCES, JavaProgram, java_command
from tests.integration.mirror_world import (
    assert_identical,
    bounds,
    engine_running,
    link_between,
    mirror_process,
    read_all,
    settings_of,
)

MakeTopic = Callable[..., None]
Names = Callable[[str], str]
OwnCluster = Callable[..., KafkaCluster]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "20000",
    "delete.retention.ms": "600000",
}


def write_keyed(bootstrap: str, topic: str, count: int, *, codec: str = "none", first: int = 0) -> dict[int, bytes]:
    """Write records of few keys and some tombstones, a dozen per batch; return the acknowledged values by offset."""
    acked: dict[int, bytes] = {}

    def note(error: object, message: Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset is not None
        acked[offset] = message.value() or b""

    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 12})
    for number in range(first, first + count):
        key = f"once-{number}" if number % 5 == 0 else f"often-{number % 13}"
        value = None if number % 11 == 0 else f"value-{number}-{'x' * 60}".encode()
        producer.produce(topic, value, key.encode(), headers={"n": str(number)}, on_delivery=note)
        if number % 500 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0
    return acked


def wait_until_cleaned(bootstrap: str, topics: Collection[str], below: int) -> None:
    """Wait until the log cleaner has thinned the topics and rests."""
    deadline, last = time.monotonic() + 60, dict.fromkeys(topics, -1)
    while time.monotonic() < deadline:
        left = {topic: sum(map(len, read_all(bootstrap, topic).values())) for topic in topics}
        if left == last and max(left.values()) < below:
            return
        last = left
        time.sleep(1)
    pytest.fail(f"the cleaner did not work: {last}")


def write_what_is_emptied(bootstrap: str, topic: str, name: str) -> None:
    """Write batches of idempotent and transactional producers in every codec.

    Most keys are overwritten at once.
    """
    for turn, codec in enumerate(CODECS):
        idempotent = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec})
        transactional = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{name}-{codec}", "compression.type": codec}
        )
        transactional.init_transactions(30)
        for number in range(3):
            transactional.begin_transaction()
            for key in range(13):
                for producer in (idempotent, transactional):
                    producer.produce(topic, b"soon gone", f"often-{key}".encode())
            assert idempotent.flush(30) == transactional.flush(30) == 0
            if number == 1:
                transactional.abort_transaction(30)
            else:
                transactional.commit_transaction(30)
        write_keyed(bootstrap, topic, 240, codec=codec, first=240 * turn)


def dumped(cluster: KafkaCluster, topic: str, *more: str) -> str:
    """Return every batch header in a partition's log, as the broker's own DumpLogSegments prints them."""
    logs = sorted((cluster.brokers[1].folder / "data" / f"{topic}-0").glob("*.log"))
    words = ("--files", ",".join(map(str, logs)), *more)
    command = java_command("kafka.tools.DumpLogSegments", *words, jars="kafka", version=SOURCE_VERSION)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def assert_java_skips_nothing(folder: Path, source: KafkaCluster, target: KafkaCluster, topic: str) -> None:
    """Check that Java's consumer skips no record on the target.

    From any start offset the consumer gets the next record and the records after it.
    """
    if not (find_java().home / "bin" / "javac").is_file():
        pytest.skip("what Java's consumer is given needs a JDK, which compiles source files")
    with JavaProgram(folder, "source") as theirs, JavaProgram(folder, "target") as ours:
        for program, cluster, way in ((theirs, source, "on"), (ours, target, "each")):
            program.run(SOURCES / "ReadFromEachOffset.java", cluster.bootstrap, topic, way)
        assert [program.ended(60) for program in (theirs, ours)] == [0, 0], ours.said[-2000:] + theirs.said[-2000:]
        polls, wanted = ([line.split() for line in program.said.splitlines()] for program in (ours, theirs))
    assert {record for poll in polls for record in poll[1:]} == {record for poll in wanted for record in poll[1:]}
    offsets = [record[0] for record in read_all(target.bootstrap, topic)[0]]
    start, end = bounds(target.bootstrap, topic)[0]
    assert [int(poll[0]) for poll in polls] == list(range(start, end))
    for sought, *records in polls:
        given = [int(record.split("=")[0]) for record in records]
        rest = offsets[bisect_left(offsets, int(sought)) :]
        assert given == rest[: len(given)]
        assert bool(given) is bool(rest)


def test_compacted_topics_in_every_codec_come_out_with_their_holes(
    own_cluster: OwnCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    source = own_cluster(version=SOURCE_VERSION, config=BUSY_CLEANER)
    topics = {codec: unique_name(f"thin-{codec}") for codec in CODECS}
    for codec, topic in topics.items():
        make_topic(source, topic, config=COMPACTED)
        write_keyed(source.bootstrap, topic, 3_000, codec=codec)
    topics["emptied"] = emptied = unique_name("thin-emptied")
    make_topic(source, emptied, config=COMPACTED)
    write_what_is_emptied(source.bootstrap, emptied, emptied)
    write_keyed(source.bootstrap, emptied, 400, first=1_200)
    wait_until_cleaned(source.bootstrap, topics.values(), 1_500)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in topics.values():
                await world.mirror(topic)
            for topic in topics.values():
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
                assert_identical(world, topic, at_least=300 if topic == emptied else 600)
            assert not [p.problem for topic in topics.values() for p in world.progress(topic).values() if p.problem]

    asyncio.run(scene())
    headers = dumped(source, emptied)
    emptied_by = re.findall(r"count: 0 .*?producerId: (-?\d+) .*?isTransactional: (\w+) isControl: (\w+)", headers)
    assert {each[1:] for each in emptied_by} == {("false", "false"), ("true", "false")}
    horizons = re.findall(r"isControl: (\w+) deleteHorizonMs: OptionalLong\[", headers)
    assert set(horizons) == {"false", "true"}
    assert_java_skips_nothing(tmp_path, source, target, emptied)


def test_broker_times_stay_the_times_that_readers_saw(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topics = {codec: unique_name(f"stamped-{codec}") for codec in CODECS}
    for codec, topic in topics.items():
        make_topic(source, topic, config={"message.timestamp.type": "LogAppendTime"})
        write_keyed(source.bootstrap, topic, 600, codec=codec)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world, engine_running(world):
            for topic in topics.values():
                await world.mirror(topic)
            for topic in topics.values():
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)

    asyncio.run(scene())
    for topic in topics.values():
        wanted, found = (read_all(each.bootstrap, topic)[0] for each in (source, target))
        assert [(*record[:4], record[4][1]) for record in found] == [(*record[:4], record[4][1]) for record in wanted]
        assert len(wanted) == 600


def write_one_batch(cluster: KafkaCluster, topic: str, count: int, codec: str) -> None:
    """Write all these records in a single batch, and check the batch with the source's own tool."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": codec,
            "linger.ms": 100_000,
            "batch.num.messages": count,
            "batch.size": 90 << 20,
            "message.max.bytes": 90 << 20,
            "queue.buffering.max.messages": count,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    for number in range(count):
        producer.produce(topic, b"value-%d" % number + b"x" * (number % 60), b"key-%d" % (number % 1_000))
    assert producer.flush(120) == 0
    assert f"count: {count} " in dumped(cluster, topic)


async def longest_pause(over: asyncio.Event) -> float:
    """Return the longest time, in seconds, for which the event loop ran nothing else."""
    longest, last = 0.0, time.monotonic()
    while not over.is_set():
        await asyncio.sleep(0.005)
        last, longest = time.monotonic(), max(longest, time.monotonic() - last)
    return longest


def mirrored(source: KafkaCluster, target: KafkaCluster, topic: str, link: str) -> float:
    """Mirror a topic to its end, and compare the records by librdkafka; return the longest pause of the event loop."""

    async def scene() -> float:
        async with link_between(source, target, link) as world, engine_running(world):
            over = asyncio.Event()
            paused = asyncio.create_task(longest_pause(over))
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await world.caught_up(topic, 120)
            over.set()
            return await paused

    pause = asyncio.run(scene())
    wanted, found = (read_all(each.bootstrap, topic) for each in (source, target))
    assert wanted.keys() == found.keys()
    for partition, records in wanted.items():
        ours, theirs = ([(*each[:4], each[4][1]) for each in told] for told in (found[partition], records))
        assert ours == theirs
    return pause


def one_batch_mirrored(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, topic: str, link: str, count: int, codec: str
) -> float:
    """Do the same for a topic with a single batch with broker times, and check the copy by Java's tool, too."""
    large = {"max.message.bytes": str(90 << 20), "segment.bytes": str(90 << 20)}
    make_topic(source, topic, config={"message.timestamp.type": "LogAppendTime", **large})
    write_one_batch(source, topic, count, codec)
    pause = mirrored(source, target, topic, link)
    told = dumped(target, topic, "--deep-iteration")
    assert sum(map(int, re.findall(r"lastOffset: \d+ count: (\d+) ", told))) == count
    assert len(re.findall(r"^\| offset: ", told, re.MULTILINE)) == count
    assert set(re.findall(r"compresscodec: (\w+)", told)) == {codec}
    return pause


def test_a_batch_that_a_thread_rewrites_comes_out_as_readers_saw_it(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """Java's reader must accept lz4 that was packed in pieces."""
    one_batch_mirrored(source, target, make_topic, unique_name("large"), unique_name("link"), 80_000, "lz4")


@pytest.mark.soak
@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_a_batch_of_a_million_records_is_rewritten_while_everything_else_goes_on(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, codec: str
) -> None:
    """Before, the process did nothing else for 4.5 s: no lease, no heartbeat, no other partition."""
    pause = one_batch_mirrored(
        source, target, make_topic, unique_name("million"), unique_name("link"), 1_000_000, codec
    )
    assert pause < 0.5


@pytest.mark.soak
def test_many_batches_with_broker_times_are_rewritten_while_everything_else_goes_on(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """An answer holds many such batches, of several partitions: before, the process did nothing else for up to 2 s."""
    topic = unique_name("stamped")
    make_topic(source, topic, 6, config={"message.timestamp.type": "LogAppendTime"})
    producer = Producer(
        {"bootstrap.servers": source.bootstrap, "compression.type": "zstd", "queue.buffering.max.messages": 800_000}
    )
    for number in range(800_000):
        producer.produce(topic, b"v" * 100, b"k%d" % number, number % 6)
    assert producer.flush(60) == 0
    assert mirrored(source, target, topic, unique_name("link")) < 0.5


def test_a_live_cleaner_under_two_mirrors_loses_doubles_and_shifts_nothing(
    own_cluster: OwnCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    source, topic = own_cluster(version=SOURCE_VERSION, config=BUSY_CLEANER), unique_name("cleaned")
    make_topic(source, topic, config=COMPACTED)
    acked = write_keyed(source.bootstrap, topic, 4_000)
    stop = threading.Event()

    def write() -> None:
        number = 4_000
        while not stop.is_set():
            acked.update(write_keyed(source.bootstrap, topic, 120, first=number))
            number += 120
            time.sleep(0.05)

    writer = threading.Thread(target=write)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(topic)
            with mirror_process(world, "a") as first, mirror_process(world, "b") as second:
                await world.in_phase(topic, TopicPhase.MIRRORING)
                writer.start()
                try:
                    for stopped in (first, second, first):
                        await asyncio.sleep(0.5)
                        stopped.send_signal(signal.SIGSTOP)
                        await asyncio.sleep(2.5)  # This is longer than a lease.
                        stopped.send_signal(signal.SIGCONT)
                    first.kill()
                finally:
                    stop.set()
                    await asyncio.to_thread(writer.join)
            with mirror_process(world, "last"):
                await world.caught_up(topic)
                assert not [p.problem for p in world.progress(topic).values() if p.problem]

    asyncio.run(scene())
    kept, copied = (read_all(each.bootstrap, topic)[0] for each in (source, target))
    by_offset = {record[0]: record for record in copied}
    assert [by_offset.get(record[0]) for record in kept] == kept
    # The cleaner continues after the copy: records that only the target still has must be records written to the
    # source.
    assert [acked[offset] for offset in by_offset] == [record[2] or b"" for record in copied]
    assert len(kept) < len(acked)
    assert bounds(target.bootstrap, topic) == bounds(source.bootstrap, topic)


def test_a_record_that_a_late_copier_put_in_the_wrong_place_is_found_and_stops_the_partition(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("late")
    make_topic(source, topic, config={"cleanup.policy": "compact"})
    acked = write_keyed(source.bootstrap, topic, 50)

    async def scene() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.mirror(topic)
            async with engine_running(world):
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
            link = world.log.state.link(world.link)
            assert link is not None and link.copy is not None
            async with ClusterClient(settings_of("target", target.bootstrap)) as client:
                tail = await read_tail(client, topic, 0, link.copy.data_id)
                late = one_record_batch(
                    b"often-1",
                    b"not what the source holds there",
                    timestamp=int(time.time() * 1000),
                    producer_id=link.copy.data_id,
                    epoch=link.copy.data_epoch,
                    sequence=tail.sequence,
                )
                answer = await append_alone(client, topic, 0, late, purpose="test")
                assert (answer.error, answer.base_offset) == (0, len(acked))
            await asyncio.to_thread(write_keyed, source.bootstrap, topic, 50, first=50)
            async with engine_running(world, "m2"):
                told = await world.until(topic, lambda told: bool(told[0].problem), "the partition to stop")
                assert told[0].problem.startswith(f"diverged: {topic}-0 holds another record at offset {len(acked)}")
                assert bounds(target.bootstrap, topic)[0][1] == len(acked) + 1

    asyncio.run(scene())
