"""Quotas of clients stay in force.

A producer behind a router is throttled as a producer at the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer, ThrottleEvent

from kmigrate.cluster.client import ClusterClient
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.protocol.api import element_type, entity
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.router_world import link_between, quietly, router, settings_of

Names = Callable[[str], str]
MakeTopic = Callable[..., None]

QUOTA = 10_000
"""Bytes a second, which a broker averages over ten seconds."""
RECORD = 110_000
"""Size of a record: a little more than ten seconds' worth, about a second too much."""
ABOUT_S = (0.9, 1.2)


async def limit(cluster: KafkaCluster, *client_ids: str) -> None:
    """Give clients a produce quota, and return when the broker knows the quota."""
    alter, describe = entity(49, 1, "request"), entity(48, 1, "request")
    entry = element_type(alter, "entries")
    who, what = element_type(entry, "entity"), element_type(entry, "ops")
    asked = element_type(describe, "components")
    entries = tuple(
        entry(
            entity=(who(entity_type="client-id", entity_name=name),),
            ops=(what(key="producer_byte_rate", value=float(QUOTA), remove=False),),
        )
        for name in client_ids
    )
    async with ClusterClient(settings_of("judged", cluster.bootstrap)) as client:
        answer = await client.call(alter(entries=entries, validate_only=False))
        assert [int(each.error_code) for each in answer.entries] == [0] * len(client_ids)
        for name in client_ids:
            question = describe(components=(asked(entity_type="client-id", match_type=0, match=name),), strict=True)
            for _ in range(300):
                if (await client.call(question)).entries:
                    break
                await asyncio.sleep(0.05)


def throttled_s(bootstrap: str, topic: str, client_id: str) -> float:
    """Return for how long the broker throttles librdkafka after a large record; 0 where it does not."""
    heard: list[float] = [0.0]
    errors: list[Any] = []

    def hear(event: ThrottleEvent) -> None:
        heard.append(event.throttle_time)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "enable.idempotence": True,
            "throttle_cb": hear,
            "log_level": 0,
        }
    )
    producer.produce(topic, b"x" * RECORD, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(15) == 0
    producer.poll(0.1)
    assert errors == [None]
    return max(heard)


def test_a_quota_of_the_source_and_then_of_the_target_holds_through_the_router_as_without_it(
    source: KafkaCluster, target: KafkaCluster, make_topic: MakeTopic, unique_name: Names
) -> None:
    topic, beside = unique_name("quota"), unique_name("beside")
    for cluster in (source, target):
        make_topic(cluster, topic)
        make_topic(cluster, beside)

    async def scenario() -> None:
        async with link_between(source, target, unique_name("link")) as world:
            await world.put(topic, TopicPhase.MIRRORING, partitions=1)
            with router("r1", target) as running:
                for cluster in (source, target):
                    direct, routed = unique_name("direct"), unique_name("routed")
                    await limit(cluster, direct, routed)
                    there = await quietly(throttled_s, cluster.bootstrap, beside, direct)
                    here = await quietly(throttled_s, running.bootstrap, topic, routed)
                    assert ABOUT_S[0] < there < ABOUT_S[1], "the measure itself"
                    assert abs(here - there) < 0.1, (here, there)
                    assert await quietly(throttled_s, running.bootstrap, topic, unique_name("free")) == 0
                    if cluster is source:
                        record = await world.fence(topic)
                        acks = await world.drained(topic, record.fence_epoch)
                        await world.flip(topic, record.fence_epoch, acks)
                        await world.routers_apply()

    asyncio.run(scenario())
