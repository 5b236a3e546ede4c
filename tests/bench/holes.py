"""The number of transactions mirrored per second, by the distance to the target.

    python -m tests.bench.holes [--seconds 6] [--round-trips 0,2,10] [--ways today,half,full,mapped]
                              [--partitions 1,6] [--brokers 1,3]

Behind each transaction of ten records is a marker. With identical offsets the marker becomes a hole on the target
(`kmigrate/mirror/partition/lane.py`, D). The hole leaves behind the answer to the batch before the hole (`today`), or
together with that batch (`half`: half of the round trips), or with more batches and holes (`full`: a long window). With
mapped offsets the marker is left out. Relays in front of the target hand everything on after half of the round trip.
The bench writes build/bench/holes.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror.upkeep.forecast import sample
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.ports import free_ports
from tests.bench.load import Case, load, make_topic, remove_topics
from tests.bench.meter import EndReader, cpu_seconds
from tests.bench.mirror import by_kmigrate, cluster, say
from tests.fakes.relay import DistantRelay
from tests.figures import save
from tests.integration.mirror_world import settings_of

_CASES = {
    partitions: Case(f"holes-{partitions}", records, 1000, {"linger.ms": 0}, transaction=10)
    for partitions, records in ((1, 80_000), (6, 120_000))
}
_WINDOWS = {"today": "apart", "half": "short", "full": "long", "mapped": "long"}
_PATIENCE_S = 60.0


class FarTarget:
    """A target whose brokers clients reach through relays, and which replicates without them."""

    def __init__(self, root: Path, brokers: int) -> None:
        self.relays = [DistantRelay().start() for _ in range(brokers)]
        self.cluster = KafkaCluster.create(ClusterSpec("target", TARGET_VERSION, brokers), root)
        near = free_ports(brokers)
        for broker, relay, port in zip(self.cluster.brokers.values(), self.relays, near, strict=True):
            relay.forward_to(f"127.0.0.1:{broker.port}")
            listeners = {
                "listeners": f"PLAINTEXT://127.0.0.1:{broker.port},NEAR://127.0.0.1:{port},"
                f"CONTROLLER://127.0.0.1:{broker.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{relay.address},NEAR://127.0.0.1:{port}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,NEAR:PLAINTEXT",
                "inter.broker.listener.name": "NEAR",
            }
            with broker.properties.open("a", encoding="utf-8") as properties:  # the last value of a key counts
                properties.writelines(f"{key}={value}\n" for key, value in listeners.items())

    def __enter__(self) -> FarTarget:
        self.cluster.start()
        self.cluster.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()
        for relay in self.relays:
            relay.stop()

    def move_away(self, round_trip_ms: float) -> None:
        """Add to the round trip of clients; 0 is no distance."""
        for relay in self.relays:
            relay.delay(round_trip_ms / 2000)


@dataclass
class Bench:
    """The clusters of a bench."""

    source: KafkaCluster
    target: FarTarget
    seconds: float

    @property
    def brokers(self) -> int:
        return len(self.target.relays)

    def transactions_per_s(self, case: Case, partitions: int, way: str, tag: str) -> tuple[float, float]:
        """Return transactions per second, and the mirror's milliseconds of CPU per transaction.

        The topic is copied anew, and both count from the first sight of its records on.
        """
        bootstrap = self.target.cluster.bootstrap
        make_topic(bootstrap, case.name, partitions, self.brokers)
        offsets = "mapped" if way == "mapped" else "identical"
        end = case.offsets if offsets == "identical" else case.records
        ends = EndReader(bootstrap, case.name, partitions)

        def work(pid: int, alive: Callable[[], bool]) -> tuple[float, float]:
            deadline = time.monotonic() + _PATIENCE_S
            while not (first := ends.read()):
                if time.monotonic() > deadline or not alive():
                    raise RuntimeError("nothing arrives on the target")
                time.sleep(0.02)
            began, used = time.monotonic(), cpu_seconds(pid)
            while (seen := ends.read()) < end and time.monotonic() < began + self.seconds:
                time.sleep(0.02)
            copied = (seen - first) / end * (case.records / case.transaction)
            return copied / (time.monotonic() - began), (cpu_seconds(pid) - used) * 1000 / max(copied, 1)

        try:
            found: tuple[float, float] = by_kmigrate(
                self.source, self.target.cluster, [case.name], work, tag, offsets, windows=_WINDOWS[way]
            )
        finally:
            ends.close()
            remove_topics(bootstrap, case.name)
        return found


def transactions_per_hole(source: KafkaCluster, case: Case, partitions: int) -> float:
    """Return the mean number of transactions whose markers stand side by side: such markers are a single hole."""

    async def scene() -> float:
        async with ClusterClient(settings_of("source", source.bootstrap)) as client:
            await client.refresh([case.name])
            ends = await client.log_ends([(case.name, partition) for partition in range(partitions)])
            seen = [await sample(client, *key, 0, end.offset, stretches=1_000) for key, end in ends.items()]
            return sum(each.holes for each in seen) / sum(each.runs for each in seen)

    return asyncio.run(scene())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=6)
    arguments.add_argument("--round-trips", default="0,2,10", help="milliseconds that are added")
    arguments.add_argument("--ways", default=",".join(_WINDOWS))
    arguments.add_argument("--partitions", default="1,6")
    arguments.add_argument("--brokers", default="1,3", help="each is a target of its own; all replicas are in sync")
    chosen = arguments.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "source": SOURCE_VERSION,
        "target": TARGET_VERSION,
        "transactions_per_hole": {},
        "transactions_per_s": {},
        "cpu_ms_per_transaction": {},
    }
    cases = {each: _CASES[each] for each in map(int, chosen.partitions.split(","))}
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder,
        cluster("source", SOURCE_VERSION, Path(folder)) as source,
    ):
        for partitions, case in cases.items():
            make_topic(source.bootstrap, case.name, partitions)
            load(source.bootstrap, case.name, partitions, case)
            together = transactions_per_hole(source, case, partitions)
            found["transactions_per_hole"][str(partitions)] = round(together, 2)
            say(f"{partitions} partitions: {together:.2f} transactions for each hole")
        for brokers in map(int, chosen.brokers.split(",")):
            with FarTarget(Path(folder) / f"target-{brokers}", brokers) as target:
                bench = Bench(source, target, chosen.seconds)
                for partitions, added, way in product(cases, chosen.round_trips.split(","), chosen.ways.split(",")):
                    _run(bench, partitions, added, way, found)
    found["seconds"] = round(time.monotonic() - began)
    say(f"{save('bench/holes', found)}: {found['seconds']} s")


def _run(bench: Bench, partitions: int, added: str, way: str, found: dict[str, Any]) -> None:
    bench.target.move_away(float(added))
    tag = f"{partitions}-{way}-{added}" + (f"-of-{bench.brokers}" if bench.brokers > 1 else "")
    speed, cpu = bench.transactions_per_s(_CASES[partitions], partitions, way, tag)
    bench.target.move_away(0)
    say(f"{tag}: {speed:.0f} transactions/s, {cpu:.2f} ms of CPU")
    found["transactions_per_s"][tag] = round(speed)
    found["cpu_ms_per_transaction"][tag] = round(cpu, 3)


if __name__ == "__main__":
    main()
