"""The cost of a check beyond reading: the parity job against a bare count() of the same two topics, in a single run.

    python -m tests.bench.spark [--rounds 5] [--records 500000] [--memory-rounds 3] [--bulk-pairs 3]

kmigrate's own mirror copies two topics of 1 kB records. The second topic has four times the records of the first. Then:

parity_ratio  In a warm session, counts and checks of the larger topic alternate, and who is first alternates, too. A
              count reads the same ranges of both clusters through the same source with the same settings. The ratio is
              count time by check time of each round.
peak_rss_mb   `kmigrate verify --full` on each topic as a person runs it: the peaks of its process and of Spark's.
rerun_...     `kmigrate verify` where nothing is new: all of its time counts as time over Spark's start, because Spark
              is not started for it.
bulk          Spark's tasks against the mirror process, which copy the same topic in turn (`tests.bench.bulk`).

The bench writes build/bench/spark.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from kmigrate.kafka_jars.jars import ensure_spark_kafka_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.parity.plan import TopicRange
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION
from kmigrate.spark.options import KafkaOptions
from kmigrate.spark.parity import compare_clusters
from kmigrate.spark.session import spark_session
from kmigrate.spark.source import bare_rows
from tests.bench.bulk import bulk_case
from tests.bench.load import CASES, Case, load, make_topic
from tests.bench.meter import TreePeak, spread
from tests.bench.mirror import PARTITIONS, cluster
from tests.figures import save
from tests.integration.migration import Migration
from tests.integration.mirror_world import bounds

ONE, FOUR = "one", "four"
_COPY_S = 300.0

say = Console(stderr=True, highlight=False).print


class Bench:
    """Two topics of 1 kB records that a mirror keeps equal, and the measurements on them."""

    def __init__(self, run: Migration, records: int) -> None:
        self.run = run
        self.cases = {ONE: replace(CASES["1kB"], records=records), FOUR: replace(CASES["1kB"], records=4 * records)}

    def copy(self) -> None:
        for topic, case in self.cases.items():
            make_topic(self.run.source.bootstrap, topic, PARTITIONS)
            load(self.run.source.bootstrap, topic, PARTITIONS, case)
        self.run.does("link", "create", "blue", "--source", "source", "--target", "target")
        self.run.start("mirror")
        self.run.does("topic", "mirror", *self.cases)
        deadline = time.monotonic() + _COPY_S
        while any(self.ends(topic) != self.ends(topic, copied=True) for topic in self.cases):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not copied in {_COPY_S:.0f} s")
            time.sleep(0.5)

    def ends(self, topic: str, *, copied: bool = False) -> dict[int, tuple[int, int]]:
        try:
            return bounds((self.run.target if copied else self.run.source).bootstrap, topic)
        except KeyError:
            return {}

    # the ratio

    def ratio(self, rounds: int) -> dict[str, Any]:
        case = self.cases[FOUR]
        ranges = [TopicRange(FOUR, p, *ends) for p, ends in self.ends(FOUR).items()]
        seconds: dict[str, list[float]] = {"count": [], "parity": []}
        with spark_session(jars=ensure_spark_kafka_jars(), java_home=find_java().home) as spark:
            for name in seconds:  # the JVM compiles the code of both
                self.timed(spark, name, ranges, case)
            for number in range(rounds):
                for name in ("count", "parity") if number % 2 == 0 else ("parity", "count"):
                    seconds[name].append(self.timed(spark, name, ranges, case))
        ratios = [count / parity for count, parity in zip(*seconds.values(), strict=True)]
        return {
            "parity_ratio": round(statistics.median(ratios), 3),
            "parity_ratio_spread": spread(ratios),
            "records": 2 * case.records,
            "record_bytes": case.record_bytes,
            "count_seconds": spread(seconds["count"]),
            "parity_seconds": spread(seconds["parity"]),
            "parity_mb_per_s": spread([2 * case.gigabytes * 1e3 / each for each in seconds["parity"]]),
        }

    def timed(self, spark: SparkSession, name: str, ranges: list[TopicRange], case: Case) -> float:
        sides = KafkaOptions(self.run.source.bootstrap), KafkaOptions(self.run.target.bootstrap)
        began = time.monotonic()
        if name == "count":
            first, second = (bare_rows(spark, side, [each.at_source for each in ranges]) for side in sides)
            found = first.unionAll(second).count()
        else:
            report = compare_clusters(spark, ranges, *sides)
            if not report.equal:
                raise RuntimeError("the copy is not equal")
            found = 2 * report.records
        took = time.monotonic() - began
        if found != 2 * case.records:
            raise RuntimeError(f"{name} saw {found} of {2 * case.records} records")
        say(f"  {name}: {took:.2f} s, {found / took / 1e3:.0f} k rec/s")
        return took

    # the command

    def memory(self, rounds: int) -> dict[str, Any]:
        peaks: dict[str, list[float]] = {ONE: [], FOUR: []}
        starts: list[float] = []
        for number in range(rounds):
            for topic in (ONE, FOUR) if number % 2 == 0 else (FOUR, ONE):
                told, _, peak = self.verify(topic, "--full")
                if told["records"] != self.cases[topic].records:
                    raise RuntimeError(f"{told['records']} records of {topic} were compared")
                peaks[topic].append(peak)
                starts.append(told["seconds"]["session"])
                say(f"  verify {topic}: {told['seconds']['total']} s, {peak:.0f} MB")
        medians = {topic: statistics.median(each) for topic, each in peaks.items()}
        return {
            "peak_rss_mb": round(max(medians.values())),
            "peak_rss_mb_by_data": {topic: round(each) for topic, each in medians.items()},
            "peak_rss_ratio": round(medians[FOUR] / medians[ONE], 3),
            "peak_rss_spread": {topic: spread(each) for topic, each in peaks.items()},
            "spark_start_seconds": spread(starts),
        }

    def rerun(self, rounds: int = 3) -> dict[str, Any]:
        """Measure a check that has nothing to read."""
        took = []
        for _ in range(rounds):
            told, seconds, _ = self.verify()
            if told["records"] or not told["verified_before"]:
                raise RuntimeError("something was read again")
            took.append(seconds)
        say(f"  rerun: {statistics.median(took):.2f} s")
        return {
            "rerun_seconds_over_startup": round(statistics.median(took), 2),
            "rerun_seconds_spread": spread(took),
            "rerun_starts_spark": False,
        }

    def verify(self, *words: str) -> tuple[Any, float, float]:
        """Return the output of `kmigrate verify`, its seconds, and its peak memory with Spark's, MB."""
        command = [sys.executable, "-m", "kmigrate", "verify", *words, "--config", str(self.run.config), "--json"]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            with TreePeak(process.pid) as peak:
                out, _ = process.communicate(timeout=600)
            if process.returncode:
                raise RuntimeError(f"verify {' '.join(words)}: exit code {process.returncode}, {out!r}")
        return json.loads(out), time.monotonic() - began, peak.mb


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--memory-rounds", type=int, default=3)
    arguments.add_argument("--records", type=int, default=500_000)
    arguments.add_argument("--bulk-pairs", type=int, default=3)
    chosen = arguments.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {
        "rounds": chosen.rounds,
        "partitions": PARTITIONS,
        "cores": os.cpu_count(),
        "source": SOURCE_VERSION,
        "target": TARGET_VERSION,
    }
    with tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder:
        root = Path(folder)
        with cluster("source", SOURCE_VERSION, root) as source:
            with cluster("target", TARGET_VERSION, root) as target:
                run = Migration(source, target, root / "run")
                bench = Bench(run, chosen.records)
                try:
                    bench.copy()
                finally:
                    run.stop()
                say(f"copied: {5 * chosen.records} records of 1 kB")
                found |= bench.ratio(chosen.rounds)
                found |= bench.memory(chosen.memory_rounds)
                found |= bench.rerun()
            if chosen.bulk_pairs:
                found["bulk"] = bulk_case(root, source, pairs=chosen.bulk_pairs)
    found["seconds"] = round(time.monotonic() - began)
    path = save("bench/spark", found)
    say(f"{path}: parity_ratio {found['parity_ratio']}; {found['seconds']} s")


if __name__ == "__main__":
    main()
