"""A router behind which clients live for weeks, in minutes: the router holds the same after 200 route changes.

    python -m tests.soak.weeks [--changes 200] [--idle 10] [--busy 50]

There are a router process, 50 producers that write all the time, and 10 connections that say nothing. At each change
the topic to which all producers write is fenced, drained and given back. Meanwhile topics, groups and links are
mirrored and forgotten, and clients come and go. Each of these clients has a client id, a transactional id and a group
that nobody had before. Now and then such a topic is promoted. The soak measures memory, files, asyncio tasks, and the
length of everything that the router remembers (`census`), over the first quarter and the last. The soak writes
build/soak/weeks.json; exit code 1 where anything has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.model.lifecycle import GroupPhase, TopicPhase
from kmigrate.model.records import ClusterRef, LinkRecord
from kmigrate.sandbox.kafka import KafkaCluster
from tests.clusters import running_clusters, source_and_target
from tests.figures import save
from tests.integration.router_world import RouterProcess, World, Writer, link_between, quietly, router
from tests.soak.census import grown

__all__ = ["Report", "play"]

_BUSY, _PARTITIONS = "busy", 3
_FLAT = 1.05
_OF_SOURCES = "_clusters._sources[].client"
_BOUNDS = {
    "_state_log._fold.nonces": 4096,
    f"{_OF_SOURCES}._refreshes": 512,
    f"{_OF_SOURCES}.layout._agreed": 512,
    f"{_OF_SOURCES}.layout._agreed[]": 512,
    f"{_OF_SOURCES}.metadata_cache.known.topics": 200,
    f"{_OF_SOURCES}.metadata_cache.known.topics[].partitions": 200 * _PARTITIONS,
}
"""Containers that may grow for long, and not for ever."""
_EACH_PROMOTE = 10


@dataclass
class Sample:
    """The holdings of the router process at a moment."""

    change: int
    rss_kb: int
    files: int
    tasks: int
    lengths: dict[str, int] = field(repr=False)


@dataclass
class Report:
    """The figures of a soak."""

    changes: int = 0
    promotes: int = 0
    records: int = 0
    client_errors: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    """The longest wait of a write for its answer, and so for a fence."""
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    def _quarter(self, *, last: bool) -> list[Sample]:
        """Return a quarter of the samples after the first tenth, in which everything is used for the first time."""
        counted = self.samples[len(self.samples) // 10 :]
        count = max(1, len(counted) // 4)
        return counted[-count:] if last else counted[:count]

    def figures(self) -> dict[str, tuple[float, float]]:
        """Return the early and the late median of each figure."""
        early, late = self._quarter(last=False), self._quarter(last=True)
        reads: dict[str, Callable[[Sample], int]] = {
            "rss_kb": lambda sample: sample.rss_kb,
            "files": lambda sample: sample.files,
            "tasks": lambda sample: sample.tasks,
        }
        return {name: (median(map(read, early)), median(map(read, late))) for name, read in reads.items()}

    def grown(self) -> dict[str, tuple[int, int]]:
        early, late = ([each.lengths for each in self._quarter(last=last)] for last in (False, True))
        return grown(early, late, _BOUNDS)

    @property
    def clean(self) -> bool:
        flat = all(late <= early * _FLAT for early, late in self.figures().values())
        return flat and not self.grown() and not self.client_errors

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["samples"] = [[each.change, each.rss_kb, each.files, each.tasks] for each in self.samples]
        told["figures"] = {name: {"early": early, "late": late} for name, (early, late) in self.figures().items()}
        told["grown"] = {path: {"early": early, "late": late} for path, (early, late) in self.grown().items()}
        told["longest"] = dict(sorted(self.samples[-1].lengths.items(), key=lambda each: -each[1])[:20])
        return {**told, "clean": self.clean}


def play(report: Report, changes: int, idle: int, busy: int) -> None:
    """Run the soak on fresh clusters, in a folder that is removed with them."""
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-weeks-") as folder,
        running_clusters(Path(folder), *source_and_target(1)) as (source, target),
    ):
        _make(source, target, _BUSY)
        asyncio.run(_play(report, source, target, changes, idle, busy))


async def _play(report: Report, source: KafkaCluster, target: KafkaCluster, changes: int, idle: int, busy: int) -> None:
    async with link_between(source, target, "blue") as world:
        await world.put(_BUSY, TopicPhase.MIRRORING)
        with router("weeks", target, log_level="ERROR") as running, ExitStack() as clients:
            await world.routers_apply()
            writers = [
                clients.enter_context(
                    Writer(running.bootstrap, _BUSY, f"busy-{number}", {"client.id": f"busy-{number}"}, pause=0.2)
                )
                for number in range(busy)
            ]
            for number in range(idle):
                clients.enter_context(_idle(running.bootstrap, number))
            for number in range(changes):
                await _change(world, running, number, report)
                if not number % max(1, changes // 50) or number == changes - 1:
                    report.samples.append(await quietly(_look, running, number))
                sys.stderr.write(f"  change {number}: {report.samples[-1]}\n")
            for writer in writers:
                await quietly(writer.finish)
            report.records = sum(writer.acked for writer in writers)
            report.slowest_s = round(max(writer.slowest for writer in writers), 2)
            report.client_errors += [error for writer in writers for error in writer.errors]


async def _change(world: World, running: RouterProcess, number: int, report: Report) -> None:
    """Make a fence and give it back, while everything else comes and goes."""
    log = world.log
    record = await world.fence(_BUSY)
    await world.put(f"passing-{number}", TopicPhase.MIRRORING)
    for phase in (GroupPhase.MIRRORED, GroupPhase.PROMOTING):
        await world.put_group(f"held-{number}", phase)
    red = LinkRecord(
        "red",
        f"uuid-{number}",
        ClusterRef("source", world.source.bootstrap, world.source.cluster_id),
        ClusterRef("target", world.target.bootstrap, world.target_id),
        1,
    )
    await log.append(lambda _: red)
    await world.drained(_BUSY, record.fence_epoch)
    await world.put(_BUSY, TopicPhase.MIRRORING)
    await world.routers_apply()
    report.client_errors += await quietly(_visit, running.bootstrap, number)
    if number % _EACH_PROMOTE == _EACH_PROMOTE - 1:
        await _promote(world, running, f"turn-{number}")
        report.promotes += 1
    leaving = ("topic/blue/passing-", "topic/blue/turn-", "barrier/blue/turn-", "group/", "transaction/", "link/red")
    for key in [key for key in log.state.records if key.startswith(leaving)]:
        await log.append(lambda state, key=key: (key, None) if key in state.records else None)  # type: ignore[misc]
    report.changes += 1


async def _promote(world: World, running: RouterProcess, topic: str) -> None:
    """Promote a topic of its own, because the topic's writers stay at the target."""
    await quietly(_make, world.source, world.target, topic)
    await world.put(topic, TopicPhase.MIRRORING)
    await world.routers_apply()
    with Writer(running.bootstrap, topic, topic, pause=0.01) as writer:
        await quietly(writer.until, 30)
        record = await world.fence(topic)
        await world.flip(topic, record.fence_epoch, await world.drained(topic, record.fence_epoch))
        await quietly(writer.until, writer.acked + 30)


def _make(source: KafkaCluster, target: KafkaCluster, topic: str) -> None:
    for cluster in (source, target):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap}, logger=None)
        admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(20)


@contextmanager
def _idle(bootstrap: str, number: int) -> Iterator[None]:
    client = Producer({"bootstrap.servers": bootstrap, "client.id": f"idle-{number}"}, logger=None)
    client.list_topics(timeout=20)
    yield
    del client


def _visit(bootstrap: str, number: int) -> list[str]:
    """Be clients that come once (a transaction, and a group that reads), and return what went wrong."""
    errors: list[str] = []
    base = {"bootstrap.servers": bootstrap, "client.id": f"visitor-{number}"}
    till = Producer({**base, "transactional.id": f"till-{number}", "linger.ms": 0}, logger=None)
    reader = Consumer(
        {**base, "group.id": f"readers-{number}", "auto.offset.reset": "earliest", "session.timeout.ms": 6000},
        logger=None,
    )
    try:
        till.init_transactions(20)
        till.begin_transaction()
        till.produce(_BUSY, b"visitor", partition=0)
        till.commit_transaction(20)
        reader.subscribe([_BUSY])
        reader.poll(0.1)
    except Exception as error:
        errors.append(f"visitor {number}: {error}")
    finally:
        reader.close()
        del till
    return errors


def _look(running: RouterProcess, change: int) -> Sample:
    """Return the figures of the process from the process and from the system."""
    running.process.send_signal(signal.SIGUSR2)
    assert running.process.stdout is not None
    told = json.loads(running.process.stdout.readline())
    proc = Path(f"/proc/{running.process.pid}")
    pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    files = len(list((proc / "fd").iterdir()))
    return Sample(change, pages * os.sysconf("SC_PAGE_SIZE") // 1024, files, told["tasks"], told["lengths"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--changes", type=int, default=200)
    arguments.add_argument("--idle", type=int, default=10)
    arguments.add_argument("--busy", type=int, default=50)
    asked = arguments.parse_args()
    report, began = Report(), time.monotonic()
    play(report, asked.changes, asked.idle, asked.busy)
    report.seconds = round(time.monotonic() - began, 1)
    path = save("soak/weeks", report.as_json())
    sys.stderr.write(f"{path}: {'nothing has grown' if report.clean else 'NOT CLEAN'}: {report.figures()}\n")
    sys.exit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
