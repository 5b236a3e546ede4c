"""Each kind of fault, alone among 40,000 records, is found and named exactly; `make soak-parity` plants all together.

A topic's two logs consist of the same batches, which librdkafka wrote once. Where a fault is planted, librdkafka writes
the records anew.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from kmigrate.cluster.append import append_alone
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import FetchSession
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.report import ParityReport
from kmigrate.protocol.codes import Code
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.batch import stamp, walk
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters
from tests.integration.mirror_world import bounds, settings_of
from tests.soak.planted import KINDS, Planting, make_topic, plant, write, write_target

# The first test takes the time for two clusters, a Spark session, all logs and their comparison.
PARTITIONS, RECORDS = 2, 20_000
RUN = uuid4().hex[:8]
SOUND = "sound"

Batches = dict[int, list[tuple[range, bytes]]]
"""Batches of a log without faults, by partition, with the numbers of their records."""


async def batches_of(bootstrap: str, topic: str) -> Batches:
    found: Batches = {partition: [] for partition in range(PARTITIONS)}
    async with ClusterClient(settings_of("source", bootstrap)) as client:
        await client.refresh([topic])
        session = FetchSession(client, client.leader(topic, 0), "planted", max_bytes=64 << 20)
        at = dict.fromkeys(found, 0)
        while any(offset < RECORDS for offset in at.values()):
            wanted = {(topic, p): FetchPartition(topic, p, offset, 32 << 20) for p, offset in at.items()}
            for part in (await session.fetch(wanted, max_wait_ms=50, full=True)).partitions:
                for batch in walk(part.records):
                    numbers = range(at[part.partition], batch.next_offset)
                    found[part.partition].append((numbers, of_nobody(batch.view)))
                    at[part.partition] = batch.next_offset
    return found


def of_nobody(batch: memoryview) -> bytes:
    """Return the batch as if no idempotent producer had written it, so that the batch may follow any other batch."""
    copied = bytearray(batch)
    stamp(memoryview(copied), producer_id=-1, epoch=-1, sequence=-1)
    return bytes(copied)


async def append(client: ClusterClient, topic: str, partition: int, batch: bytes) -> None:
    """Append a batch, and retry until the broker has made the partition: before, the partition has no leader."""
    deadline = time.monotonic() + 30
    while True:
        if client.leader(topic, partition) >= 0:
            error = (await append_alone(client, topic, partition, batch, purpose="planted")).error
            if not error:
                return
            assert error == Code.NOT_LEADER_OR_FOLLOWER
        assert time.monotonic() < deadline
        await client.refresh([topic])
        await asyncio.sleep(0.05)


async def lay(bootstrap: str, topic: str, batches: Batches, planting: Planting, *, target: bool) -> None:
    """Write a side's log from whole batches, except where the planting has records of its own.

    The target's log is written first.
    """
    make_topic(bootstrap, topic, PARTITIONS)
    own = planting.touched() if target else set(planting.stamps)
    async with ClusterClient(settings_of("cluster", bootstrap)) as client:
        await client.refresh([topic])
        for partition, each in batches.items():
            for numbers, batch in each:
                if not any(place.partition == partition and place.offset in numbers for place in own):
                    await append(client, topic, partition, batch)
                elif target:
                    write_target(bootstrap, topic, partition, planting, numbers)
                else:
                    write(bootstrap, topic, partition, planting.source(partition, numbers))


def topic_of(kind: str) -> str:
    return f"planted-{kind.replace(' ', '-')}-{RUN}"


@pytest.fixture(scope="module")
def plantings() -> dict[str, Planting]:
    found = {kind: plant(PARTITIONS, RECORDS, [kind], seed) for seed, kind in enumerate(KINDS)}
    return {**found, SOUND: plant(PARTITIONS, RECORDS, (), 0)}


@pytest.fixture(scope="module")
def report(
    source: KafkaCluster, target: KafkaCluster, spark: SparkSession, plantings: dict[str, Planting]
) -> ParityReport:
    base = topic_of("base")
    make_topic(source.bootstrap, base, PARTITIONS)
    for partition in range(PARTITIONS):
        write(source.bootstrap, base, partition, plantings[SOUND].source(partition))
    batches = asyncio.run(batches_of(source.bootstrap, base))

    def lay_both(kind: str) -> None:
        asyncio.run(lay(target.bootstrap, topic_of(kind), batches, plantings[kind], target=True))
        asyncio.run(lay(source.bootstrap, topic_of(kind), batches, plantings[kind], target=False))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lay_both, plantings))
    ranges = [
        TopicRange(topic_of(kind), partition, *ends)
        for kind in plantings
        for partition, ends in bounds(source.bootstrap, topic_of(kind)).items()
    ]
    return compare_clusters(spark, ranges, KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_alone_among_40_000_records_is_the_only_one_and_named_exactly(
    kind: str, report: ParityReport, plantings: dict[str, Planting]
) -> None:
    (row,) = [each for each in report.topics if each.topic == topic_of(kind)]
    assert (row.source_records, row.mismatches) == (PARTITIONS * RECORDS, 1)
    (found,) = [each for each in report.findings if each.topic == topic_of(kind)]
    (allowed,) = plantings[kind].told(topic_of(kind))
    assert found in allowed


def test_nothing_is_found_where_nothing_is_planted(report: ParityReport) -> None:
    (row,) = [each for each in report.topics if each.topic == topic_of(SOUND)]
    assert (row.source_records, row.digest_equal, row.mismatches) == (PARTITIONS * RECORDS, True, 0)
    assert (report.mismatches, report.unexamined_buckets) == (len(KINDS), 0)
