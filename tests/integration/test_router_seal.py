"""A router that does not answer at a promote:

the source broker holds the fence instead, and releases the fence later.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Refused
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.model.presences import RouterPresence
from kmigrate.net.clock import monotonic
from kmigrate.sandbox.client_specs import ProducerSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, KafkaCluster
from kmigrate.state.log import StateLog
from kmigrate.workflow.base.connections import Connections
from kmigrate.workflow.base.open_transactions import wait_for_ends
from kmigrate.workflow.promote.sealing import Sealer, may_come_off
from kmigrate.workflow.verbs import forget_router
from tests.fakes.proposals import run_verb
from tests.fakes.relay import Relay
from tests.integration.java_clients import SOURCES, JavaProgram
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.router_world import (
    InTransactions,
    Writer,
    ends,
    link_between,
    quietly,
    router,
    settings_of,
    values,
)

LIMIT = "max.message.bytes"
ADD_PARTITIONS, PRODUCE = "24", "0"
"""API keys of the requests at which a router is stopped."""


@pytest.fixture(params=["2.8.2", SOURCE_VERSION, TARGET_VERSION])
def migration(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Migration]:
    """Start migrations from sources of several versions, because the source's broker holds the fence."""
    settings = "[promote]\nfence_timeout_s = 8.0\nstraggler_window_s = 2.0\nrouter_silent_s = 2.0\n"
    with fresh_migration(tmp_path, settings, source_version=request.param) as run:
        yield run


def limit(cluster: KafkaCluster, topic: str) -> str:
    """Return the topic's own limit, '' where the topic has none."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = admin.describe_configs([resource])[resource].result()[LIMIT]
    return str(entry.value) if not entry.is_default else ""


def write_directly(bootstrap: str, topic: str) -> str:
    """Write a record past every router, and return librdkafka's error, '' for success."""
    told: list[str] = []

    def hear(error: Any, _: Any) -> None:
        told.append(error.name() if error else "")

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(topic, b"past", partition=0, on_delivery=hear)
    producer.flush(20)
    return told[0]


def test_a_sealed_topic_takes_no_write_and_no_client_of_a_router_is_told_so(
    source: KafkaCluster, target: KafkaCluster, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    """A router of two stands still between a write's check and its sending, from before the fence until the seal."""
    topic = unique_name("sealed")
    make_topic(source, topic, partitions=3, config={LIMIT: "2000000"})
    make_topic(target, topic, partitions=3)
    settings = settings_of("source", source.bootstrap)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world, ClusterClient(settings) as client:
            await world.put(topic, TopicPhase.MIRRORING)
            sealer = Sealer(world.log, client, Admin(settings), silent_s=1.0)
            with (
                router("a", target, log_level="ERROR") as a,
                router("b", target, log_level="ERROR") as b,
                Writer(a.bootstrap, topic, "at-a", {"log_level": 0}) as at_a,
                Writer(b.bootstrap, topic, "at-b", {"log_level": 0}) as at_b,
            ):
                for writer in (at_a, at_b):
                    await quietly(writer.until, 100)
                await quietly(b.stop_before_sending)
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch)
                await world.log.wait(lambda _: sealer.unheard(record) or None, 20, "b to be silent")
                while not await sealer.put_on(record, sealer.unheard(record), monotonic() + 20):
                    record = await world.put(topic, TopicPhase.FENCING)
                assert record.seal is not None
                assert (record.seal.before, list(record.seal.routers.values())) == ("2000000", ["b"])
                assert await quietly(write_directly, source.bootstrap, topic) == "MSG_SIZE_TOO_LARGE"
                barrier = await quietly(ends, source.bootstrap, topic)
                b.process.send_signal(signal.SIGCONT)
                await world.drained(topic, record.fence_epoch, routers=2)
                await world.flip(topic, record.fence_epoch, acks)
                promoted = await world.put(topic, TopicPhase.PROMOTED)
                assert may_come_off(world.log, promoted)
                await sealer.take_off(promoted)
                assert await quietly(limit, source, topic) == "2000000"
                for writer in (at_a, at_b):
                    await quietly(writer.until, writer.acked + 100)
                    writer.finish()
        assert ends(source.bootstrap, topic) == barrier
        before, after = values(source.bootstrap, topic), values(target.bootstrap, topic)
        for writer in (at_a, at_b):
            assert writer.errors == []
            name = b"%s-" % writer.name.encode()
            assert {p: [v for v in before[p] + after[p] if v.startswith(name)] for p in writer.sent} == writer.sent

    asyncio.run(scenario())


def committed(topic: str, *clusters: KafkaCluster) -> dict[int, list[bytes]]:
    """Return the values that readers of committed records find on the clusters, in this order, by partition."""
    found: dict[int, list[bytes]] = {}
    for cluster in clusters:
        for record in read_topic(cluster.bootstrap, topic):
            found.setdefault(record.partition, []).append(record.value or b"")
    return found


def until_promoted(run: Migration, *topics: str) -> Any:
    """Repeat the promote until it succeeds, and return its output.

    A client that moves to the other router may hang under a fence once more.
    """
    for _ in range(4):
        made = run.cli("promote", *topics, "--yes", timeout=180)
        if made.code == 0:
            return made.told
        assert "open-transaction" in str(made.told) or "coupled" in str(made.told), f"{made.told}\n{run.logs()}"
        wait_until(lambda: {t["phase"] for t in run.does("status")["topics"]} == {"mirroring"}, 30, "the way back")
    raise AssertionError(f"{topics} were not promoted: {made.told}\n{run.logs()}")


def of(name: str, found: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
    return {p: [v for v in values if v.startswith(b"%s-" % name.encode())] for p, values in found.items()}


def test_a_topic_that_transactions_write_is_sealed_and_nothing_that_comes_late_begins_one_there(
    source: KafkaCluster, target: KafkaCluster, make_topic: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    """A router of two stands still with the begin of a transaction not yet sent, from before the fence on."""
    topic = unique_name("sealed")
    make_topic(source, topic, partitions=3)
    make_topic(target, topic, partitions=3)
    settings, ids = settings_of("source", source.bootstrap), [unique_name(name) for name in ("till-a", "till-b")]

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world, ClusterClient(settings) as client:
            await world.put(topic, TopicPhase.MIRRORING)
            sealer = Sealer(world.log, client, Admin(settings), silent_s=1.0)
            with (
                router("a", target, log_level="ERROR") as a,
                router("b", target, log_level="ERROR", stop_at=ADD_PARTITIONS) as b,
                Writer(a.bootstrap, topic, "plain-a", {"log_level": 0}) as plain,
                InTransactions(a.bootstrap, (topic,), ids[0], {"log_level": 0}) as at_a,
                InTransactions(b.bootstrap, (topic,), ids[1], {"log_level": 0}) as at_b,
            ):
                for writer in (at_a, at_b):
                    await quietly(writer.until, 20)
                await quietly(b.stop_before_sending)
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch)
                await world.log.wait(lambda _: sealer.unheard(record) or None, 20, "b to be silent")
                await wait_for_ends(world.log.state, client, record, monotonic() + 20)
                while not await sealer.put_on(record, sealer.unheard(record), monotonic() + 20):
                    record = await world.put(topic, TopicPhase.FENCING)
                barrier = await quietly(ends, source.bootstrap, topic)
                await world.flip(topic, record.fence_epoch, acks)
                b.process.send_signal(signal.SIGCONT)
                promoted = await world.put(topic, TopicPhase.PROMOTED)
                await world.log.wait(lambda _: may_come_off(world.log, promoted) or None, 20, "b to be heard of")
                for writer in (at_a, at_b):
                    await quietly(writer.until, writer.transactions + 20)
                await sealer.take_off(promoted)
                await quietly(plain.until, plain.acked + 100)
                for each in (at_a, at_b, plain):
                    each.finish()
        assert ends(source.bootstrap, topic) == barrier
        found = committed(topic, source, target)
        assert plain.errors == [] and of("plain-a", found) == plain.sent
        for writer in (at_a, at_b):
            assert (writer.errors, writer.aborted) == ([], [])
            assert of(writer.name, found) == writer.committed

    asyncio.run(scenario())


def test_after_a_promote_that_was_given_up_clients_abort_one_transaction_and_go_on(
    source: KafkaCluster,
    target: KafkaCluster,
    make_topic: Callable[..., None],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """The identities were revoked at the source:

    clients ask for the next epoch, and the next promote is an ordinary promote.
    """
    topic = unique_name("sealed")
    make_topic(source, topic, partitions=3)
    make_topic(target, topic, partitions=3)
    settings, ids = settings_of("source", source.bootstrap), [unique_name(name) for name in ("rd-a", "rd-b", "java")]
    java = JavaProgram(tmp_path, "java")

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world, ClusterClient(settings) as client:
            await world.put(topic, TopicPhase.MIRRORING)
            sealer = Sealer(world.log, client, Admin(settings), silent_s=1.0)
            with (
                router("a", target, log_level="ERROR") as a,
                router("b", target, log_level="ERROR", stop_at=ADD_PARTITIONS) as b,
                InTransactions(a.bootstrap, (topic,), ids[0], {"log_level": 0}, abort_every=0) as at_a,
                InTransactions(b.bootstrap, (topic,), ids[1], {"log_level": 0}, abort_every=0) as at_b,
            ):
                java.run(SOURCES / "WriteInTransactions.java", a.bootstrap, topic, ids[2], "3")
                for writer in (at_a, at_b):
                    await quietly(writer.until, 20)
                await quietly(java.until, "committed", 20)
                await quietly(b.stop_before_sending)
                record = await world.fence(topic)
                await world.drained(topic, record.fence_epoch)
                await world.log.wait(lambda _: sealer.unheard(record) or None, 20, "b to be silent")
                while not await sealer.put_on(record, sealer.unheard(record), monotonic() + 20):
                    record = await world.put(topic, TopicPhase.FENCING)
                given_up = await world.put(topic, TopicPhase.MIRRORING)
                b.process.send_signal(signal.SIGCONT)
                await sealer.take_off(given_up)
                for writer in (at_a, at_b):
                    await quietly(writer.until, writer.transactions + 20)
                await quietly(java.until, "committed", java.said.count("committed") + 20)
                aborted = [len(at_a.aborted), len(at_b.aborted), java.said.count("aborted")]
                record = await world.fence(topic)
                acks = await world.drained(topic, record.fence_epoch, routers=2)
                await wait_for_ends(world.log.state, client, record, monotonic() + 20)
                barrier = await quietly(ends, source.bootstrap, topic)
                await world.flip(topic, record.fence_epoch, acks)
                for writer in (at_a, at_b):
                    await quietly(writer.until, writer.transactions + 20)
                    writer.finish()
                await quietly(java.until, "committed", java.said.count("committed") + 20)
                await quietly(java.stop)
        assert ends(source.bootstrap, topic) == barrier
        found = committed(topic, source, target)
        for writer in (at_a, at_b):
            assert writer.errors == []
            assert of(writer.name, found) == writer.committed
        assert "fatal" not in java.said
        numbers = [b"%s-%d" % (ids[2].encode(), number) for number in range(java.said.count("committed"))]
        for stored in of(ids[2], found).values():
            assert stored == numbers
        assert aborted == [len(at_a.aborted), len(at_b.aborted), java.said.count("aborted")] == [1, 1, 1]

    try:
        asyncio.run(scenario())
    finally:
        java.end()


@pytest.mark.soak
def test_a_silent_router_is_overcome_by_a_fence_that_the_source_broker_holds(migration: Migration) -> None:
    """Some topics have a limit of their own; a router stands still with its clients' writes not yet sent."""
    run = migration
    run.make_topic("orders", 3, config={LIMIT: "2000000"})
    run.make_topic("bills", 3)
    traffic = run.run_clients(
        [ProducerSpec("p1", "librdkafka", "orders", 200.0), ProducerSpec("p2", "aiokafka", "bills", 200.0)]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router-a", "router-b", "controller")
    run.does("topic", "mirror", "orders", "bills")
    traffic.roll("producers", run.routers)
    time.sleep(3)
    run.kill("router-b", signal.SIGSTOP)
    told = run.does("promote", "orders", "bills", "--no-seal", "--yes")
    barriers = {}
    for topic in told["topics"]:
        barriers[topic["topic"]] = [topic["barrier"][str(p)]["offset"] for p in range(3)]
        assert list(topic["seal"]["routers"].values()) == ["b"], topic
    assert (limit(run.source, "orders"), limit(run.source, "bills")) == ("1", "1")
    assert (limit(run.target, "orders"), limit(run.target, "bills")) == ("2000000", "")
    run.kill("router-b", signal.SIGCONT)
    wait_until(lambda: limit(run.source, "orders") == "2000000", 30, "the seal of orders to be taken off")
    wait_until(lambda: limit(run.source, "bills") == "", 30, "the seal of bills to be taken off")
    wait_until(lambda: all(not t["sealed_for"] for t in run.does("status")["topics"]), 30, "the record to say so")
    time.sleep(1)
    verdict = run.judge("orders", "bills")
    assert verdict.acked > 500
    assert verdict.clean, f"{verdict.named}\n{run.logs()}"
    assert {topic: ends(run.source.bootstrap, topic) for topic in barriers} == barriers, "both clusters accepted"


def test_a_router_that_has_lost_the_state_log_alone_is_not_called_dead(
    target: KafkaCluster, source: KafkaCluster, unique_name: Callable[[str], str]
) -> None:
    """The router answers its clients, and would forward past a promote that puts on no seal."""
    name = unique_name("router")

    async def scenario() -> None:
        async with (
            link_between(source, target, unique_name("link")) as world,
            ClusterClient(settings_of("target", target.bootstrap)) as client,
        ):
            connections = cast("Connections", SimpleNamespace(log=world.log, target=client))
            with Relay(target.bootstrap) as line, router(name, target, state_via=line.address) as running:
                await world.routers_apply()
                line.stall()
                await quietly(wait_until, lambda: not heard(world.log, name), 30, "nobody to hear of it")
                with pytest.raises(Refused) as caught:
                    await run_verb(forget_router(connections, name, dead=True))
                assert caught.value.ref == "router-answers"
                running.process.send_signal(signal.SIGSTOP)
                looked = await run_verb(forget_router(connections, name, dead=True), plan=True)
                assert [each.ref for each in looked.findings] == ["router-address-taken"]
                running.kill()
                assert (await run_verb(forget_router(connections, name, dead=True))).findings == ()

    asyncio.run(scenario())


def heard(log: StateLog, name: str) -> bool:
    return any(word.name == name for word in log.alive(RouterPresence))


@pytest.mark.soak
def test_a_silent_router_does_not_hold_back_topics_that_transactions_write(migration: Migration) -> None:
    """The two topics belong to the same unit.

    Before the fence, the promote waits for a transaction that hangs on the silent router, until the transaction times
    out. The client gets the error when that router goes on, and repeats the transaction.
    """
    run = migration
    for topic in ("debit", "credit"):
        run.make_topic(topic, 3)
    quiet = {"log_level": 0, "transaction.timeout.ms": 8000}
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router-a", "router-b", "controller")
    run.does("topic", "mirror", "debit", "credit")
    addresses = [f"127.0.0.1:{run.ports[name]}" for name in ("router-a", "router-b")]
    topics = ("debit", "credit")
    writers = [
        InTransactions(both, topics, f"till-{at}", quiet)
        for at, both in enumerate([",".join(addresses), ",".join(reversed(addresses))] * 2)
    ]
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        for writer in writers:
            writer.until(50, 60)
        run.kill("router-b", signal.SIGSTOP)
        told = until_promoted(run, *topics)
        barriers = {t["topic"]: [t["barrier"][str(p)]["offset"] for p in range(3)] for t in told["topics"]}
        assert all(list(topic["seal"]["routers"].values()) == ["b"] for topic in told["topics"])
        run.kill("router-b", signal.SIGCONT)
        wait_until(lambda: all(not t["sealed_for"] for t in run.does("status")["topics"]), 60, "the seals to come off")
        for writer in writers:
            writer.until(writer.transactions + 50, 90)
    for topic in topics:
        assert ends(run.source.bootstrap, topic) == barriers[topic]
        found = committed(topic, run.target)
        for writer in writers:
            assert writer.errors == [] and len(writer.aborted) <= 2
            assert of(writer.name, found) == writer.committed
