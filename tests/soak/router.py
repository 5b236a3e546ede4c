"""Two routers that are killed, cut off and stopped under load: zero lost, doubled, reordered; never two owners.

    python -m tests.soak.router [--kills 50] [--rounds 100] [--seed N]

First the two routers are killed with -9 in turn and started again, while idempotent and transactional producers of
librdkafka, aiokafka and Java write through both. Then come rounds of promotes (`router_rounds`). The judges are
librdkafka's readers and the clients' own histories. The soak writes build/soak/router.json; exit code 1 on any anomaly.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from kmigrate.sandbox.checker import Finding
from kmigrate.sandbox.client_specs import ClientSpec, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.sandbox.ports import free_ports
from tests.fakes.relay import Relay
from tests.figures import save
from tests.integration.java_clients import JavaProgram
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.router_world import RouterProcess, ends, start_router
from tests.soak.router_rounds import SETTINGS, Fault, Round, Rounds

__all__ = ["Report", "kills", "migration", "rounds"]

_PARTITIONS = 3
_TOPICS = ("plain", "transactions", "java", "java-transactions")
_JAVA_RATE = 100
_KILL_S = 3.0
"""About the time of a kill with the restart. Java's tool is told beforehand how many records to write."""


@dataclass
class Report:
    """The figures of a soak."""

    seed: int
    kills: int = 0
    records: int = 0
    anomalies: dict[str, int | Finding] = field(default_factory=dict)
    """Anomalies of the kills, by name: from the sandbox's judge, and from Java's producers and their records."""
    java_said: dict[str, str] = field(default_factory=dict)
    """The end of the output of a Java producer that gave up, by topic."""
    rounds: list[Round] = field(default_factory=list)
    grown_later: int = 0
    """Records that the source took behind a barrier, counted once more when all rounds were over."""
    promotes_given_up: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not any(self.anomalies.values()) and all(r.clean for r in self.rounds) and not self.grown_later

    def as_json(self) -> dict[str, Any]:
        told = asdict(self)
        told["rounds"] = {
            "count": len(self.rounds),
            "by_fault": {fault: sum(r.fault is fault for r in self.rounds) for fault in Fault},
            "sealed": sum(r.sealed for r in self.rounds),
            "fence_to_flip_ms": sorted(r.fence_to_flip_ms for r in self.rounds),
            "records": sum(r.records for r in self.rounds),
            "lost": sum(r.lost for r in self.rounds),
            "duplicated": sum(r.duplicated for r in self.rounds),
            "reordered": sum(r.reordered for r in self.rounds),
            "of_transactions": sum(r.transactions > 0 for r in self.rounds),
            "transactions": sum(r.transactions for r in self.rounds),
            "aborted": sum(r.aborted for r in self.rounds),
            "client_errors": sum(len(r.client_errors) for r in self.rounds),
            "both_accepted": sum(r.both_accepted for r in self.rounds) + self.grown_later,
            "not_clean": [asdict(r) for r in self.rounds if not r.clean],
        }
        return {**told, "clean": self.clean}


@contextmanager
def migration(settings: str = "") -> Iterator[Migration]:
    """Run a migration on fresh clusters in a folder that is removed with them."""
    with tempfile.TemporaryDirectory(prefix="kmigrate-soak-") as folder, fresh_migration(Path(folder), settings) as run:
        yield run


def kills(run: Migration, count: int, report: Report) -> None:
    """Kill the routers in turn and start them again: everything acknowledged must be there, once and in order."""
    for topic in _TOPICS:
        run.make_topic(topic, _PARTITIONS)
    specs: list[ClientSpec] = [
        ProducerSpec("rd", "librdkafka", "plain", 150.0),
        ProducerSpec("aio", "aiokafka", "plain", 100.0),
        TransactionalSpec("till", "transactions", 100.0),
    ]
    traffic = run.run_clients(specs)
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror")
    run.does("topic", "mirror", *_TOPICS)
    ports = free_ports(2)
    routers = [start_router(name, run.target, port, log_level="ERROR") for name, port in zip("ab", ports, strict=True)]
    addresses = ",".join(router.bootstrap for router in routers)
    java: dict[str, JavaProgram] = {}
    try:
        for role in ("producers", "transactional"):
            traffic.roll(role, addresses)
        wanted = round(count * _KILL_S * _JAVA_RATE)
        java = {topic: _java(run.folder, addresses, topic, wanted) for topic in _TOPICS[2:]}
        dice = random.Random(report.seed)
        for number in range(count):
            time.sleep(dice.uniform(0.3, 2.0))
            routers[number % 2] = _killed(routers[number % 2], run.target, ports[number % 2])
            report.kills += 1
        codes = {topic: producer.ended(300) for topic, producer in java.items()}
        traffic.stop()
        for topic in _TOPICS:
            wait_until(lambda topic=topic: _alike(run, topic), 60, f"the mirror of {topic} to catch up")  # type: ignore[misc]
        verdict = run.judge("plain", "transactions")
        report.records = verdict.acked + wanted * len(java)
        report.anomalies = {**verdict.named}
        for topic, producer in java.items():
            found = _judge_java(run.target.bootstrap, topic, wanted, codes[topic], producer.said)
            report.anomalies |= {f"{topic}_{name}": number for name, number in found.items()}
            if found["client_errors"]:
                report.java_said[topic] = producer.said[-3000:]
    finally:
        for producer in java.values():
            producer.end()
        for router in routers:
            router.kill()


def _killed(router: RouterProcess, target: KafkaCluster, port: int) -> RouterProcess:
    router.kill()
    return start_router(router.name, target, port, log_level="ERROR")


def _alike(run: Migration, topic: str) -> bool:
    return ends(run.source.bootstrap, topic, _PARTITIONS) == ends(run.target.bootstrap, topic, _PARTITIONS)


def _java(folder: Path, bootstrap: str, topic: str, records: int) -> JavaProgram:
    """Start Kafka's own producer: idempotent, or in transactions of 50 ms. The producer's values count up."""
    transactional = topic.endswith("transactions")
    producer = JavaProgram(folder, topic, level="info")
    producer.run(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
        "--payload-monotonic", "--throughput", str(_JAVA_RATE),
        *(["--transactional-id", topic, "--transaction-duration-ms", "50"] if transactional else []),
        "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all", "enable.idempotence=true",
    )  # fmt: skip
    return producer


def _judge_java(bootstrap: str, topic: str, wanted: int, code: int, said: str) -> dict[str, int]:
    """Count anomalies: every number must stand in the topic once, and each partition's numbers must count up."""
    by_partition: dict[int, list[int]] = {}
    for record in read_topic(bootstrap, topic):
        by_partition.setdefault(record.partition, []).append(int(record.value or b"-1"))
    found = [number for numbers in by_partition.values() for number in numbers]
    return {
        "lost": len(set(range(wanted)) - set(found)),
        "duplicated": len(found) - len(set(found)),
        "reordered": sum(numbers != sorted(numbers) for numbers in by_partition.values()),
        "client_errors": int(code != 0) + len(re.findall(r"^[\w.]+Exception", said, re.MULTILINE)),
    }


def rounds(run: Migration, count: int, report: Report) -> None:
    """Play promotes under each fault in turn."""
    with Relay(run.target.bootstrap) as relay, Rounds(run, relay, random.Random(report.seed)) as playing:
        report.rounds, report.promotes_given_up = playing.rounds, playing.given_up
        for number, fault in enumerate(islice(cycle(Fault), count), start=1):
            found = playing.play(fault)
            if number % 10 == 0 or not found.clean:
                _say(f"  round {number}: {found}")
        report.grown_later = playing.grown()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    asked = arguments.parse_args()
    report, began = Report(asked.seed), time.monotonic()
    _say(f"{asked.kills} kills and {asked.rounds} rounds, seed {asked.seed}")
    if asked.kills:
        with migration() as run:
            kills(run, asked.kills, report)
    if asked.rounds:
        with migration(SETTINGS) as run:
            rounds(run, asked.rounds, report)
    report.seconds = round(time.monotonic() - began, 1)
    path = save("soak/router", report.as_json())
    _say(f"{path}: {'nothing lost, doubled or reordered, and one owner at any time' if report.clean else 'NOT CLEAN'}")
    sys.exit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
