"""What admin clients and curious producers ask of the router, on real clusters: creation, and brokers by their id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kmigrate.model.lifecycle import TopicPhase
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.java_clients import JavaProgram
from tests.integration.router_world import link_between, quietly, router

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def _write_one(bootstrap: str, topic: str, patience_s: float) -> str | None:
    """Write a record to a topic that may not be there; what the client was told in the end."""
    told: list[str | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": int(patience_s * 1000)}, logger=None)
    producer.produce(topic, b"v", on_delivery=lambda error, _: told.append(str(error) if error else None))
    producer.flush(patience_s + 10)
    return told[0] if told else "never told"


def test_a_topic_springs_up_through_the_router_unless_a_source_has_one_of_that_name(
    source: KafkaCluster, own_cluster: Callable[..., KafkaCluster], make_topic: MakeTopic, unique_name: Names
) -> None:
    target = own_cluster(config={"auto.create.topics.enable": "true"})
    later, new = unique_name("later"), unique_name("new")
    make_topic(source, later, partitions=3)

    async def scenario() -> list[str | None]:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                await world.routers_apply()
                # The one that shall not be created first: it is asked for as long as its client has patience.
                return [await quietly(_write_one, running.bootstrap, topic, s) for topic, s in ((later, 3), (new, 60))]

    told = asyncio.run(scenario())
    assert told[0] is not None
    assert told[1] is None
    there = AdminClient(dict(target.client())).list_topics(timeout=20).topics
    assert new in there
    assert later not in there


def test_a_broker_is_described_and_configured_under_the_id_that_the_router_shows(
    source: KafkaCluster, target: KafkaCluster, unique_name: Names
) -> None:
    name = "log.cleaner.backoff.ms"

    def configure(bootstrap: str) -> tuple[str, str, str]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        [shown] = admin.list_topics(timeout=20).brokers
        broker = ConfigResource(ResourceType.BROKER, str(shown))

        def value() -> str:
            return str(admin.describe_configs([broker])[broker].result(20)[name].value)

        def alter(how: AlterConfigOpType, to: str = "", until: Callable[[str], bool] = bool) -> str:
            entry = ConfigEntry(name, to, incremental_operation=how)
            changed = ConfigResource(ResourceType.BROKER, str(shown), incremental_configs=[entry])
            admin.incremental_alter_configs([changed])[changed].result(20)
            deadline = time.monotonic() + 20
            while not until(value()):
                assert time.monotonic() < deadline, f"{name} stays {value()}"
                time.sleep(0.05)
            return value()

        before = value()
        try:
            during = alter(AlterConfigOpType.SET, "15001", lambda now: now == "15001")
        finally:
            after = alter(AlterConfigOpType.DELETE, "", lambda now: now == before)
        return before, during, after

    async def scenario() -> tuple[str, str, str]:
        async with link_between(source, target, unique_name("link")):
            with router("r1", target) as running:
                return await quietly(configure, running.bootstrap)

    before, during, after = asyncio.run(scenario())
    assert before == after != during == "15001"


def test_a_member_of_a_share_group_that_had_subscribed_before_its_topic_is_mirrored_is_refused_with_the_reason(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names, tmp_path: Path
) -> None:
    """Kafka's own share consumer names its topics once, when it joins."""
    topic, group = unique_name("shared"), unique_name("sharers")
    make_topic(target, topic)
    member = JavaProgram(tmp_path, "member")
    words = ("--topic", topic, "--group-id", group, "--verbose")

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                try:
                    tool = "org.apache.kafka.tools.VerifiableShareConsumer"
                    member.run(tool, "--bootstrap-server", running.bootstrap, *words)
                    producer = Producer({"bootstrap.servers": target.bootstrap})
                    deadline = time.monotonic() + 60
                    while "records_consumed" not in member.said:  # it begins at the end, whenever that is
                        assert time.monotonic() < deadline, member.said
                        producer.produce(topic, b"v")
                        await quietly(producer.flush, 5)
                        await asyncio.sleep(0.2)
                    await world.put(topic, TopicPhase.INITIALISING)
                    await quietly(member.until, "GroupAuthorizationException", 0, 30)
                finally:
                    await quietly(member.end)

    asyncio.run(scenario())
