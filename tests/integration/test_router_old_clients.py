"""Clients of an old library at a router, and a client that the router cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kmigrate.cli.commands.probes import probe_cluster
from kmigrate.model.presences import KeptOutClient, RouterPresence, ServedApi
from kmigrate.model.state import State
from kmigrate.sandbox.checker import check
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.traffic import Traffic
from tests.hostile.requests import request
from tests.integration.migration import wait_until
from tests.integration.router_world import RouterProcess, World, link_between, quietly, router, settings_of
from tests.integration.test_router_rubbish import CLOSED, Wire

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
_WHY = "it sends Produce version 2, and the router takes 3 to 11"


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
            wire.send(request(0, 2, b"", client=b"too-old"))
            assert wire.answer() == CLOSED


async def _is_named(world: World, target: KafkaCluster) -> None:
    """Check that the router's report and doctor name the client once, and that the report has figures of the others."""
    expected = KeptOutClient("too-old", "127.0.0.1", "", _WHY)

    def told(_: State) -> tuple[ServedApi, ...] | None:
        (presence,) = world.log.alive(RouterPresence)
        return presence.served if presence.kept_out == (expected,) else None

    served = {each.api: each for each in await world.log.wait(told, 15, "the router to name the client")}
    assert served["produce"].answers > 10 and served["produce"].errors == {}  # a request holds several records
    findings = await probe_cluster(settings_of("target", target.bootstrap))
    assert [each.what for each in findings if each.ref == "client-kept-out"] == [f"router r1: {expected.text}"]


def test_an_old_library_works_and_a_client_that_cannot_come_is_named(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    topic = unique_name("plain")
    make_topic(target, topic, partitions=2)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                await quietly(_works, running, target, topic, tmp_path)
                await quietly(_cannot_come, running)
                await _is_named(world, target)

    asyncio.run(scenario())
