"""Order of a librdkafka producer without idempotence at brokers alone, without kmigrate.

    python -m tests.soak.plain_order [--stops 20] [--case timeouts|expiry|leaders]

One producer with `max.in.flight=1` writes numbers to one partition while a broker stands still again and again:

- `timeouts`: one broker; the client gives requests up and repeats them (`socket.timeout.ms` 1 s).
- `expiry`: the same, and the client gives messages up (`message.timeout.ms` 1.5 s), before later ones are sent.
- `leaders`: three brokers; another replica is elected while the leader stands still for less than a second.

The log is read from its beginning. A number whose first copy stands behind a greater number's first copy is an
inversion. Prints one line of JSON: stored twice, copies that step back, inversions, and how many of the inverted
numbers the client was told are stored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.cluster.client import ClusterClient
from kmigrate.sandbox.kafka import SOURCE_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.clusters import running_clusters
from tests.integration.mirror_world import settings_of
from tests.soak.chaos import elect, reorder

_TOPIC = "plain"
_BASE: dict[str, Any] = {
    "enable.idempotence": False,
    "max.in.flight.requests.per.connection": 1,
    "socket.timeout.ms": 1_000,
    "request.timeout.ms": 900,
    "linger.ms": 1,
    "log_level": 0,
}
_CASES: dict[str, dict[str, Any]] = {
    "timeouts": {"acks": "all"},
    "expiry": {"acks": "all", "message.timeout.ms": 1_500},
    "leaders": {"acks": "all", "topic.metadata.refresh.interval.ms": 100, "socket.timeout.ms": 10_000},
}


@dataclass
class Found:
    """What one case has shown."""

    case: str
    written: int = 0
    acknowledged: int = 0
    stored: int = 0
    stored_twice: int = 0
    steps_back: int = 0
    """Copies that stand right behind a greater number."""
    inversions: int = 0
    inverted_acknowledged: int = 0
    """Inverted numbers that the client was told are stored."""
    examples: list[list[int]] = field(default_factory=list)
    """Inverted number, its offset, the greatest number before it."""


class Writer:
    """Writes 1, 2, 3 … as long as the producer takes them."""

    def __init__(self, bootstrap: str, config: dict[str, Any]) -> None:
        self.acknowledged: set[int] = set()
        self.written = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, **_BASE, **config})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self._producer) < 2_000:
                self.written += 1
                self._producer.produce(_TOPIC, b"%d" % self.written, partition=0, on_delivery=self._told(self.written))
            self._producer.poll(0.002)
        self._producer.flush(60)

    def _told(self, number: int) -> Callable[[Any, Any], None]:
        def told(error: Any, _: Any) -> None:
            if error is None:
                self.acknowledged.add(number)

        return told

    def end(self) -> None:
        self._stop.set()
        self._thread.join(90)


def judge(found: Found, stored: list[int], acknowledged: set[int]) -> Found:
    seen: set[int] = set()
    greatest, before = 0, 0
    for offset, number in enumerate(stored):
        found.steps_back += number < before
        if number in seen:
            found.stored_twice += 1
        elif number < greatest:
            found.inversions += 1
            found.inverted_acknowledged += number in acknowledged
            found.examples += [[number, offset, greatest]] if len(found.examples) < 5 else []
        seen.add(number)
        greatest, before = max(greatest, number), number
    found.stored, found.acknowledged = len(stored), len(acknowledged)
    return found


def read(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(_TOPIC, 0), 20)
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    values: list[int] = []
    while len(values) < end:
        values += [int(m.value() or b"0") for m in consumer.consume(5_000, 1.0) if m.error() is None]
    consumer.close()
    return values


def play(case: str, stops: int, dice: random.Random) -> Found:
    found, brokers = Found(case), 3 if case == "leaders" else 1
    config = {"auto.leader.rebalance.enable": "false"}
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-plain-") as folder,
        running_clusters(Path(folder), ClusterSpec("plain", SOURCE_VERSION, brokers, config)) as (cluster,),
    ):
        create_topics(cluster.client(), [NewTopic(_TOPIC, 1, brokers)])
        time.sleep(1)
        writer = Writer(cluster.bootstrap, _CASES[case])
        time.sleep(2)
        for _ in range(stops):
            disturb(cluster, case, dice)
            time.sleep(dice.uniform(1.0, 2.0))
        time.sleep(4)
        writer.end()
        time.sleep(3)
        found.written = writer.written
        return judge(found, read(cluster.bootstrap), writer.acknowledged)


def disturb(cluster: KafkaCluster, case: str, dice: random.Random) -> None:
    """Have the leader stand still; in the case of leaders another replica is elected meanwhile."""
    leader = AdminClient(dict(cluster.client())).list_topics(_TOPIC, 20).topics[_TOPIC].partitions[0].leader
    if case == "leaders":
        asyncio.run(_move(cluster, leader, dice))
        return
    cluster.pause(leader)
    time.sleep(dice.uniform(1.2, 3.0))
    cluster.resume(leader)


async def _move(cluster: KafkaCluster, leader: int, dice: random.Random) -> None:
    others = [node for node in cluster.brokers if node != leader]
    dice.shuffle(others)
    async with ClusterClient(settings_of("plain", cluster.bootstrap)) as client:
        await client.refresh([_TOPIC])
        await client.connection(others[0])
        await reorder(client, _TOPIC, 0, (*others, leader))
        cluster.pause(leader)
        try:
            with suppress(TimeoutError):  # the broker may be the active controller: it elects when it goes on
                await asyncio.wait_for(elect(client, _TOPIC, 0, others[0]), 0.5)
            await asyncio.sleep(dice.uniform(0.3, 0.7))
        finally:
            cluster.resume(leader)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--stops", type=int, default=20)
    arguments.add_argument("--case", choices=sorted(_CASES), action="append")
    arguments.add_argument("--seed", type=int, default=1)
    asked = arguments.parse_args()
    for case in asked.case or sorted(_CASES):
        print(json.dumps(asdict(play(case, asked.stops, random.Random(asked.seed)))), flush=True)


if __name__ == "__main__":
    main()
