"""Large Fetch answers of real brokers through the router: every byte, at the reader's pace, or the connection's end.

Values are random, so that no value can replace another. The written values, and a broker's direct answer to the same
bytes, are the judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.integration.java_clients import SOURCES, JavaProgram, JavaReader
from tests.integration.migration import Migration, wait_until
from tests.integration.router_world import RouterProcess, beside_a_router, link_between, quietly, router
from tests.integration.test_metrics import engine
from tests.integration.test_router_limits import fetch
from tests.integration.test_router_rubbish import CLOSED, Wire, rss_mb

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

_MB = 1 << 20
PARTITIONS = 6


def _written(bootstrap: str, topic: str, megabytes: int, partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """Write that many megabytes of random text to each partition, and return the values."""
    out: dict[int, list[bytes]] = {}
    ordered = {"enable.idempotence": True}  # A retry, as after a broker's start, must not change the order.
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 400_000, **ordered})
    for partition in range(partitions):
        out[partition] = [os.urandom(8 << 10).hex().encode() for _ in range(megabytes << 6)]
        for value in out[partition]:
            producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0
    return out


def _read(bootstrap: str, topic: str, count: int, partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """Return the values as librdkafka reads them in large answers."""
    large = {"fetch.message.max.bytes": 8 * _MB, "fetch.max.bytes": 40 * _MB, "check.crcs": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", **large})
    out: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        deadline = time.monotonic() + 60
        while sum(map(len, out.values())) < count:
            assert time.monotonic() < deadline, f"{[len(read) for read in out.values()]} of {count}"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                out[partition].append(value)
        return out
    finally:
        consumer.close()


def test_two_libraries_read_what_was_written_byte_for_byte(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    topic = unique_name("large")
    make_topic(target, topic, partitions=PARTITIONS)
    sent = _written(target.bootstrap, topic, 4)
    count = sum(map(len, sent.values()))

    def look(running: RouterProcess) -> None:
        assert _read(running.bootstrap, topic, count) == sent
        with JavaReader(tmp_path, "reader") as java:
            java.start(running.bootstrap, topic, unique_name("g"))
            wait_until(lambda: java.said.count("record_data") >= count, 60, "Java to read")
            time.sleep(0.5)
            read: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
            for partition, _, value in java.records:
                read[partition].append(value)
            assert read == sent
            assert java.complaints == []

    beside_a_router(source, target, unique_name("link"), look)


def test_a_slow_reader_gets_what_the_broker_answers_and_little_is_kept_for_it(
    source: KafkaCluster, own_cluster: Callable[..., KafkaCluster], make_topic: MakeTopic, unique_name: Names
) -> None:
    """No topic of this target is being aligned, because a router asks for less while a topic is."""
    topic, target = unique_name("large"), own_cluster()
    make_topic(target, topic, partitions=1)
    _written(target.bootstrap, topic, 60, partitions=1)
    with Wire(target.bootstrap) as wire:
        wire.send(fetch(topic, 50 * _MB))
        wanted = wire.answer()

    def look(running: RouterProcess) -> None:
        with Wire(running.bootstrap) as wire:
            before = rss_mb(running)
            wire.send(fetch(topic, 50 * _MB))
            time.sleep(1)
            assert rss_mb(running) < before + 25
            got = bytearray()
            while len(got) < len(wanted) + 4:
                got += wire.socket.recv(3 * _MB)
                time.sleep(0.02)
            assert struct.unpack_from(">i", got) == (len(wanted),)
            assert got[4:] == wanted

    beside_a_router(source, target, unique_name("link"), look)


def test_a_broker_that_dies_within_an_answer_ends_its_readers_connection(tmp_path: Path, unique_name: Names) -> None:
    topic = unique_name("large")

    def look(running: RouterProcess, target: KafkaCluster) -> None:
        create_topics(target.client(), [NewTopic(topic, 1, 1)])
        sent = _written(target.bootstrap, topic, 30, 1)
        with Wire(running.bootstrap) as wire, Wire(running.bootstrap) as bystander:
            wire.send(fetch(topic, 30 * _MB))
            got = bytearray()
            while len(got) < _MB and (more := wire.socket.recv(_MB)):
                got += more
            (size,) = struct.unpack_from(">i", got)
            assert size > 25 * _MB, got[:100].hex()
            target.kill(1)
            with contextlib.suppress(ConnectionResetError):
                while more := wire.socket.recv(4 * _MB):
                    got += more
            assert _MB <= len(got) < size, "nothing was made up for what was missing"
            bystander.send(fetch(topic, 30 * _MB))
            assert bystander.answer() == CLOSED
        target.restart(1)
        target.wait_ready()
        assert _read(running.bootstrap, topic, len(sent[0]), partitions=1) == sent

    async def scenario() -> None:
        with running_clusters(tmp_path, *source_and_target()) as (source, target):
            async with link_between(source, target, unique_name("link")):
                with router("r1", target) as running:
                    await quietly(look, running, target)

    asyncio.run(scenario())


def test_java_reads_on_and_in_leaps_what_was_asked_ahead_of_it_and_sees_one_session(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    if not (find_java().home / "bin" / "javac").is_file():
        pytest.fail("this test needs a JDK")
    topic, partitions, each = unique_name("large"), 4, 1500
    make_topic(target, topic, partitions=partitions)
    sender = Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True})
    for offset in range(each):
        for partition in range(partitions):
            sender.produce(topic, f"{partition}-{offset}:".encode().ljust(8 << 10, b"x"), partition=partition)
        sender.poll(0)
    assert sender.flush(60) == 0
    run = Migration(source, target, tmp_path / "run")
    port = free_ports(1)[0]
    with engine(run, "router", "--port", str(port), "--name", unique_name("r")) as watched:
        for seed, isolation in enumerate(("read_uncommitted", "read_committed")):
            with JavaProgram(tmp_path, isolation, level="info") as java:
                words = (f"127.0.0.1:{port}", topic, str(partitions), isolation, str(seed), "20")
                java.run(SOURCES / "ReadInLeaps.java", *words)
                assert java.ended(90) == 0, java.said[-2000:]
                assert f"read {partitions * each} of " in java.said
                assert java.complaints == []
                assert "FETCH_SESSION" not in java.said, java.said[-2000:]
        seen = watched.scrape()
        assert seen.value("kmigrate_router_read_ahead_answers_total", fate="used") > 10
        assert seen.value("kmigrate_router_read_ahead_answers_total", fate="dropped") > 0
