"""The disturbances of a soak: kills of mirrors, leader moves, brokers that stand still or start anew."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed
from kmigrate.protocol.api import element_type, entity
from kmigrate.protocol.codes import code_of
from kmigrate.sandbox.kafka import KafkaCluster
from tests.integration.mirror_world import World, end_mirror, settings_of, start_mirror

__all__ = ["Disturbance", "Fleet", "disturb", "elect", "move_leaders", "reorder", "wait_in_sync"]

_MOMENT_S = (0.0, 2.0)
_PATIENCE_S = 20.0
_LEASE_S = 2.0
"""The lease time, long enough for brokers that share two cores with everything else.

A mirror that does not hear its own presence in time takes nothing.
"""


@dataclass
class Fleet:
    """Two mirror processes at all times. A killed mirror is replaced at once, under a new name."""

    world: World
    dice: random.Random
    kills: int = 0
    kills_of_active: int = 0
    crashes: list[int] = field(default_factory=list)
    """Exit codes of mirrors that ended without being killed."""
    _running: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _started: int = 0

    def __enter__(self) -> Fleet:
        self.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            end_mirror(process)

    def start(self) -> None:
        name = f"m{self._started}"
        self._started += 1
        self._running[f"{self.world.link}-{name}"] = start_mirror(self.world, name, _LEASE_S)

    @property
    def _active(self) -> str:
        """The running mirror that holds the link's lease; empty if the last holder is dead."""
        lease = self.world.log.state.lease(f"mirror/{self.world.link}")
        return lease.holder if lease is not None and lease.holder in self._running else ""

    def kill_one(self) -> None:
        """Kill a mirror, mostly the mirror that copies. The other mirror waits for the place and takes it."""
        active = self._active
        name = active if active and self.dice.random() < 0.7 else self.dice.choice(list(self._running))
        process = self._running.pop(name)
        if process.poll() is None:
            self.kills += 1
            self.kills_of_active += name == active
        else:
            self.crashes.append(process.returncode)
        end_mirror(process)
        self.start()

    async def suffer(self, kills: int) -> None:
        """Kill mirrors up to a number of kills.

        Most kills come while a mirror copies. The other kills come at any moment, during a start or a take-over, too.
        """
        while self.kills < kills:
            if self.dice.random() < 0.75:
                await self._until_active()
            await asyncio.sleep(self.dice.uniform(*_MOMENT_S))
            await asyncio.to_thread(self.kill_one)

    async def _until_active(self) -> None:
        patience = time.monotonic() + _PATIENCE_S
        while not self._active and time.monotonic() < patience:
            await self.world.log.changed(0.1)

    def note_crashes(self) -> None:
        """Note the crashes of mirrors that nobody came to kill, too."""
        self.crashes += [code for each in self._running.values() if (code := each.poll()) is not None]


# leaders


async def move_leaders(
    cluster: KafkaCluster, topics: list[str], dice: random.Random, moves: dict[str, int], gap_s: tuple[float, float]
) -> None:
    """Make another replica of a random partition the preferred leader, and elect it, for ever."""
    async with ClusterClient(settings_of(cluster.spec.name, cluster.bootstrap)) as client:
        while True:
            await asyncio.sleep(dice.uniform(*gap_s))
            topic = dice.choice(topics)
            try:
                info = (await client.refresh([topic])).topics.get(topic)
                if info is None or not info.partitions:
                    continue
                partition = dice.choice(sorted(info.partitions))
                replicas = info.partitions[partition].replicas
                turn = dice.randrange(1, len(replicas))
                await reorder(client, topic, partition, (*replicas[turn:], *replicas[:turn]))
                moves[cluster.spec.name] += await elect(client, topic, partition)
            except Failed:
                continue  # a broker stands still, or a topic is just being made: the next turn comes


async def reorder(client: ClusterClient, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
    """Put the same replicas in another order: nothing is copied, and the first replica is preferred."""
    request = entity(45, 0, "request")
    topic_type = element_type(request, "topics")
    part_type = element_type(topic_type, "partitions")
    part = part_type(partition_index=partition, replicas=replicas)
    await client.call(request(topics=(topic_type(name=topic, partitions=(part,)),)))


async def elect(client: ClusterClient, topic: str, partition: int, node: int | None = None) -> bool:
    """Elect the preferred replica by a request to any broker, or to `node`; return whether the leadership moved."""
    request = entity(43, 2, "request")
    where = element_type(request, "topic_partitions")(topic=topic, partitions=(partition,))
    answer = await client.call(request(election_type=0, topic_partitions=(where,)), node)
    return [code_of(each.error_code) for it in answer.replica_election_results for each in it.partition_result] == [0]


# brokers


@dataclass
class Disturbance:
    pauses: int = 0
    restarts: int = 0


async def disturb(
    clusters: list[KafkaCluster], dice: random.Random, done: Disturbance, gap_s: tuple[float, float], restarts: int
) -> None:
    """Disturb a broker at a time, for ever.

    A broker stands still for a while. `restarts` times a broker is killed and started anew.
    """
    while True:
        await asyncio.sleep(dice.uniform(*gap_s))
        cluster = dice.choice(clusters)
        node = dice.choice(sorted(cluster.brokers))
        if done.restarts < restarts and dice.random() < 0.2:
            done.restarts += 1
            cluster.kill(node)
            try:
                await asyncio.sleep(dice.uniform(0, 3))
            finally:
                cluster.restart(node)
            await asyncio.to_thread(cluster.wait_ready)
            await asyncio.to_thread(wait_in_sync, cluster)
        else:
            done.pauses += 1
            cluster.pause(node)
            try:
                await asyncio.sleep(dice.uniform(0.5, 3))
            finally:
                cluster.resume(node)


def wait_in_sync(cluster: KafkaCluster, timeout: float = 60) -> None:
    """Wait until every replica of every topic is in sync again: before that, two brokers may not fail in turn."""
    admin = AdminClient({**cluster.client(), "log_level": 0})
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            topics = admin.list_topics(timeout=5).topics.values()
        except KafkaException:
            continue
        parts = [part for topic in topics for part in topic.partitions.values()]
        if all(len(part.isrs) == len(part.replicas) and part.leader >= 0 for part in parts):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{cluster.spec.name}: not every replica is in sync")
