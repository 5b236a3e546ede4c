"""Requests of admin clients and producers at the router, on real clusters: topic creation, and brokers by node id."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.ids import OWN_PREFIX
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FETCH_BY_ID_VERSION, FetchPartition, decode_fetch, encode_fetch
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC
from tests.integration.java_clients import JavaProgram
from tests.integration.router_world import link_between, quietly, router, settings_of

Names = Callable[[str], str]
MakeTopic = Callable[..., None]


def _write_one(bootstrap: str, topic: str, patience_s: float) -> str | None:
    """Write a record to a topic that may be missing, and return the client's final error."""
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
                # The topic that must not be created comes first: its client asks until its timeout.
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
                    # The member begins at the end of the log, at an unknown moment.
                    while "records_consumed" not in member.said:
                        assert time.monotonic() < deadline, member.said
                        producer.produce(topic, b"v")
                        await quietly(producer.flush, 5)
                        await asyncio.sleep(0.2)
                    await world.put(topic, TopicPhase.INITIALISING)
                    await quietly(member.until, "GroupAuthorizationException", 0, 30)
                finally:
                    await quietly(member.end)

    asyncio.run(scenario())


def test_no_client_reads_writes_alters_or_deletes_kmigrates_own_topics_through_the_router(
    source: KafkaCluster, target: KafkaCluster, unique_name: Names
) -> None:
    """librdkafka asks by name; a hand-made Fetch asks by topic id, past every client's own metadata."""
    own = [STATE_TOPIC, PRESENCE_TOPIC, f"{OWN_PREFIX}more"]

    def refusals(bootstrap: str) -> list[int]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert not [name for name in admin.list_topics(timeout=20).topics if name.startswith(OWN_PREFIX)]
        told = [each.error for each in (admin.list_topics(name, timeout=20).topics[name] for name in own)]
        entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        resources = [ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry]) for name in own]
        bare = [ConfigResource(ResourceType.TOPIC, name) for name in own]
        end: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked: list[Any] = [
            admin.create_topics([NewTopic(name, 1, 1) for name in own]),
            admin.delete_topics(own),
            admin.create_partitions([NewPartitions(name, 2) for name in own]),
            admin.delete_records([TopicPartition(name, 0, 1) for name in own]),
            admin.incremental_alter_configs(resources),
            admin.describe_configs(bare),
            admin.list_offsets({TopicPartition(name, 0): end for name in own}),
            admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(name, 0) for name in own]),
        ]
        codes = [each.code() for each in told if each is not None]
        for answers in asked:
            for future in answers.values() if isinstance(answers, dict) else [answers]:
                try:
                    given = future.result(timeout=20)
                except KafkaException as error:
                    codes.append(error.args[0].code())
                else:
                    codes += [error.code() for error in given.values()]
        return codes

    def written(bootstrap: str) -> set[int]:
        failed: set[int] = set()
        producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 10_000}, logger=None)
        for name in own:
            producer.produce(name, b"v", b"k", on_delivery=lambda error, _: failed.add(error.code() if error else 0))
        producer.flush(20)
        return failed

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            with router("r1", target) as running:
                await world.routers_apply()
                before = await world.log.read_to_end()
                codes = await quietly(refusals, running.bootstrap)
                # Where metadata names no leader, librdkafka refuses and asks no broker.
                assert set(codes) - {KafkaError._NOENT} == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
                assert len(codes) == 3 * 9
                assert await quietly(written, running.bootstrap) == {KafkaError.TOPIC_AUTHORIZATION_FAILED}
                assert await quietly(_fetched_by_id, running.bootstrap, target) == {Code.UNKNOWN_TOPIC_ID}
                assert (await world.log.read_to_end()).epoch == before.epoch

    asyncio.run(scenario())


def _fetched_by_id(bootstrap: str, target: KafkaCluster) -> set[int]:
    """Return the error codes of a Fetch by topic id for the state topic and the presence topic."""

    async def ask() -> set[int]:
        async with ClusterClient(settings_of("target", target.bootstrap)) as direct:
            topics = (await direct.refresh([STATE_TOPIC, PRESENCE_TOPIC])).topics
        ids = {name: topic.topic_id.bytes for name, topic in topics.items() if topic.topic_id}
        async with ClusterClient(settings_of("router", bootstrap)) as routed:
            node = next(iter((await routed.refresh([])).brokers))
            connection = await routed.connection(node, "test")
            wanted = [FetchPartition(name, 0, 0, 1 << 20, -1, -1) for name in ids]
            body = encode_fetch(wanted, max_wait_ms=10, session_epoch=-1, ids=ids)
            frame = await connection.call_raw(ApiKey.FETCH, FETCH_BY_ID_VERSION, body, flexible=True)
        told = decode_fetch(frame, {each: name for name, each in ids.items()})
        assert not any(part.records for part in told.partitions)
        return {part.error for part in told.partitions}

    return asyncio.run(ask())
