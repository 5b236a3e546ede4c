"""Limits on the clients' cost for a router, on real brokers.

A client that does not read, sends nothing, or connects too often loses only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from kmigrate.model.presences import RouterPresence
from kmigrate.model.state import State
from kmigrate.sandbox.kafka import KafkaCluster
from tests.hostile.requests import request
from tests.integration.router_world import (
    RouterProcess,
    Writer,
    beside_a_router,
    link_between,
    quietly,
    router,
    values,
)
from tests.integration.test_router_rubbish import CLOSED, Wire, batch, produce, rss_mb, unharmed, versions

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
        # The clients ask for thirty times thirty megabytes; the bound leaves room for the buffers of the next frames.
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


def test_requests_beyond_their_length_and_connections_beyond_their_number_end_alone(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    """The bounds are small.

    The last request and the last connection within them are accepted, the first beyond them is closed.
    """
    calm, most, connections = unique_name("calm"), 300_000, 12
    make_topic(target, calm, partitions=3)
    told: list[str] = []
    closed: list[int] = []

    def hear(error: Any, _: Any) -> None:
        told.append(error.name() if error else "")

    def look(running: RouterProcess) -> None:
        with unharmed(running, calm):
            around = len(produce((calm, 0, bytes(batch(b"v" * most))))) - 4 - most
            for length, stored in ((most, True), (most + 1, False)):
                whole = produce((calm, 0, bytes(batch(b"v" * (length - around)))))
                assert struct.unpack_from(">i", whole) == (length,)
                with Wire(running.bootstrap) as wire:
                    wire.send(whole)
                    assert (wire.answer() != CLOSED) is stored
            producer = Producer(
                {"bootstrap.servers": running.bootstrap, "message.timeout.ms": 2000, "log_level": 0}, logger=None
            )
            for size in (most - 1000, most):
                producer.produce(calm, b"x" * size, partition=1, on_delivery=hear)
                assert producer.flush(10) == 0
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(Wire(running.bootstrap)) for _ in range(2 * connections)]
            for wire in crowd:
                wire.send(versions())
            answered = [wire.answer() != CLOSED for wire in crowd]
            assert sum(answered) in (connections - 1, connections), "the writer's last connection may still be ending"
            closed.append(answered.count(False))
        with Writer(running.bootstrap, calm, "later") as later:
            later.until(20)
        assert later.errors == []

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target, max_frame=most, max_connections=connections) as running:
                await quietly(look, running)

                def counted(_: State) -> int | None:
                    (presence,) = world.log.alive(RouterPresence)
                    ended = presence.limits.ended if presence.limits is not None else {}
                    return ended["connections"].count if "connections" in ended else None

                assert await world.log.wait(counted, 15, "the router to say whom it closed") == closed[0]

    asyncio.run(scenario())
    assert told == ["", "_MSG_TIMED_OUT"]
    assert [len(value) for value in values(target.bootstrap, calm)[1] if value.startswith(b"x")] == [most - 1000]


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
