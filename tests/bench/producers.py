"""How much heap a broker takes for each producer id that a partition remembers.

    python -m tests.bench.producers [--ids 100000] [--version 4.3.1]

Writes batches of many producer ids to one partition, and compares the broker's live heap before and after
(`jcmd PID GC.class_histogram`, which collects garbage first). Writes build/bench/producers.json.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.producer_expiration import ENTRY_BYTES, producer_load
from kmigrate.net.broker import BrokerConnection
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, decode_produce, encode_produce
from kmigrate.records.build import one_record_batch
from kmigrate.sandbox.kafka import TARGET_VERSION, ClusterSpec, KafkaCluster
from tests.bench.load import make_topic
from tests.figures import save
from tests.integration.mirror_world import produce, settings_of

_IN_FLIGHT = 200
_FIRST_ID = 1 << 40
_PARTS = (  # of what a broker remembers of a producer, in contrast to buffers that come and go
    ".ProducerStateEntry", ".BatchMetadata", ".ArrayDeque", ".HashMap$Node", ".HashMap$Node;", ".Long", ".Object;",
)  # fmt: skip
_BATCHES = (1, 5)
"""Batches of each id: a broker remembers the newest five."""


def histogram(pid: int) -> dict[str, int]:
    """Return the live bytes of a Java process by class."""
    told = subprocess.run(["jcmd", str(pid), "GC.class_histogram"], capture_output=True, text=True, check=True).stdout
    rows = [row for row in map(str.split, told.splitlines()) if len(row) > 3 and row[0][:-1].isdigit()]
    return {row[3]: int(row[2]) for row in rows}


async def write_ids(bootstrap: str, topic: str, ids: range, sequence: int) -> None:
    """Write one batch under each producer id."""
    async with ClusterClient(settings_of("target", bootstrap)) as client:
        await client.refresh([topic])
        connection = await client.connection(client.leader(topic, 0), "bench")
        waiting: deque[asyncio.Future[bytearray]] = deque()
        for producer in ids:
            waiting.append(_send(connection, topic, producer, sequence))
            if len(waiting) >= _IN_FLIGHT:
                _check(topic, await waiting.popleft())
        while waiting:
            _check(topic, await waiting.popleft())


def _send(connection: BrokerConnection, topic: str, producer: int, sequence: int) -> asyncio.Future[bytearray]:
    data = one_record_batch(b"k", b"v", timestamp=1, producer_id=producer, epoch=0, sequence=sequence)
    body = encode_produce([(topic, 0, data)], timeout_ms=10_000)
    return connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True)


def _check(topic: str, frame: bytearray) -> None:
    answer = decode_produce(frame)[topic, 0]
    assert answer.error == 0, answer


async def remembered(bootstrap: str) -> int:
    async with ClusterClient(settings_of("target", bootstrap)) as client:
        return (await producer_load(client)).entries


def measure(target: KafkaCluster, count: int, batches: int) -> dict[str, Any]:
    """Return the growth of the live heap by so many ids of so many batches each, for each id."""
    topic = f"ids-{batches}"
    make_topic(target.bootstrap, topic, 1)
    produce(target.bootstrap, topic, 1)  # librdkafka waits until the new topic is led
    pid = target.brokers[1].pid
    first = _FIRST_ID * batches
    asyncio.run(write_ids(target.bootstrap, topic, range(first - 1000, first), 0))  # what the first requests leave
    entries, before = asyncio.run(remembered(target.bootstrap)), histogram(pid)
    for sequence in range(batches):
        asyncio.run(write_ids(target.bootstrap, topic, range(first, first + count), sequence))
    after, entries = histogram(pid), asyncio.run(remembered(target.bootstrap)) - entries
    assert entries == count, (entries, count)
    grown = {name: size - before.get(name, 0) for name, size in after.items()}
    parts = {name: round(size / count, 1) for name, size in grown.items() if name.endswith(_PARTS) and size > count}
    return {
        "batches": batches,
        "ids": count,
        "bytes_per_id": round(sum(parts.values()), 1),
        "by_class": dict(sorted(parts.items())),
        "whole_heap_per_id": round(sum(grown.values()) / count, 1),
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--version", default=TARGET_VERSION)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        target = KafkaCluster.create(ClusterSpec("target", asked.version), Path(root))
        try:
            target.start()
            target.wait_ready()
            found = [measure(target, asked.ids, batches) for batches in _BATCHES]
        finally:
            target.stop()
    for row in found:
        print(row)
    save("bench/producers", {"version": asked.version, "estimate": ENTRY_BYTES, "measured": found})


if __name__ == "__main__":
    main()
