"""The number of transactions mirrored per second, by the distance to the target.

    python -m tests.bench.holes [--seconds 6] [--round-trips 0,2,10] [--ways today,half,full,mapped] [--partitions 1,6]

Behind each transaction of ten records is a marker. With identical offsets the marker becomes a hole on the target
(`kmigrate/mirror/partition/lane.py`, D). The hole leaves behind the answer to the batch before the hole (`today`), or
together with that batch (`half`: half of the round trips), or with more batches and holes (`full`: a long window). With
mapped offsets the marker is left out. A relay in front of the target hands everything on after half of the round trip.
The bench writes build/bench/holes.json.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from tests.bench.load import Case, load, make_topic, remove_topics
from tests.bench.meter import EndReader, cpu_seconds
from tests.bench.mirror import by_kmigrate, cluster, say
from tests.fakes.relay import DistantRelay
from tests.figures import save

_CASES = {
    partitions: Case(f"holes-{partitions}", records, 1000, {"linger.ms": 0}, transaction=10)
    for partitions, records in ((1, 80_000), (6, 120_000))
}
_WINDOWS = {"today": "apart", "half": "short", "full": "long", "mapped": "long"}
_PATIENCE_S = 60.0


@contextmanager
def far_target(root: Path) -> Iterator[tuple[KafkaCluster, DistantRelay]]:
    """Run a target that clients reach through a relay, once they have asked the target for its address."""
    with DistantRelay() as relay:
        listener = {"advertised.listeners": f"PLAINTEXT://{relay.address}"}
        target = KafkaCluster.create(ClusterSpec("target", TARGET_VERSION, config=listener), root)
        relay.forward_to(f"127.0.0.1:{target.brokers[1].port}")
        try:
            target.start()
            target.wait_ready()
            yield target, relay
        finally:
            target.stop()


def transactions_per_s(
    source: KafkaCluster, target: KafkaCluster, case: Case, partitions: int, way: str, tag: str, seconds: float
) -> tuple[float, float]:
    """Return transactions per second, and the mirror's milliseconds of CPU per transaction.

    The topic is copied anew, and both count from the first sight of its records on.
    """
    offsets = "mapped" if way == "mapped" else "identical"
    end = case.offsets if offsets == "identical" else case.records
    ends = EndReader(target.bootstrap, case.name, partitions)

    def work(pid: int, alive: Callable[[], bool]) -> tuple[float, float]:
        deadline = time.monotonic() + _PATIENCE_S
        while not (first := ends.read()):
            if time.monotonic() > deadline or not alive():
                raise RuntimeError("nothing arrives on the target")
            time.sleep(0.02)
        began, used = time.monotonic(), cpu_seconds(pid)
        while (seen := ends.read()) < end and time.monotonic() < began + seconds:
            time.sleep(0.02)
        copied = (seen - first) / end * (case.records / case.transaction)
        return copied / (time.monotonic() - began), (cpu_seconds(pid) - used) * 1000 / max(copied, 1)

    try:
        found: tuple[float, float] = by_kmigrate(source, target, [case.name], work, tag, offsets, windows=_WINDOWS[way])
    finally:
        ends.close()
        remove_topics(target.bootstrap, case.name)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=6)
    arguments.add_argument("--round-trips", default="0,2,10", help="milliseconds that are added")
    arguments.add_argument("--ways", default=",".join(_WINDOWS))
    arguments.add_argument("--partitions", default="1,6")
    chosen = arguments.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "source": SOURCE_VERSION,
        "target": TARGET_VERSION,
        "transactions_per_s": {},
        "cpu_ms_per_transaction": {},
    }
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder,
        cluster("source", SOURCE_VERSION, Path(folder)) as source,
        far_target(Path(folder)) as (target, relay),
    ):
        for partitions, case in ((each, _CASES[each]) for each in map(int, chosen.partitions.split(","))):
            make_topic(source.bootstrap, case.name, partitions)
            load(source.bootstrap, case.name, partitions, case)
            for added, way in product(chosen.round_trips.split(","), chosen.ways.split(",")):
                relay.delay(float(added) / 2000)
                tag = f"{partitions}-{way}-{added}"
                speed, cpu = transactions_per_s(source, target, case, partitions, way, tag, chosen.seconds)
                relay.heal()
                say(
                    f"{partitions} partitions, {way}, {added} ms added: {speed:.0f} transactions/s, {cpu:.2f} ms of CPU"
                )
                found["transactions_per_s"][tag] = round(speed)
                found["cpu_ms_per_transaction"][tag] = round(cpu, 3)
    found["seconds"] = round(time.monotonic() - began)
    say(f"{save('bench/holes', found)}: {found['seconds']} s")


if __name__ == "__main__":
    main()
