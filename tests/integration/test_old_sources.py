"""A source of Kafka 2.8.2 with ZooKeeper: message formats 0 and 1, and everything else that must work there."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from kmigrate.cli.commands.probes import probe_cluster
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.transactions import open_transactions
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.records import CLOSED_SIZE
from kmigrate.sandbox.kafka import ClusterSpec, KafkaCluster
from kmigrate.workflow import verbs
from kmigrate.workflow.base.connections import Connections
from tests.fakes.proposals import run_verb
from tests.integration.java_clients import java_command
from tests.integration.migration import Migration, usual_clients, wait_until
from tests.integration.mirror_world import (
    Seen,
    assert_identical,
    bounds,
    engine_running,
    link_between,
    produce,
    read_all,
    settings_of,
    transactions,
)
from tests.integration.test_direct_writers import FILLING, delivered, in_transaction, transactional, values
from tests.integration.test_mirror_batches import COMPACTED, wait_until_cleaned

MakeTopic = Callable[..., None]
SetConfig = Callable[[KafkaCluster, str, dict[str, str]], None]
Names = Callable[[str], str]

OLD_VERSION = "2.8.2"
MAGIC_0, MAGIC_1 = "0.9.0", "0.10.0"
CODECS = ("none", "gzip", "snappy", "lz4")
FOR_EVER = {"retention.ms": "-1"}
NO_TIME = ((0, 0), (1, -1))
"""Signs of a record without a time in librdkafka: from magic 0, and from magic 2 with time −1."""


@pytest.fixture(scope="module")
def old_source() -> Iterator[KafkaCluster]:
    root = Path(tempfile.mkdtemp(prefix="kmigrate-test-"))
    busy_cleaner = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "100"}
    cluster = KafkaCluster.create(ClusterSpec("old", OLD_VERSION, config=busy_cleaner), root)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root, ignore_errors=True)


def write(bootstrap: str, topic: str, codec: str, *, partition: int = 0, first: int = 0) -> None:
    """Write 200 records with and without key and value, some dozens per batch, at times that differ within a batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 30})
    for number in range(first, first + 200):
        producer.produce(
            topic,
            None if number % 7 == 3 else f"value-{number}-{'x' * (number % 90)}".encode(),
            None if number % 5 == 2 else f"key-{number}".encode(),
            partition,
            timestamp=1_500_000_000_000 + (number * 7919) % 5_000,
        )
        if number % 90 == 89:
            producer.flush(30)
    assert producer.flush(30) == 0


def write_keyed(bootstrap: str, topic: str, codec: str) -> None:
    """Write few keys and some tombstones, a dozen records per batch, for a log cleaner to thin."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "batch.num.messages": 12})
    for number in range(2_000):
        key = f"once-{number}" if number % 5 == 0 else f"often-{number % 13}"
        producer.produce(topic, None if number % 11 == 0 else b"v" * 60 + str(number).encode(), key.encode())
        if number % 500 == 0:
            producer.flush(30)
    assert producer.flush(30) == 0


def read_both(source: KafkaCluster, target: KafkaCluster, *topics: str) -> Iterator[tuple[list[Seen], list[Seen]]]:
    """Yield the records that readers of the source and of the target get, partition by partition."""
    with ThreadPoolExecutor() as threads:
        asked = [(cluster.bootstrap, topic) for topic in topics for cluster in (source, target)]
        read = list(threads.map(lambda each: read_all(*each), asked))
    for theirs, ours in zip(read[::2], read[1::2], strict=True):
        assert theirs.keys() == ours.keys()
        yield from ((theirs[partition], ours[partition]) for partition in theirs)


def told(records: list[Seen]) -> list[tuple[int, bytes | None, bytes | None, object, object]]:
    """Return the records with the same mark for each missing time, and the same mark for missing headers."""
    return [(*r[:3], r[3] or [], "none" if r[4] in NO_TIME else r[4][1]) for r in records]


def magics(cluster: KafkaCluster, topic: str) -> set[str]:
    """Return the message formats in a source partition's log, as the broker's own DumpLogSegments reads them."""
    logs = sorted((cluster.brokers[1].folder / "data" / f"{topic}-0").glob("*.log"))
    words = ("--files", ",".join(map(str, logs)))
    command = java_command("kafka.tools.DumpLogSegments", *words, jars="kafka", version=OLD_VERSION)
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return set(re.findall(r"\bmagic: (\d)", dumped))


def takes(bootstrap: str, topic: str) -> bool:
    """Tell whether the topic stores a record now, or refuses the record as too large."""
    told: list[bool] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"probe", partition=0, on_delivery=lambda error, _: told.append(error is None))
    producer.flush(10)
    return told == [True]


def wait_until_in_force(bootstrap: str, topic: str, *, closed: bool) -> None:
    wait_until(lambda: takes(bootstrap, topic) is not closed, 30, "a config to be in force")


def read_by_java(cluster: KafkaCluster, topic: str, count: int) -> list[str]:
    """Return a line per record from Java's console consumer: time, partition, offset, key and value."""
    command = java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", cluster.bootstrap,
        "--topic", topic, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "20000",
    )  # fmt: skip
    for name in ("timestamp", "partition", "offset", "key", "value"):
        command += ["--formatter-property", f"print.{name}=true"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line.replace("NO_TIMESTAMP", "CreateTime:-1") for line in ran.stdout.splitlines() if "Offset:" in line]
    assert len(lines) == count, ran.stderr
    return sorted(lines)


def mirror_all(source: KafkaCluster, target: KafkaCluster, link: str, topics: list[str]) -> None:
    """Mirror these topics to their ends, and check that no topic has a problem."""

    async def scene() -> None:
        async with link_between(source, target, link) as world, engine_running(world):
            for topic in topics:
                await world.mirror(topic)
            for topic in topics:
                await world.in_phase(topic, TopicPhase.MIRRORING)
                await world.caught_up(topic)
            assert not [p.problem for topic in topics for p in world.progress(topic).values() if p.problem]

    asyncio.run(scene())


@dataclass(frozen=True)
class Copied:
    """Topics of old formats, all mirrored to their ends."""

    format_0: str
    format_1: str
    stamped: str
    raised: str
    thinned: tuple[str, str]
    inside: tuple[str, str]


@pytest.fixture(scope="module")
def copied(
    old_source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, set_topic_config: SetConfig
) -> Copied:
    """Write and mirror all topics at once: starting processes and waiting for the cleaner take most of the time."""
    era = f"old-{uuid4().hex[:6]}"
    names = Copied(
        f"{era}-format-0",
        f"{era}-format-1",
        f"{era}-stamped",
        f"{era}-raised",
        thinned=(f"{era}-thinned-0", f"{era}-thinned-1"),
        inside=(f"{era}-inside-0", f"{era}-inside-1"),
    )
    at = old_source.bootstrap
    for topic, codec, version in zip(names.thinned, ("snappy", "none"), (MAGIC_0, MAGIC_1), strict=True):
        make_topic(old_source, topic, config={**COMPACTED, "message.format.version": version})
        write_keyed(at, topic, codec)
    formats = {
        names.format_0: {"message.format.version": MAGIC_0},
        names.format_1: {"message.format.version": MAGIC_1},
        names.stamped: {"message.format.version": MAGIC_1, "message.timestamp.type": "LogAppendTime"},
    }
    for topic, config in formats.items():
        make_topic(old_source, topic, len(CODECS), config={**config, **FOR_EVER})
        for partition, codec in enumerate(CODECS):
            write(at, topic, codec, partition=partition)
    make_topic(old_source, names.raised, config={"message.format.version": MAGIC_0, **FOR_EVER})
    write(at, names.raised, "gzip")
    make_topic(old_source, f"{era}-probe")
    for number, version in enumerate((MAGIC_1, "2.8"), 1):
        set_topic_config(old_source, names.raised, {"message.format.version": version})
        # A broker applies config changes in order: when the later change is in force, the earlier change is, too.
        closed = number == 1
        set_topic_config(old_source, f"{era}-probe", {"max.message.bytes": "1" if closed else "1000000"})
        wait_until_in_force(at, f"{era}-probe", closed=closed)
        write(at, names.raised, "none", first=200 * number)
    for topic, version in zip(names.inside, (MAGIC_0, MAGIC_1), strict=True):
        make_topic(old_source, topic, config={"message.format.version": version, **FOR_EVER})
        write(at, topic, "gzip")
        admin = AdminClient({"bootstrap.servers": at})
        for deleted in admin.delete_records([TopicPartition(topic, 0, 47)]).values():
            deleted.result(30)
    wait_until_cleaned(at, names.thinned, 1_500)
    mirror_all(old_source, target, f"{era}-link", [*formats, names.raised, *names.thinned, *names.inside])
    return names


def test_messages_of_formats_0_and_1_in_every_codec_come_out_as_their_readers_saw_them(
    old_source: KafkaCluster, target: KafkaCluster, copied: Copied
) -> None:
    for topic in (copied.format_0, copied.format_1, copied.stamped):
        for wanted, found in read_both(old_source, target, topic):
            assert told(found) == told(wanted)
            assert len(found) == 200
            assert {row[4] == "none" for row in told(wanted)} == {topic == copied.format_0}
    with ThreadPoolExecutor() as threads:
        theirs, ours = threads.map(lambda each: read_by_java(each, copied.format_0, 800), (old_source, target))
    assert ours == theirs
    assert [magics(old_source, topic) for topic in (copied.format_0, copied.stamped)] == [{"0"}, {"1"}]


def test_a_log_whose_format_was_raised_twice_is_one_log_on_the_target(
    old_source: KafkaCluster, target: KafkaCluster, copied: Copied
) -> None:
    assert magics(old_source, copied.raised) == {"0", "1", "2"}
    ((wanted, found),) = read_both(old_source, target, copied.raised)
    assert told(found) == told(wanted)
    assert len(found) == 600


def test_compacted_old_logs_come_out_with_their_holes(
    old_source: KafkaCluster, target: KafkaCluster, copied: Copied
) -> None:
    for wanted, found in read_both(old_source, target, *copied.thinned):
        assert told(found) == told(wanted)
        assert 200 < len(found) < 1_500


def test_a_mirror_begins_inside_a_compressed_message(
    old_source: KafkaCluster, target: KafkaCluster, copied: Copied
) -> None:
    for wanted, found in read_both(old_source, target, *copied.inside):
        # Another test kills this broker, and a killed broker may forget the log's start (W6).
        assert told(found) == [each for each in told(wanted) if each[0] >= 47]
        assert [found[0][0], len(found)] == [47, 153]


def test_transactions_of_a_2_8_source_are_copied_through_a_kill_of_its_broker(
    old_source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic = unique_name("transactions")
    make_topic(old_source, topic, 2)
    produce(old_source.bootstrap, topic, 500, partitions=2)
    transactions(old_source.bootstrap, topic, 20, name=unique_name("txn"), partitions=2)
    writer = Producer({"bootstrap.servers": old_source.bootstrap, "transactional.id": unique_name("slow")})

    async def scene() -> None:
        async with link_between(old_source, target, unique_name("link")) as world, engine_running(world):
            await world.mirror(topic)
            await world.in_phase(topic, TopicPhase.MIRRORING)
            await asyncio.to_thread(old_source.restart, 1)
            await asyncio.to_thread(old_source.wait_ready)
            await asyncio.to_thread(writer.init_transactions, 30)
            await asyncio.to_thread(produce, old_source.bootstrap, topic, 500, partitions=2, first=500)
            await world.caught_up(topic)
            assert_identical(world, topic, at_least=1_080)
            writer.begin_transaction()
            writer.produce(topic, b"not yet", partition=0)
            assert await asyncio.to_thread(writer.flush, 30) == 0
            async with ClusterClient(settings_of("source", old_source.bootstrap)) as client:
                end = bounds(old_source.bootstrap, topic)[0][1]
                waits = (await open_transactions(client, [(topic, 0), (topic, 1)])).pop((topic, 0))
                assert (waits.offset, waits.transactional_id, waits.hanging) == (end - 1, "", False)
                assert f"of producer {waits.producer_id}, open for at least " in waits.text(waits.last_write_ms)
            await asyncio.to_thread(writer.abort_transaction, 30)
            await world.caught_up(topic)

    asyncio.run(scene())


def test_a_2_8_source_that_is_closed_refuses_late_writers_and_ends_every_transaction(
    old_source: KafkaCluster, make_topic: MakeTopic, set_topic_config: SetConfig, unique_name: Names
) -> None:
    """A 2.8 source's markers are as small:

    a transaction from before the topic was closed is committed, a late transaction is aborted.
    """
    closed, free, at = unique_name("closed"), unique_name("free"), old_source.bootstrap
    for topic in (closed, free):
        make_topic(old_source, topic)
    begun = transactional(at, f"begun-{closed}")
    begun.begin_transaction()
    begun.produce(closed, f"begun {FILLING}", partition=0)
    assert begun.flush(20) == 0
    set_topic_config(old_source, closed, {"max.message.bytes": str(CLOSED_SIZE)})
    wait_until(lambda: delivered(at, closed, f"plain {FILLING}") == "MSG_SIZE_TOO_LARGE", 20, "the topic to be closed")
    for config in ({"enable.idempotence": True}, {"acks": "1"}, {"acks": "1", "compression.type": "gzip"}):
        assert delivered(at, closed, FILLING, **config) == "MSG_SIZE_TOO_LARGE"
    begun.commit_transaction(30)
    late = transactional(at, f"late-{closed}")
    late.begin_transaction()
    late.produce(free, f"late {FILLING}", partition=0)
    late.produce(closed, f"late {FILLING}", partition=0)
    late.flush(20)
    late.abort_transaction(30)
    for number, producer in enumerate((begun, late)):
        in_transaction(producer, free, number)  # Neither id is lost: the coordinator has ended its transaction.
    assert [value for value in values(at, closed) if not value.startswith("plain")] == [f"begun {FILLING}"]
    assert values(at, free) == ["0", "1"]


def test_what_a_2_8_source_lacks_and_what_an_old_topic_means_is_said_beforehand(
    old_source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    known = {"source": settings_of("source", old_source.bootstrap), "target": settings_of("target", target.bootstrap)}
    old, new = unique_name("old"), unique_name("new")
    make_topic(old_source, old, config={"message.format.version": MAGIC_1})
    make_topic(old_source, new)

    async def scene() -> None:
        lacks = {f.ref for f in await probe_cluster(known["source"]) if f.level == "warn"}
        assert lacks == {"describe-transactions", "kip-848", "short-memory"}
        link = unique_name("link")
        async with (
            link_between(old_source, target, link),
            await Connections.open(known.__getitem__, "target") as connections,
        ):
            plan = await run_verb(verbs.mirror_topics(connections, link, [old, new], "earliest", "auto"), plan=True)
        (found,) = plan.findings
        assert (found.level, found.ref) == ("warn", "old-message-format")
        assert found.what.startswith(f"topic {old} is written in message format 0.10")

    asyncio.run(scene())


@pytest.mark.soak
def test_a_live_migration_from_2_8_ends_clean(
    old_source: KafkaCluster, own_cluster: Callable[..., KafkaCluster], unique_name: Names, tmp_path: Path
) -> None:
    topic, group = unique_name("orders"), unique_name("billing")
    settings = "[promote]\nfence_timeout_s = 30.0\nstraggler_window_s = 3.0\n"
    run = Migration(old_source, own_cluster(), tmp_path / "run", settings)
    try:
        run.make_topic(
            topic, 3, config={"message.timestamp.difference.max.ms": "7200000", "max.message.bytes": "500000"}
        )
        traffic = run.run_clients(usual_clients(topic, group))
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        run.does("topic", "mirror", topic)
        run.does("group", "mirror", group)
        traffic.roll("all", run.routers)
        run.does("group", "promote", group, "--yes")
        run.does("promote", topic, "--yes")
        time.sleep(2)
        status = run.does("status")
        assert [(t["phase"], t["offsets"]) for t in status["topics"]] == [("promoted", "identical")], status
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = AdminClient({"bootstrap.servers": run.target.bootstrap})
        configs = admin.describe_configs([resource])[resource].result(30)
        own = {k: e.value for k, e in configs.items() if e.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}
        limits = {f"message.timestamp.{which}.max.ms": "7200000" for which in ("after", "before")}
        assert own == {**limits, "max.message.bytes": "500000"}
        verdict = run.judge(topic)
        assert verdict.clean, f"{verdict.named}\n{run.logs()}"
        assert verdict.acked > 500
    finally:
        run.stop()
