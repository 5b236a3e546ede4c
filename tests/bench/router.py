"""The router against no router: Kafka's own performance tools, direct and routed in turn, in a single run.

    python -m tests.bench.router [--pairs 5] [--megabytes 2000] [--small-records 3000000]
                                 [--skip pass,forwarded,latency,connections,ahead]

pass_through  ProducerPerformance and ConsumerPerformance on a topic of the target that is not mirrored.
forwarded     ProducerPerformance on a mirrored topic: the router forwards to the source. The mirror itself stands
              still meanwhile, because the mirror would take its share of the machine from both sides.
latency_ms    The added wait for acknowledgements of 2,000 records a second, with linger 0, as librdkafka sees it.
read_ahead    ConsumerPerformance through the router and, in turn, through a second router that reads nothing ahead.
connections   The router's memory with many clients, each of which has asked for metadata and stays.

Each pair is a direct and a routed run, in alternating order. Producers write with acks=all and `--throughput -1` to six
partitions. Both brokers, the router and the tool share the machine. CPU is the router's own. The bench writes
build/bench/router.json; figures that miss their limits (`LIMITS`) are named there, and at the end, with exit code 1. A
partial run writes router-part.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from rich.console import Console

from kmigrate.kafka_jars.jars import ensure_jars
from kmigrate.kafka_jars.java import find_java
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.bench.limits import at_least, at_most, conclude
from tests.bench.meter import cpu_seconds, peak_rss_mb, spread
from tests.clusters import running_clusters, source_and_target
from tests.integration.migration import Migration

PARTITIONS = 6
_RATE = 2_000
_LATENCY_S = 10
_WARM_S = 15
"""The time of the warm-up. Fresh brokers are cold: a p99 at first shows the brokers' compiler."""
_CONNECTIONS = 5_000
_TOOL_S = 300
_SHORT_LIVED = {"retention.bytes": str(256 << 20), "segment.bytes": str(64 << 20)}
"""Settings with which a broker keeps only a part of the records. Topics for consumers keep all of their records."""

LIMITS = (
    at_least("pass_through.1kB.produce_ratio", 0.85),
    at_least("pass_through.100B.produce_ratio", 0.75),
    at_least("pass_through.1kB.consume_ratio", 0.75),
    at_least("pass_through.100B.consume_ratio", 0.75),
    at_most("pass_through.1kB.cpu_s_per_gb", 0.5),
    at_least("forwarded.1kB.produce_ratio", 0.85),
    at_least("forwarded.100B.produce_ratio", 0.75),
    at_most("latency_ms.p50_added", 0.5),
    at_most("latency_ms.p99_added", 3),
    at_most("connections.rss_mb", 1_000),
)
"""The requirements of the router."""

say = Console(stderr=True, highlight=False).print


@dataclass(frozen=True)
class Run:
    """A run of a tool: megabytes (of 1e6 bytes) a second, and the router's CPU seconds for each gigabyte."""

    mb_per_s: float
    cpu_s_per_gb: float


class Bench:
    """Two clusters, a router, and the measurements of a cluster or the router."""

    def __init__(self, run: Migration, pairs: int) -> None:
        self.run = run
        self.pairs = pairs
        self.tools = ensure_jars("kafka-tools", TARGET_VERSION)
        self._groups = 0

    @property
    def router(self) -> int:
        return self.run.engines["router"].pid

    def topic(self, cluster: KafkaCluster, name: str, configs: dict[str, str]) -> None:
        create_topics({"bootstrap.servers": cluster.bootstrap}, [NewTopic(name, PARTITIONS, 1, config=configs)])

    def mirror(self, topic: str) -> None:
        """Mirror the topic, and then let the mirror stand still."""
        self.run.does("link", "create", "blue", "--source", "source", "--target", "target")
        self.run.start("mirror")
        self.run.does("topic", "mirror", topic)
        self.run.kill("mirror")

    # Kafka's tools

    def _tool(self, name: str, *words: str) -> str:
        command = [
            str(find_java().executable), "-Xmx512m", "-cp", f"{self.tools}/*", f"org.apache.kafka.tools.{name}", *words
        ]  # fmt: skip
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
        if ran.returncode:
            raise RuntimeError(f"{name}: {ran.stdout[-500:]} {ran.stderr[-2000:]}")
        return ran.stdout

    def produce(self, bootstrap: str, topic: str, records: int, size: int) -> Run:
        before = cpu_seconds(self.router)
        told = self._tool(
            "ProducerPerformance", "--topic", topic, "--num-records", str(records), "--record-size", str(size),
            "--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all",
        )  # fmt: skip
        spent = cpu_seconds(self.router) - before
        sent, rate = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", told, re.MULTILINE)[-1]
        if int(sent) != records:
            raise RuntimeError(f"{sent} of {records} records were stored: {told[-500:]}")
        return Run(float(rate) * size / 1e6, spent / (records * size / 1e9))

    def consume(self, bootstrap: str, topic: str, records: int, size: int) -> Run:
        self._groups += 1
        before = cpu_seconds(self.router)
        told = self._tool(
            "ConsumerPerformance", "--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records),
            "--group", f"bench-{self._groups}", "--timeout", "60000", "--hide-header",
        )  # fmt: skip
        spent = cpu_seconds(self.router) - before
        fields = told.strip().splitlines()[-1].split(",")
        read, fetch_s = int(fields[4]), int(fields[7]) / 1000
        if read < records:
            raise RuntimeError(f"{read} of {records} records were read: {told[-500:]}")
        return Run(read * size / 1e6 / fetch_s, spent / (read * size / 1e9))

    def ratio(self, what: str, direct: str, work: Callable[[str], Run], routed: str = "") -> dict[str, Any]:
        """Return the figures of runs in pairs. The first run of each side warms the brokers up and does not count."""
        routed = routed or self.run.routers
        work(direct), work(routed)
        runs: dict[str, list[Run]] = {direct: [], routed: []}
        for pair in range(self.pairs):
            for bootstrap in (direct, routed) if pair % 2 == 0 else (routed, direct):
                runs[bootstrap].append(work(bootstrap))
        ratios = [b.mb_per_s / a.mb_per_s for a, b in zip(runs[direct], runs[routed], strict=True)]
        found = {
            "ratio": round(statistics.median(ratios), 3),
            "spread": spread(ratios),
            "direct_mb_per_s": spread([each.mb_per_s for each in runs[direct]]),
            "routed_mb_per_s": spread([each.mb_per_s for each in runs[routed]]),
            "cpu_s_per_gb": round(statistics.median(each.cpu_s_per_gb for each in runs[routed]), 3),
        }
        say(f"  {what}: {json.dumps(found)}")
        return found

    def pass_through(self, records: int, size: int) -> dict[str, Any]:
        target, topic = self.run.target.bootstrap, f"written-{size}"
        self.topic(self.run.target, topic, _SHORT_LIVED)
        produced = self.ratio(
            f"produce {size} B", target, lambda bootstrap: self.produce(bootstrap, topic, records, size)
        )
        kept = f"read-{size}"
        self.topic(self.run.target, kept, {"retention.ms": "-1"})
        self.produce(target, kept, records, size)
        consumed = self.ratio(
            f"consume {size} B", target, lambda bootstrap: self.consume(bootstrap, kept, records, size)
        )
        return {
            "produce_ratio": produced["ratio"],
            "consume_ratio": consumed["ratio"],
            "cpu_s_per_gb": consumed["cpu_s_per_gb"],
            "records": records,
            "produce": produced,
            "consume": consumed,
        }

    def read_ahead(self, records: int, size: int) -> dict[str, Any]:
        """Measure consuming through this router and, in turn, through a second router that reads nothing ahead."""
        topic = "read-ahead"
        self.topic(self.run.target, topic, {"retention.ms": "-1"})
        self.produce(self.run.target.bootstrap, topic, records, size)
        with self.run.config.open("a", encoding="utf-8") as config:
            config.write("\n[router]\nread_ahead_bytes = 0\n")
        self.run.start("router-plain")
        without = f"127.0.0.1:{self.run.ports['router-plain']}"
        read = self.ratio(
            f"read ahead {size} B",
            without,
            lambda bootstrap: self.consume(bootstrap, topic, records, size),
            routed=f"127.0.0.1:{self.run.ports['router']}",
        )
        return {
            "gain": read["ratio"],
            "spread": read["spread"],
            "without_mb_per_s": read["direct_mb_per_s"],
            "with_mb_per_s": read["routed_mb_per_s"],
        }

    def forwarded(self, topic: str, records: int, size: int) -> dict[str, Any]:
        produced = self.ratio(
            f"forwarded {size} B",
            self.run.source.bootstrap,
            lambda bootstrap: self.produce(bootstrap, topic, records, size),
        )
        return {"produce_ratio": produced["ratio"], "records": records, "produce": produced}

    # latency

    def latency(self) -> dict[str, float | dict[str, float]]:
        """Return the median over the pairs of the time by which the routed acknowledgement comes later."""
        topic = "latency"
        self.topic(self.run.target, topic, _SHORT_LIVED)
        target, routed = self.run.target.bootstrap, self.run.routers
        _waits(target, topic, _WARM_S), _waits(routed, topic, _WARM_S)
        added: dict[str, list[float]] = {"p50": [], "p99": []}
        for pair in range(self.pairs):
            order = (target, routed) if pair % 2 == 0 else (routed, target)
            seen = {bootstrap: sorted(_waits(bootstrap, topic, _LATENCY_S)) for bootstrap in order}
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                at = {bootstrap: waits[int(len(waits) * share)] for bootstrap, waits in seen.items()}
                added[name].append((at[routed] - at[target]) * 1000)
        found = {f"{name}_added": round(statistics.median(values), 3) for name, values in added.items()}
        say(f"  latency: {found}")
        return {**found, **{f"{name}_spread": spread(values) for name, values in added.items()}}

    # connections

    def connections(self) -> dict[str, Any]:
        host, port = self.run.routers.rsplit(":", 1)
        return asyncio.run(_stay(host, int(port), _CONNECTIONS, self.router))


def _waits(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Return the seconds from each record's produce to its acknowledgement, at a steady rate."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    out: list[float] = []

    def sent_at(began: float) -> Callable[[Any, Any], None]:
        def acknowledged(error: Any, _: Any) -> None:
            if error is not None:
                raise RuntimeError(error)
            out.append(time.perf_counter() - began)

        return acknowledged

    began, sent = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        while sent < elapsed * _RATE:
            now = time.perf_counter()
            producer.produce(topic, b"x" * 100, partition=sent % PARTITIONS, on_delivery=sent_at(now))
            sent += 1
        producer.poll(0.0002)
    if producer.flush(30):
        raise RuntimeError("records were not acknowledged")
    return out[len(out) // 10 :]


async def _stay(host: str, port: int, count: int, router: int) -> dict[str, Any]:
    """Connect many clients, a hundred at a time. Each asks for ApiVersions, then Metadata, and stays."""
    hello = _framed(struct.pack(">hhih", 18, 0, 1, 5) + b"bench")
    layout = _framed(struct.pack(">hhih", 3, 4, 2, 5) + b"bench" + struct.pack(">i?", 0, False))
    writers: list[asyncio.StreamWriter] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        writers.append(writer)
        for request in (hello, layout):
            writer.write(request)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)

    began = time.monotonic()
    for at in range(0, count, 100):
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(min(100, count - at)):
                group.create_task(one())
    seconds = time.monotonic() - began
    await asyncio.sleep(2)
    found = {"count": count, "rss_mb": round(peak_rss_mb(router)), "connected_per_s": round(count / seconds)}
    say(f"  connections: {found}")
    for writer in writers:
        writer.close()
    return found


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--megabytes", type=int, default=2_000)
    arguments.add_argument("--small-records", type=int, default=3_000_000)
    arguments.add_argument("--skip", default="")
    chosen = arguments.parse_args()
    skip = set(chosen.skip.split(","))
    began = time.monotonic()
    sizes = {"1kB": (chosen.megabytes * 1000, 1000), "100B": (chosen.small_records, 100)}
    found: dict[str, Any] = {
        "pairs": chosen.pairs,
        "partitions": PARTITIONS,
        "cores": os.cpu_count(),
        "source": SOURCE_VERSION,
        "target": TARGET_VERSION,
    }
    with tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder:
        config = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "1000"}
        with running_clusters(Path(folder), *source_and_target(config=config)) as (source, target):
            run = Migration(source, target, Path(folder) / "run")
            try:
                bench = Bench(run, chosen.pairs)
                if "forwarded" not in skip:
                    bench.topic(run.source, "forwarded", _SHORT_LIVED)
                    bench.mirror("forwarded")
                run.start("router")
                if "pass" not in skip:
                    found["pass_through"] = {name: bench.pass_through(*size) for name, size in sizes.items()}
                if "forwarded" not in skip:
                    found["forwarded"] = {name: bench.forwarded("forwarded", *size) for name, size in sizes.items()}
                if "latency" not in skip:
                    found["latency_ms"] = bench.latency()
                if "connections" not in skip:
                    found["connections"] = bench.connections()
                if "ahead" not in skip:
                    found["read_ahead"] = bench.read_ahead(*sizes["1kB"])
            finally:
                run.stop()
    found["seconds"] = round(time.monotonic() - began)
    whole = vars(chosen) == vars(arguments.parse_args([]))
    raise SystemExit(conclude("router", found, LIMITS, say, whole=whole))


if __name__ == "__main__":
    main()
