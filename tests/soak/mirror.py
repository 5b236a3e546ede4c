"""Two mirror processes that are killed all the time, while leaders move and brokers stand still on both sides.

    python -m tests.soak.mirror [--kills 100] [--records 500000] [--restarts 4] [--seed N]

Each side has three brokers. Idempotent, plain and transactional producers write as the kills go on, so that there is
always something to copy. The soak ends when enough records are acknowledged, enough mirrors are killed and the copy has
caught up. Then librdkafka reads both sides. The records are compared with each other and with the producers' own
ledgers. The soak writes build/soak/mirror.json; exit code 1 on any anomaly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from rich.console import Console

from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.topics import create_topics
from kmigrate.state.topics import PRESENCE_TOPIC, STATE_TOPIC
from tests.clusters import running_clusters, source_and_target
from tests.figures import save
from tests.integration.mirror_world import World, bounds, link_between
from tests.soak.chaos import Disturbance, Fleet, disturb, move_leaders, wait_in_sync
from tests.soak.judge import Verdict, judge
from tests.soak.writers import KINDS, Pace, Writer

__all__ = ["Plan", "Report", "soak"]

say = Console(stderr=True, highlight=False).print

_PARTITIONS = 3
_TOPICS = {"plain": ("small", "bare"), "mixed": tuple(kind.name for kind in KINDS)}
"""The writers of each topic. Topic `plain` has only small batches, which come in long stretches and are merged."""


@dataclass(frozen=True)
class Plan:
    """The amounts of a soak."""

    kills: int = 100
    records: int = 500_000
    restarts: int = 4
    seed: int = 0
    leader_gap_s: tuple[float, float] = (0.5, 3.0)
    broker_gap_s: tuple[float, float] = (4.0, 10.0)
    patience_s: float = 240.0


@dataclass
class Report:
    """The events of a soak, and the findings."""

    plan: Plan
    kills: int = 0
    kills_of_active: int = 0
    records: int = 0
    """Records that the source acknowledged, and committed."""
    aborted: int = 0
    unknown: int = 0
    leader_moves: dict[str, int] = field(default_factory=dict)
    broker_pauses: int = 0
    broker_restarts: int = 0
    crashes: list[int] = field(default_factory=list)
    stopped: dict[str, str] = field(default_factory=dict)
    """The mirror's words on partitions that did not come to the end."""
    verdict: Verdict = field(default_factory=Verdict)
    catch_up_s: float = 0.0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return self.verdict.clean and not self.crashes and not self.stopped

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        anomalies = told.pop("verdict")
        on = told.pop("leader_moves")
        return {
            **told,
            "leader_moves": sum(on.values()),
            "leader_moves_on": on,
            **anomalies,
            "offsets_identical": self.verdict.offsets_identical,
            "clean": self.clean,
        }


async def soak(source: KafkaCluster, target: KafkaCluster, plan: Plan, name: str) -> Report:
    """Play the whole scene between two running clusters. `name` keeps topics and link apart from others."""
    report = Report(plan)
    began = time.monotonic()
    topics = [f"{name}-{each}" for each in _TOPICS]
    await asyncio.to_thread(_make_topics, source, topics)
    chosen = [(f"{name}-{each}", kind) for each, names in _TOPICS.items() for kind in KINDS if kind.name in names]
    pace = Pace(math.ceil(plan.records / sum(kind.share for _, kind in chosen)))
    writers = [Writer(kind, source.bootstrap, topic, range(_PARTITIONS), pace) for topic, kind in chosen]
    async with link_between(source, target, name) as world:
        for topic in topics:
            await world.mirror(topic)
        with Fleet(world, random.Random(plan.seed)) as fleet:
            for writer in writers:
                writer.start()
            async with _chaos(source, target, topics, plan, report):
                await _suffer(fleet, plan, pace)
                await asyncio.to_thread(_join, writers)
            for cluster in (source, target):
                await asyncio.to_thread(cluster.wait_ready)
            report.catch_up_s, report.stopped = await _catch_up(world, topics, plan.patience_s)
            fleet.note_crashes()
            report.kills, report.kills_of_active, report.crashes = fleet.kills, fleet.kills_of_active, fleet.crashes
    ledgers = {writer.writes_as: writer.ledger for writer in writers}
    report.records = sum(ledger.count for ledger in ledgers.values())
    report.aborted = sum(len(each) for ledger in ledgers.values() for each in ledger.aborted.values())
    report.unknown = sum(ledger.unknown for ledger in ledgers.values())
    for topic in topics:
        mine = {name: ledger for name, ledger in ledgers.items() if name.startswith(f"{topic}/")}
        report.verdict += await asyncio.to_thread(judge, source.bootstrap, target.bootstrap, topic, mine)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _join(writers: list[Writer]) -> None:
    for writer in writers:
        writer.join()
        if writer.failure is not None:
            raise writer.failure


async def _suffer(fleet: Fleet, plan: Plan, pace: Pace) -> None:
    """Do all kills. The writers may always be a part ahead of the kills."""
    told = 0
    for kill in range(plan.kills):
        pace.part = (kill + 1) / plan.kills
        await fleet.suffer(kill + 1)
        if kill + 1 >= told + max(plan.kills // 10, 1):
            told = kill + 1
            say(f"  {told} of {plan.kills} mirrors killed")
    pace.part = 1.0


@contextlib.asynccontextmanager
async def _chaos(
    source: KafkaCluster, target: KafkaCluster, topics: list[str], plan: Plan, report: Report
) -> AsyncIterator[None]:
    """Move leaders and pause brokers for as long as the block lasts. After the block every broker runs again."""
    report.leader_moves = {cluster.spec.name: 0 for cluster in (source, target)}
    done = Disturbance()

    def dice(number: int) -> random.Random:
        return random.Random(plan.seed * 10 + number)

    async with asyncio.TaskGroup() as group:
        moved = (source, topics), (target, [*topics, STATE_TOPIC, PRESENCE_TOPIC])
        tasks = [
            group.create_task(move_leaders(cluster, names, dice(number), report.leader_moves, plan.leader_gap_s))
            for number, (cluster, names) in enumerate(moved)
        ]
        tasks.append(group.create_task(disturb([source, target], dice(9), done, plan.broker_gap_s, plan.restarts)))
        yield
        for task in tasks:
            task.cancel()
    report.broker_pauses, report.broker_restarts = done.pauses, done.restarts


async def _catch_up(world: World, topics: list[str], patience_s: float) -> tuple[float, dict[str, str]]:
    """Return the seconds until both logs end alike, and the mirror's words on the partitions that do not."""
    began = time.monotonic()
    behind: dict[str, str] = {}
    while time.monotonic() < began + patience_s:
        behind = {}
        for topic in topics:
            try:
                theirs = await asyncio.to_thread(bounds, world.source.bootstrap, topic)
                ours = await asyncio.to_thread(bounds, world.target.bootstrap, topic)
            except (KafkaException, TimeoutError, KeyError) as error:
                behind[topic] = str(error)
                continue
            told = world.progress(topic)
            for partition, where in theirs.items():
                if ours.get(partition) != where:
                    problem = told[partition].problem if partition in told else ""
                    behind[f"{topic}-{partition}"] = f"{ours.get(partition)} of {where}: {problem or 'no problem told'}"
        if not behind:
            break
        await asyncio.sleep(0.2)
    return round(time.monotonic() - began, 1), behind


def _make_topics(cluster: KafkaCluster, topics: list[str]) -> None:
    create_topics(
        cluster.client(),
        [NewTopic(topic, _PARTITIONS, 3, config={"min.insync.replicas": "2"}) for topic in topics],
    )
    wait_in_sync(cluster)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=Plan.kills)
    arguments.add_argument("--records", type=int, default=Plan.records)
    arguments.add_argument("--restarts", type=int, default=Plan.restarts)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    plan = Plan(**vars(arguments.parse_args()))
    say(f"{plan.kills} kills over {plan.records} records, seed {plan.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-soak-") as folder,
        running_clusters(Path(folder), *source_and_target(brokers=3)) as (source, target),
    ):
        report = asyncio.run(soak(source, target, plan, "soak"))
    path = save("soak/mirror", report.as_json())
    say(f"{path}: {'nothing lost, doubled or shifted' if report.clean else report.as_json()}; {report.seconds} s")
    sys.exit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
