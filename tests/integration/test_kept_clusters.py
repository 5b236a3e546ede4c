"""A cluster that a test used holds nothing when the next test takes the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.cluster.client import PRODUCER_EXPIRATION, ClusterClient
from kmigrate.cluster.groups import GroupHold, protocol_type
from kmigrate.cluster.producer_expiration import RAISED_EXPIRATION
from kmigrate.protocol.api import ApiKey, entity
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters, source_and_target
from tests.emptied import BUSY_CLEANER
from tests.integration.connect_workers import joined_by_a_worker
from tests.integration.mirror_world import settings_of


def test_topics_groups_members_and_the_raised_default_are_gone(tmp_path: Path) -> None:
    source, target = source_and_target()
    specs = replace(source, config=BUSY_CLEANER), target

    async def left_behind(bootstrap: str) -> None:
        async with ClusterClient(settings_of("used", bootstrap)) as client:
            await joined_by_a_worker(client, "workers")
            while await GroupHold(client, "held").take():  # noqa: ASYNC110 the coordinator may not be ready
                await asyncio.sleep(0.1)
            assert await client.set_broker_default(PRODUCER_EXPIRATION, RAISED_EXPIRATION) == 0

    async def groups(bootstrap: str) -> list[str]:
        async with ClusterClient(settings_of("used", bootstrap)) as client:
            return [await protocol_type(client, group) for group in ("workers", "held", "readers")]

    async def timeouts(bootstrap: str) -> list[tuple[str, int]]:
        async with ClusterClient(settings_of("used", bootstrap)) as client:
            node = await client.find_coordinator("long", kind=1)
            describe = entity(ApiKey.DESCRIBE_TRANSACTIONS, 0, "request")(transactional_ids=("long",))
            (told,) = (await client.call(describe, node)).transaction_states
            return [(str(told.transaction_state), int(told.transaction_timeout))]

    with running_clusters(tmp_path, *specs) as used:
        ids = [cluster.cluster_id for cluster in used]
        for cluster in used:
            create_topics(cluster.client(), [NewTopic("orders", 1, 1)])
            settings = {"transactional.id": "long", "transaction.timeout.ms": 600_000}
            producer = Producer({**cluster.client(), **settings})
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce("orders", b"1")
            producer.commit_transaction(30)
            producer.begin_transaction()
            producer.produce("orders", b"2")
            assert producer.flush(20) == 0
            reader = Consumer({**cluster.client(), "group.id": "readers", "auto.offset.reset": "earliest"})
            reader.subscribe(["orders"])
            (message,) = reader.consume(1, 20)
            reader.commit(message=message, asynchronous=False)
            asyncio.run(left_behind(cluster.bootstrap))
    with running_clusters(tmp_path, *specs) as again:
        assert [cluster.cluster_id for cluster in again] == ids
        for cluster in again:
            topics = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=20).topics
            assert [name for name in topics if not name.startswith("__")] == []
            assert asyncio.run(groups(cluster.bootstrap)) == ["", "", ""]
            assert asyncio.run(timeouts(cluster.bootstrap)) == [("Empty", 60_000)]
