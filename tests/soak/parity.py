"""All kinds of faults among five million records: each must be found and named exactly, and nothing else.

    python -m tests.soak.parity [--records 5000000] [--partitions 5] [--seed N]

There are two sandbox brokers. librdkafka writes both sides, the target's with the faults (tests.soak.planted). Beside
the planted topic lies a sound topic with a tenth of the records, about which the check must say nothing. Both topics
are in the same check. The soak writes build/soak/parity.json; exit code 1 if anything is missed, misnamed or made up.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from kmigrate.kafka_jars.jars import ensure_spark_kafka_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.parity.plan import TopicRange
from kmigrate.parity.verdict import Anomaly
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters
from kmigrate.spark.session import spark_session
from tests.clusters import running_clusters, source_and_target
from tests.figures import save
from tests.integration.mirror_world import bounds
from tests.soak.planted import KINDS, Planting, make_topic, plant, write, write_target

__all__ = ["Report", "write_both"]

PLANTED, SOUND = "planted", "sound"

say = Console(stderr=True, highlight=False).print


@dataclass
class Report:
    """The planted faults, and the findings of the check."""

    records: int
    seed: int
    found: list[dict[str, Any]] = field(default_factory=list)
    missed: list[dict[str, Any]] = field(default_factory=list)
    made_up: list[dict[str, Any]] = field(default_factory=list)
    """Findings of the check that were not planted."""
    mismatches: int = 0
    sound_mismatches: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        exact = len(self.found) == self.mismatches == len(KINDS)
        return exact and not self.missed and not self.made_up and not self.sound_mismatches


def write_both(source: str, target: str, topic: str, planting: Planting) -> None:
    """Write both logs, the target's first: the source gets the time of a record that the target's broker stamps."""
    for bootstrap in (source, target):
        make_topic(bootstrap, topic, planting.partitions)
    for partition in range(planting.partitions):
        write_target(target, topic, partition, planting)
    for partition in range(planting.partitions):
        write(source, topic, partition, planting.source(partition))


def soak(source: KafkaCluster, target: KafkaCluster, records: int, partitions: int, seed: int) -> Report:
    began = time.monotonic()
    report = Report(records, seed)
    planting = plant(partitions, records // partitions, KINDS, seed)
    write_both(source.bootstrap, target.bootstrap, PLANTED, planting)
    write_both(source.bootstrap, target.bootstrap, SOUND, plant(partitions, records // partitions // 10, (), seed))
    report.seconds["writing"] = round(time.monotonic() - began, 1)
    say(f"written in {report.seconds['writing']} s")
    ranges = [
        TopicRange(topic, partition, *ends)
        for topic in (PLANTED, SOUND)
        for partition, ends in bounds(source.bootstrap, topic).items()
    ]
    sides = KafkaOptions(source.bootstrap), KafkaOptions(target.bootstrap)
    starting = time.monotonic()
    with spark_session(jars=ensure_spark_kafka_jars(), java_home=find_java().home) as spark:
        told = compare_clusters(spark, ranges, *sides, session_seconds=time.monotonic() - starting)
    report.mismatches = told.mismatches
    report.sound_mismatches = sum(row.mismatches for row in told.topics if row.topic == SOUND)
    report.seconds |= {stage: round(took, 1) for stage, took in told.seconds.items()}
    left = set(told.findings)
    for fault, allowed in zip(planting.faults, planting.told(PLANTED), strict=True):
        named = left & allowed
        left -= named
        if len(named) == 1:
            report.found.append({"planted": fault.kind, **_shown(*named)})
        else:
            report.missed.append({"planted": fault.kind, "allowed": [_shown(each) for each in allowed]})
    report.made_up = [_shown(each) for each in left]
    return report


def _shown(each: Anomaly) -> dict[str, Any]:
    return {
        "kind": each.kind.value,
        "topic": each.topic,
        "source": each.source and each.source._asdict(),
        "target": each.target and each.target._asdict(),
        "parts": list(each.parts),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=5_000_000)
    arguments.add_argument("--partitions", type=int, default=5)
    arguments.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    chosen = arguments.parse_args()
    say(f"{chosen.records} records, {len(KINDS)} faults, seed {chosen.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-soak-") as folder,
        running_clusters(Path(folder), *source_and_target()) as (source, target),
    ):
        report = soak(source, target, **vars(chosen))
    path = save("soak/parity", {"clean": report.clean, **asdict(report)})
    verdict = f"all {len(KINDS)} named exactly, nothing else" if report.clean else asdict(report)
    say(f"{path}: {verdict}; {report.seconds}")
    sys.exit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
