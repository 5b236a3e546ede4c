"""Clients of an old library at a router, and a client that the router cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kmigrate.cli.commands.probes import probe_cluster
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import KeptOutClient, RouterPresence, ServedApi
from kmigrate.model.routes import DIRECT_LIMIT
from kmigrate.model.state import State
from kmigrate.sandbox.checker import check
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.traffic import Traffic
from tests.hostile.requests import request
from tests.integration.migration import wait_until
from tests.integration.router_world import (
    RouterProcess,
    World,
    Writer,
    link_between,
    quietly,
    router,
    settings_of,
    values,
)
from tests.integration.test_router_rubbish import CLOSED, Wire

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
_BEFORE_BATCHES = {"0.8.2": "none", "0.9.0": "gzip", "0.10.0": "snappy"}
"""Broker versions whose clients send message sets, in Produce 0, 1 and 2, with a codec for each."""
_AT_START = 10
"""Values of a partition that a writer may send before the writer knows the partition's leader."""
_WHY = "it sends Fetch version 3, and the router takes 4 to 18"


def _works(running: RouterProcess, target: KafkaCluster, topic: str, folder: Path) -> None:
    """Check that kafka-python 2.0.2, which asks for metadata in version 0 and 1, writes, reads and commits."""
    specs: list[ClientSpec] = [
        ProducerSpec("p-old", "kafka-python-2", topic, 100.0, idempotent=False),
        ConsumerSpec("c-old", "kafka-python-2", f"of-{topic}", (topic,)),
    ]
    traffic = Traffic.create(folder / "traffic", specs, tied=True)
    try:
        traffic.start(running.bootstrap)

        def commits() -> bool:
            told = [path.read_bytes() for path in traffic.folder.glob("c-old.*.jsonl")]
            return sum(each.count(b'"type":"ok","f":"commit"') for each in told) >= 2

        wait_until(commits, 40, "the old consumer to commit")
        traffic.stop()
    finally:
        traffic.kill("all")
    history = folder / "history.jsonl"
    traffic.write_history(history)
    verdict = check(read_history(history), read_topic(target.bootstrap, topic), topics=(topic,))
    assert verdict.acked > 50
    assert verdict.clean and verdict.count("group_rereads") == 0, verdict.named


def _cannot_come(running: RouterProcess) -> None:
    """Let a client try again and again with a request that Kafka 4 does not take either."""
    for _ in range(3):
        with Wire(running.bootstrap) as wire:
            wire.send(request(1, 3, b"", client=b"too-old"))
            assert wire.answer() == CLOSED


async def _is_counted(world: World) -> None:
    """Check that a router's report has figures of the writes that clients have just made."""

    def counted(_: State) -> ServedApi | None:
        found = [each for router in world.log.alive(RouterPresence) for each in router.served if each.api == "produce"]
        return next((each for each in found if each.answers > 10), None)  # a request holds several records

    assert (await world.log.wait(counted, 15, "the router to count the writes")).errors == {}


async def _is_named(world: World, target: KafkaCluster) -> None:
    """Check that the router's report and doctor name the client once."""
    expected = KeptOutClient("too-old", "127.0.0.1", "", _WHY)

    def named(_: State) -> bool | None:
        return any(router.kept_out == (expected,) for router in world.log.alive(RouterPresence)) or None

    await world.log.wait(named, 15, "the router to name the client")
    findings = await probe_cluster(settings_of("target", target.bootstrap))
    assert [each.what for each in findings if each.ref == "client-kept-out"] == [f"router r1: {expected.text}"]


async def _writes_before_batches(world: World, running: RouterProcess, topic: str) -> None:
    """Check that writers of Produce 0, 1 and 2 pass a fence and a flip: nothing is lost, doubled or reordered."""
    await world.put(topic, TopicPhase.MIRRORING)
    await world.routers_apply()
    writers = [_writer(running, topic, *old).__enter__() for old in _BEFORE_BATCHES.items()]
    for writer in writers:
        await quietly(writer.until, 50)
    fenced = await world.fence(topic)
    acks = await world.drained(topic, fenced.fence_epoch)
    at_source = await quietly(values, world.source.bootstrap, topic)
    await world.flip(topic, fenced.fence_epoch, acks)
    for writer in writers:
        await quietly(writer.until, writer.acked + 50)
        await quietly(writer.finish)
    assert await quietly(values, world.source.bootstrap, topic) == at_source, "nothing came after the fence"
    at_target = await quietly(values, world.target.bootstrap, topic)
    for writer in writers:
        assert writer.errors == []
        for partition, sent in writer.sent.items():
            stored = [*at_source[partition], *at_target[partition]]
            assert [value for value in stored if value.startswith(writer.name.encode() + b"-")] == sent
    assert min(await world.source_producers(topic)) >= DIRECT_LIMIT, "nobody takes them for direct writers"


def _writer(running: RouterProcess, topic: str, version: str, codec: str) -> Writer:
    """Return a librdkafka producer that takes its brokers for brokers of an old version."""
    old = {"api.version.request": False, "broker.version.fallback": version, "compression.codec": codec}
    return Writer(running.bootstrap, topic, version, {**old, "enable.idempotence": False, "max.in.flight": 1})


def test_an_old_library_works_and_a_client_that_cannot_come_is_named(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    topic, mirrored = unique_name("plain"), unique_name("mirrored")
    make_topic(target, topic, partitions=2)
    for cluster in (source, target):
        make_topic(cluster, mirrored, partitions=3)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                await quietly(_works, running, target, topic, tmp_path)
                await _is_counted(world)
                await quietly(_cannot_come, running)
                await _is_named(world, target)
                await _writes_before_batches(world, running, mirrored)

    asyncio.run(scenario())
