"""What clients may cost a router, on real brokers: who does not read, says nothing or comes too often ends alone."""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable

from confluent_kafka import Producer

from kmigrate.sandbox.kafka import KafkaCluster
from tests.hostile.requests import request
from tests.integration.router_world import RouterProcess, Writer, beside_a_router
from tests.integration.test_router_rubbish import CLOSED, Wire, rss_mb, unharmed, versions

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

_MB = 1 << 20


def fetch(topic: str, most: int) -> bytes:
    body = struct.pack(">iiiib", -1, 500, 1, most, 0)
    body += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">iiqi", 1, 0, 0, most)
    return request(1, 4, body)


def _filled(bootstrap: str, topic: str, megabytes: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.kbytes": 200_000})
    for _ in range(megabytes):
        producer.produce(topic, os.urandom(900_000), partition=0)
    assert producer.flush(60) == 0


def test_consumers_that_never_read_are_ended_before_they_fill_the_memory_of_all(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    big, calm = unique_name("big"), unique_name("calm")
    make_topic(target, big)
    make_topic(target, calm, partitions=3)

    def attack(running: RouterProcess) -> None:
        _filled(target.bootstrap, big, 30)
        # Thirty times thirty megabytes are asked for; the buffers that are kept for the next frames are not theirs.
        with unharmed(running, calm, 300), contextlib.ExitStack() as stack:
            before = rss_mb(running)
            deaf = [stack.enter_context(Wire(running.bootstrap)) for _ in range(30)]
            for wire in deaf:
                wire.send(fetch(big, 30 * _MB) * 3)
            with Writer(running.bootstrap, calm, "other") as other:
                other.until(500)
            deadline = time.monotonic() + 15
            while (now := rss_mb(running)) > before + 300:
                assert time.monotonic() < deadline, f"{now - before:.0f} MB are kept for clients that do not read"
                time.sleep(0.1)

    beside_a_router(source, target, unique_name("link"), attack, max_buffered=64 * _MB)


def test_who_says_nothing_or_comes_too_often_is_closed(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    calm = unique_name("calm")
    make_topic(target, calm, partitions=3)

    def look(running: RouterProcess) -> None:
        with Writer(running.bootstrap, calm, "w") as writer:
            writer.until(50)
            with contextlib.ExitStack() as stack:
                silent, half, used = (stack.enter_context(Wire(running.bootstrap)) for _ in range(3))
                half.send(versions()[:9])
                used.send(versions())
                assert used.answer() != CLOSED
                assert [wire.answer() for wire in (silent, half, used)] == [CLOSED] * 3
                crowd = [stack.enter_context(Wire(running.bootstrap)) for _ in range(20)]
                for wire in crowd:
                    wire.send(versions())
                answered = [wire.answer() != CLOSED for wire in crowd]
                assert any(answered)
                assert not all(answered)
            writer.until(writer.acked + 50)
        assert writer.errors == []

    beside_a_router(source, target, unique_name("link"), look, max_idle_s=1.0, max_per_address=12)
