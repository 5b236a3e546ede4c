"""Topics that go to the target and back again and again, while processes are killed and brokers stand still.

    python -m tests.soak.rollbacks [--rounds 20] [--seed N]

Idempotent producers of librdkafka, aiokafka and Java write two topics through a router, and a group reads them. Each
round promotes both topics with a way back, and rolls both back. A fault disturbs the promote or the rollback. A verb
that gives up must say what is still true, and must succeed when it is repeated. In the end both clusters must have the
same records at the same offsets. The judge is the sandbox's checker. The soak writes build/soak/rollbacks.json; exit
code 1 on any anomaly.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kmigrate.errors import Failed
from kmigrate.sandbox.checker import Finding
from kmigrate.sandbox.client_specs import ConsumerSpec, ProducerSpec
from kmigrate.sandbox.final_read import FinalRecord, read_topic
from kmigrate.sandbox.kafka import KafkaCluster
from tests.figures import save
from tests.integration.migration import Migration, fresh_migration, wait_until

__all__ = ["Fault", "Report", "play"]

_TOPICS = ("orders", "bills")
_GROUP = "billing"
_SETTINGS = "[promote]\nfence_timeout_s = 10.0\nstraggler_window_s = 1.0\n"
_CATCH_UP_S = 60.0


class Fault(StrEnum):
    """The fault of a round."""

    NONE = "none"
    ROUTER = "the router is killed"
    MIRROR = "the mirror is killed"
    CONTROLLER = "the controller is killed"
    SOURCE = "the source's broker stands still"
    TARGET = "the target's broker stands still"


@dataclass
class Report:
    """The figures of a soak."""

    seed: int
    rounds: dict[Fault, int] = field(default_factory=lambda: dict.fromkeys(Fault, 0))
    acked: int = 0
    anomalies: dict[str, Finding] = field(default_factory=dict)
    different: dict[str, int] = field(default_factory=dict)
    """Records that only one of the clusters has at its offset, by topic."""
    failed: str = ""
    """The reason for which the soak did not come to its end."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        found = any(finding.count for finding in self.anomalies.values())
        return not (self.failed or found or any(self.different.values()))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "clean": self.clean}


def play(run: Migration, rounds: int, report: Report) -> None:
    """Play all rounds, and judge what is left of the records."""
    dice = random.Random(report.seed)
    _begin(run)
    for number in range(rounds):
        fault = list(Fault)[number % len(Fault)]
        # A promote past a router that does not answer has no way back. Otherwise either verb may be disturbed.
        in_rollback = fault is Fault.ROUTER or dice.random() < 0.5
        time.sleep(1.5)  # so that no write past the router is recent
        _flip(run, "promote", "--way-back", fault=Fault.NONE if in_rollback else fault, dice=dice)
        _flip(run, "rollback", fault=fault if in_rollback else Fault.NONE, dice=dice)
        report.rounds[fault] += 1
        sys.stderr.write(f"  round {number}: {fault}, in the {'rollback' if in_rollback else 'promote'}\n")
    assert run.traffic is not None
    run.traffic.stop()
    for topic in _TOPICS:
        wait_until(lambda topic=topic: not _different(run, topic), _CATCH_UP_S, f"the copy of {topic}")  # type: ignore[misc]
        report.different[topic] = _different(run, topic)
    verdict = run.judge(*_TOPICS)
    report.acked, report.anomalies = verdict.acked, dict(verdict.findings)


def _begin(run: Migration) -> None:
    """Move the clients to the router, mirror both topics, and promote the group."""
    for topic in _TOPICS:
        run.make_topic(topic, 3)
    run.run_clients(
        [
            ProducerSpec("p-rd", "librdkafka", "orders", 200.0),
            ProducerSpec("p-aio", "aiokafka", "orders", 100.0),
            ProducerSpec("p-java", "java", "bills", 200.0),
            ConsumerSpec("c-rd", "librdkafka", _GROUP, _TOPICS),
        ]
    )
    run.does("link", "create", "blue", "--source", "source", "--target", "target")
    run.start("mirror", "router", "controller")
    run.does("topic", "mirror", *_TOPICS)
    run.does("group", "mirror", _GROUP)
    assert run.traffic is not None
    for role in ("producers", "consumers"):
        run.traffic.roll(role, run.routers)
    run.does("group", "promote", _GROUP, "--yes")
    run.does("wait", "lag <= 1000", *_TOPICS)


def _flip(run: Migration, verb: str, *options: str, fault: Fault, dice: random.Random) -> None:
    """Promote the topics or roll them back, under a fault, and wait until all clients go on."""

    def disturb() -> None:
        time.sleep(dice.uniform(0.0, 2.5))
        _disturb(run, fault, dice)

    run.again(verb, *_TOPICS, "--yes", *options, during=disturb)
    run.writers_go_on(50)
    run.consumers_go_on()


def _disturb(run: Migration, fault: Fault, dice: random.Random) -> None:
    match fault:
        case Fault.NONE:
            return
        case Fault.SOURCE | Fault.TARGET:
            _stand_still(run.source if fault is Fault.SOURCE else run.target, dice.uniform(0.5, 4.0))
        case Fault.ROUTER | Fault.MIRROR | Fault.CONTROLLER:
            name = fault.name.lower()
            run.kill(name)
            time.sleep(dice.uniform(0.0, 1.0))
            run.start(name)
    if fault is Fault.ROUTER:
        run.does("router", "forget", "router", "--dead", "--yes")


def _stand_still(cluster: KafkaCluster, seconds: float) -> None:
    cluster.pause(1)
    try:
        time.sleep(seconds)
    finally:
        cluster.resume(1)


def _different(run: Migration, topic: str) -> int:
    """Return how many records only one of the clusters has at its offset."""
    source, target = (set[FinalRecord](read_topic(each.bootstrap, topic)) for each in (run.source, run.target))
    return len(source ^ target)


def main(words: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=20, help="promotes, each with a rollback")
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="the moments of the faults")
    asked = arguments.parse_args(words)
    report, began = Report(asked.seed), time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-rollbacks-") as folder,
        fresh_migration(Path(folder), _SETTINGS) as run,
    ):
        try:
            play(run, asked.rounds, report)
        except (AssertionError, Failed) as error:
            report.failed = str(error)[-4000:]
    report.seconds = round(time.monotonic() - began, 1)
    path = save("soak/rollbacks", report.as_json())
    outcome = "clean" if report.clean else f"NOT CLEAN: {report.failed}"
    sys.stderr.write(
        f"{path}: seed {report.seed}, {sum(report.rounds.values())} rounds, {report.acked:,} acked: {outcome}\n"
    )
    return 0 if report.clean else 1


if __name__ == "__main__":
    sys.exit(main())
