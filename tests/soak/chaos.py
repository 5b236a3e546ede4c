"""What a soak does to the mirrors and the brokers: kills, leader moves, brokers that stand still or start anew."""

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

__all__ = ["Disturbance", "Fleet", "disturb", "move_leaders", "wait_in_sync"]

_MOMENT_S = (0.0, 2.0)
_PATIENCE_S = 20.0
_LEASE_S = 2.0
"""Long enough for brokers that share two cores with all the others: who does not hear itself takes nothing."""


@dataclass
class Fleet:
    """Two mirror processes at all times: whoever is killed is replaced at once, under a name of its own."""

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
        """The running mirror that holds the link's lease; empty where the last holder is dead."""
        lease = self.world.log.state.lease(f"mirror/{self.world.link}")
        return lease.holder if lease is not None and lease.holder in self._running else ""

    def kill_one(self) -> None:
        """Mostly the one that copies; the other one waits for its place and takes it."""
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
        """Be killed so many times: most often while one copies, else whatever they are at, starting or taking over."""
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
        """Also of those that nobody came to kill."""
        self.crashes += [code for each in self._running.values() if (code := each.poll()) is not None]


# leaders


async def move_leaders(
    cluster: KafkaCluster, topics: list[str], dice: random.Random, moves: dict[str, int], gap_s: tuple[float, float]
) -> None:
    """For ever: make another replica of a random partition the preferred leader, and elect it."""
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
                await _reorder(client, topic, partition, (*replicas[turn:], *replicas[:turn]))
                moves[cluster.spec.name] += await _elect(client, topic, partition)
            except Failed:
                continue  # a broker that stands still, or a topic that is just being made: the next turn comes


async def _reorder(client: ClusterClient, topic: str, partition: int, replicas: tuple[int, ...]) -> None:
    """The same replicas in another order: nothing is copied, the first one is preferred."""
    request = entity(45, 0, "request")
    topic_type = element_type(request, "topics")
    part_type = element_type(topic_type, "partitions")
    part = part_type(partition_index=partition, replicas=replicas)
    await client.call(request(topics=(topic_type(name=topic, partitions=(part,)),)))


async def _elect(client: ClusterClient, topic: str, partition: int) -> bool:
    """Whether the partition's leadership moved to its preferred replica."""
    request = entity(43, 2, "request")
    where = element_type(request, "topic_partitions")(topic=topic, partitions=(partition,))
    answer = await client.call(request(election_type=0, topic_partitions=(where,)))
    return [code_of(each.error_code) for it in answer.replica_election_results for each in it.partition_result] == [0]


# brokers


@dataclass
class Disturbance:
    pauses: int = 0
    restarts: int = 0


async def disturb(
    clusters: list[KafkaCluster], dice: random.Random, done: Disturbance, gap_s: tuple[float, float], restarts: int
) -> None:
    """For ever: one broker at a time stands still for a while, and `restarts` times one is killed and started anew."""
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
    """Until every replica of every topic is in sync again: two brokers may then not fail one after the other."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
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
