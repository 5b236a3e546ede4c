"""Clients leave a router without restart or error, and the router may stop: librdkafka's later reads are the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.net.clock import now_ms
from kmigrate.sandbox.checker import check
from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.history import read_history
from kmigrate.sandbox.kafka import SOURCE_VERSION, KafkaCluster
from kmigrate.sandbox.traffic import Traffic
from kmigrate.workflow import verbs
from kmigrate.workflow.base.bootstraps import Leads, ask_bootstraps
from kmigrate.workflow.base.connections import Connections
from tests.fakes.proposals import run_verb
from tests.integration.migration import wait_until
from tests.integration.router_world import RouterProcess, World, link_between, quietly, router, settings_of

Names = Callable[[str], str]
MakeTopic = Callable[..., None]
OwnCluster = Callable[..., KafkaCluster]


def _told(bootstrap: str) -> dict[int, str]:
    """Return the brokers that librdkafka gets from an address."""
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).brokers
    return {node: f"{broker.host}:{broker.port}" for node, broker in brokers.items()}


def _grown(traffic: Traffic) -> None:
    """Wait until every client has added to its history."""
    before = {path: path.stat().st_size for path in traffic.histories()}
    wait_until(lambda: all(path.stat().st_size > size for path, size in before.items()), 30, "every client to go on")


def test_clients_leave_the_router_and_it_may_go(
    own_cluster: OwnCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    """Clients of all kinds leave a router, which is then stopped.

    The clients are producers of two families, a transactional producer and a group of two. The test has clusters of its
    own: a link that is not finished keeps the clients of all links.
    """
    source, target = own_cluster(version=SOURCE_VERSION), own_cluster()
    topic, group, link = unique_name("leave"), unique_name("stay"), unique_name("link")
    make_topic(target, topic, partitions=3)
    traffic = Traffic.create(
        tmp_path / "traffic",
        [
            ProducerSpec("p-rd", "librdkafka", topic, 150.0),
            ProducerSpec("p-aio", "aiokafka", topic, 150.0),
            TransactionalSpec("p-tx", topic, 50.0),
            ConsumerSpec("c-rd", "librdkafka", group, (topic,)),
            ConsumerSpec("c-aio", "aiokafka", group, (topic,), {"metadata_max_age_ms": 3000}),
        ],
        tied=True,
    )

    async def leave(world: World, running: RouterProcess) -> None:
        async with await Connections.open(lambda name: settings_of(name, target.bootstrap), "target") as connections:
            real = set((await quietly(_told, target.bootstrap)).values())
            assert not real & set((await quietly(_told, running.bootstrap)).values())
            proposal = await verbs.finish_link(connections, link, [], 0.0)
            assert [each.leads for each in proposal.bootstraps] == [Leads.ROUTER]
            await proposal.carry_out()
            await verbs.wait_left(connections, link, 20.0, lambda _: None)
            assert set((await quietly(_told, running.bootstrap)).values()) == real

            await run_verb(verbs.undo_finish(connections, link))
            await world.routers_apply()
            assert not real & set((await quietly(_told, running.bootstrap)).values())
            await run_verb(verbs.finish_link(connections, link, [target.bootstrap], 0.0))
            await verbs.wait_left(connections, link, 20.0, lambda _: None)
            (moved,) = await ask_bootstraps(connections.target, [target.bootstrap])
            assert moved.leads is Leads.TARGET

    async def scenario() -> None:
        async with link_between(source, target, link) as world:
            await world.put(topic, TopicPhase.PROMOTED, promoted_ms=now_ms())
            await world.put_group(group, GroupPhase.PROMOTED)
            with router("r1", target) as running:
                await quietly(traffic.start, running.bootstrap)
                await quietly(_grown, traffic)
                await leave(world, running)
                assert await quietly(running.stop) == 0
            await quietly(_grown, traffic)
            await quietly(traffic.stop)

    try:
        asyncio.run(scenario())
    finally:
        traffic.kill("all")
    history = tmp_path / "history.jsonl"
    traffic.write_history(history)
    verdict = check(read_history(history), read_topic(target.bootstrap, topic))
    assert verdict.acked > 500
    assert verdict.clean, verdict.named
