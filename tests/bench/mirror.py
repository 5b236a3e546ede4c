"""kmigrate's mirror against MirrorMaker 2, on the same data, in a single run.

    python -m tests.bench.mirror [--pairs 5] [--cases 1kB,small,lz4,txn] [--records N]
                                 [--skip latency,idle,align,floors]

Each pair is a copy by each, in alternating order, into a topic that is new to the target. Both clocks run from the
first record on the target to the last. CPU is the copying process's own in that time. The bench writes
build/bench/mirror.json, and prints every figure as soon as it is measured.

Figures that miss their limits (`LIMITS`) are named there, and at the end, with exit code 1. A partial run writes
mirror-part.json.

Neither copier shall pay for the machine. All copies of a case go to the same target broker, whose code is compiled by
then: the broker takes four million records in batches like the copied batches, and then a pair that does not count. (A
broker that was just started took 6.3 s of CPU for its first 2 GB, 2.0 s for its third: a fast copier waits for the
broker's compiler.) Before each copy a scratch file of twice the copy's size is written and removed. Memory that a
virtual machine touches for the first time can be ten times as expensive to write to as memory that was in use before.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from rich.console import Console

from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import FetchSession
from kmigrate.model.lifecycle import TopicPhase
from kmigrate.protocol.api import ApiKey
from kmigrate.protocol.hot import PRODUCE_VERSION, FetchPartition, decode_produce, encode_produce
from kmigrate.records.batch import TRANSACTIONAL, stamp, walk
from kmigrate.records.build import filler_batch
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, ClusterSpec, KafkaCluster
from kmigrate.sandbox.pauses import percentiles
from kmigrate.sandbox.processes import end_all
from tests.bench.limits import at_least, at_most, conclude
from tests.bench.load import CASES, Case, load, make_topic, remove_topics
from tests.bench.meter import CopyRun, EndReader, cpu_seconds, measure_copy, spread
from tests.bench.mm2 import SETTINGS, VERSION, start_mirror_maker
from tests.clusters import running_clusters
from tests.integration.mirror_world import link_between, mirror_process, settings_of

PARTITIONS = 6
_PATIENCE_S = 120.0
_RATE = 5_000
_LATENCY_S = 20
_WARM_RECORDS = 4_000_000
_WARM_S = 20
"""The time that both copiers get to catch up: fresh brokers are cold, and the writer starts before the copier."""

LIMITS = (
    at_least("cases.1kB.throughput_ratio", 2.5),
    at_least("cases.small.throughput_ratio", 1.1),
    at_least("cases.lz4.throughput_ratio", 2.5),
    at_most("cases.1kB.cpu_ratio", 0.1),
    at_most("cases.small.cpu_ratio", 0.2),
    at_most("cases.lz4.cpu_ratio", 0.1),
    at_least("cases.txn.throughput_ratio", 1.0),
    at_most("cases.txn.cpu_ratio", 1 / 3),
    at_most("latency_ms.p50", 10),
    at_most("latency_ms.p99", "latency_ms.mm2_p99"),
    at_most("rss_mb", 300),
    at_least("align_offsets_per_s", 5_000_000),
    at_least("idle.throughput_ratio", 0.8),
    at_most("idle.cpu_cores", 0.05),
)
"""The requirements of the mirror."""

say = Console(stderr=True, highlight=False).print


@contextmanager
def cluster(name: str, version: str, root: Path) -> Iterator[KafkaCluster]:
    # Copied data is deleted before the next copy, and shall not be deleted during that copy.
    config = {"log.segment.delete.delay.ms": "500"}
    with running_clusters(root, ClusterSpec(name, version, config=config)) as (made,):
        yield made


# the two copiers


Work = Callable[[int, Callable[[], bool]], Any]
"""The work while a copier runs.

The work gets the copier's process id and a function that says whether the copier is alive.
"""


def by_kmigrate(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: list[str],
    work: Work,
    tag: str,
    offsets: str = "auto",
    *,
    windows: str = "long",
) -> Any:
    """Do `work` while kmigrate's mirror copies the topics."""

    async def scene() -> Any:
        async with link_between(source, target, f"bench-{tag}") as world:
            for topic in topics:
                await world.mirror(topic, offsets=offsets)
            with mirror_process(world, "m", windows=windows) as process:
                return await asyncio.to_thread(work, process.pid, lambda: process.poll() is None)

    return asyncio.run(scene())


def by_mm2(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    folder: Path,
    work: Work,
    *,
    compression: str = "none",
    linger_ms: int = 5,
) -> Any:
    # The copy of an earlier run stands on the target under the source's name.
    process = start_mirror_maker(
        source.bootstrap,
        target.bootstrap,
        topic,
        folder,
        alias=f"source-{folder.name}",
        compression=compression,
        linger_ms=linger_ms,
    )
    try:
        return work(process.pid, process.alive)
    finally:
        end_all([process])


class Bench:
    def __init__(self, root: Path, source: KafkaCluster) -> None:
        self.root = root
        self.source = source
        self.repeats: list[str] = []
        self._samples: dict[str, list[bytearray]] = {}
        """Some batches of each topic that is copied."""
        self._runs = 0

    @contextmanager
    def fresh_target(self) -> Iterator[KafkaCluster]:
        self._runs += 1
        with cluster(f"target{self._runs}", TARGET_VERSION, self.root) as target:
            yield target

    def copy(self, who: str, case: Case, topic: str, target: KafkaCluster) -> CopyRun:
        self._runs += 1
        self.touch_memory(case)
        ends = EndReader(target.bootstrap, topic, PARTITIONS)
        offsets = case.offsets if who == "kmigrate" else case.records

        def work(pid: int, alive: Callable[[], bool]) -> CopyRun:
            run = measure_copy(ends, offsets, pid, alive, patience_s=_PATIENCE_S)
            return replace(run, records=run.records * case.records // offsets)

        try:
            if who == "kmigrate":
                run = by_kmigrate(self.source, target, [topic], work, f"{case.name}-{self._runs}")
            else:
                folder = self.root / f"mm2-{self._runs}"
                run = by_mm2(self.source, target, topic, folder, work, compression=case.compression)
        finally:
            ends.close()
            remove_topics(target.bootstrap, topic)
        say(
            f"  {case.name} {who}: {run.records_per_s * case.record_bytes / 1e6:.0f} MB/s, "
            f"{run.records_per_s / 1e3:.0f} k rec/s, {run.cpu_s / case.gigabytes:.1f} s CPU/GB, {run.rss_mb:.0f} MB"
        )
        assert isinstance(run, CopyRun)
        return run

    def copied(self, who: str, case: Case, topic: str, target: KafkaCluster) -> CopyRun:
        """Return a copy that came to its end. A copy that stood still is reported, counted, and made once more."""
        try:
            return self.copy(who, case, topic, target)
        except RuntimeError as stuck:
            self.repeats.append(f"{case.name} {who}: {stuck}")
            say(f"  once more, {self.repeats[-1]}")
            return self.copy(who, case, topic, target)

    def case(self, case: Case, pairs: int) -> dict[str, Any]:
        topic = f"bench-{case.name}"
        make_topic(self.source.bootstrap, topic, PARTITIONS)
        load(self.source.bootstrap, topic, PARTITIONS, case)
        runs: dict[str, list[CopyRun]] = {"kmigrate": [], "mm2": []}
        with self.fresh_target() as target:
            self.warm(target, case, topic)
            for pair in range(pairs + 1):
                for who in ("kmigrate", "mm2") if pair % 2 == 0 else ("mm2", "kmigrate"):
                    runs[who].append(self.copied(who, case, topic, target))
        del runs["kmigrate"][0], runs["mm2"][0]  # of the pair that warms
        ours, theirs = runs["kmigrate"], runs["mm2"]
        ratios = [a.records_per_s / b.records_per_s for a, b in zip(ours, theirs, strict=True)]
        cpu = [a.cpu_s / b.cpu_s for a, b in zip(ours, theirs, strict=True)]
        return {
            "throughput_ratio": round(statistics.median(ratios), 2),
            "cpu_ratio": round(statistics.median(cpu), 3),
            "throughput_ratio_spread": spread(ratios),
            "cpu_ratio_spread": spread(cpu),
            "records": case.records,
            "record_bytes": case.record_bytes,
            "mb_per_s": spread([run.records_per_s * case.record_bytes / 1e6 for run in ours]),
            "mm2_mb_per_s": spread([run.records_per_s * case.record_bytes / 1e6 for run in theirs]),
            "cpu_s_per_gb": spread([run.cpu_s / case.gigabytes for run in ours]),
            "mm2_cpu_s_per_gb": spread([run.cpu_s / case.gigabytes for run in theirs]),
            "rss_mb": round(max(run.rss_mb for run in ours)),
            "runs": {who: [asdict(run) for run in each] for who, each in runs.items()},
        }

    def warm(self, target: KafkaCluster, case: Case, topic: str) -> None:
        """Make the broker compile its code."""
        if topic not in self._samples:
            _, self._samples[topic] = asyncio.run(_fetch_all(self.source, topic, 20_000))
        make_topic(target.bootstrap, "warm-up", PARTITIONS)
        plain = replace(case, transaction=0)
        load(target.bootstrap, "warm-up", PARTITIONS, plain, records=PARTITIONS)  # waits until all have leaders
        asyncio.run(_produce_all(target, "warm-up", self._samples[topic], _WARM_RECORDS))

    def touch_memory(self, case: Case) -> None:
        """Make the machine give the memory that a copy will need, above all the page cache of the copy's log."""
        path = self.root / "scratch"
        with path.open("wb", buffering=0) as file:
            for _ in range(2 * case.records * case.record_bytes >> 20):
                file.write(bytes(1 << 20))
        path.unlink()

    # floors

    def floors(self, case: Case) -> dict[str, float]:
        """Return the speeds of reading alone and of writing alone with our own wire code.

        No copier can be faster than both.
        """
        topic = f"bench-{case.name}"
        fetched, sample = asyncio.run(_fetch_all(self.source, topic, case.records))
        with self.fresh_target() as target:
            self.warm(target, case, topic)
            self.touch_memory(case)
            make_topic(target.bootstrap, topic, PARTITIONS)
            load(target.bootstrap, topic, PARTITIONS, case, records=PARTITIONS)  # waits until all have leaders
            produced = asyncio.run(_produce_all(target, topic, sample, case.records))
        say(f"  floors: fetch only {fetched / 1e3:.0f} k rec/s, produce only {produced / 1e3:.0f} k rec/s")
        return {
            "fetch_only_mb_per_s": round(fetched * case.record_bytes / 1e6, 1),
            "produce_only_mb_per_s": round(produced * case.record_bytes / 1e6, 1),
        }

    # latency

    def latency(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for who, prefix in (("kmigrate", ""), ("mm2", "mm2_")):
            topic = f"latency-{who}"
            make_topic(self.source.bootstrap, topic, PARTITIONS)
            with self.fresh_target() as target:

                def work(
                    pid: int, alive: Callable[[], bool], topic: str = topic, target: KafkaCluster = target
                ) -> list[int]:
                    return _latencies(self.source.bootstrap, target.bootstrap, topic)

                if who == "kmigrate":
                    seen = by_kmigrate(self.source, target, [topic], work, "latency")
                else:
                    seen = by_mm2(self.source, target, topic, self.root / "mm2-latency", work, linger_ms=0)
            found = percentiles(seen)
            out |= {f"{prefix}p50": found.p50, f"{prefix}p99": found.p99}
            say(f"  latency {who}: p50 {found.p50} ms, p99 {found.p99} ms, {found.of} records")
        return out

    # many idle partitions

    def idle(self) -> dict[str, float]:
        case = replace(CASES["1kB"], name="wide", records=1_000_000)
        make_topic(self.source.bootstrap, "wide", 100)
        make_topic(self.source.bootstrap, "idle", 900)
        load(self.source.bootstrap, "wide", 100, case)
        speeds: dict[int, list[float]] = {100: [], 1000: []}
        cores = 0.0
        with self.fresh_target() as target:
            self.warm(target, case, "wide")
            for number in range(8):
                partitions, topics = ((100, ["wide"]), (1000, ["idle", "wide"]))[number % 2]
                self.touch_memory(case)
                ends = EndReader(target.bootstrap, "wide", 100)

                def work(pid: int, alive: Callable[[], bool], ends: EndReader = ends) -> tuple[CopyRun, float]:
                    run = measure_copy(ends, case.records, pid, alive, patience_s=_PATIENCE_S)
                    time.sleep(3)
                    before = cpu_seconds(pid)
                    time.sleep(5)
                    return run, (cpu_seconds(pid) - before) / 5

                run, cpu = by_kmigrate(self.source, target, topics, work, f"wide-{number}")
                ends.close()
                remove_topics(target.bootstrap, *topics)
                say(f"  {partitions} partitions: {run.records_per_s / 1e3:.0f} k rec/s, idle {cpu:.3f} cores")
                if number >= 2:  # not of the pair that warms
                    speeds[partitions].append(run.records_per_s)
                    cores = max(cores, cpu if partitions == 1000 else 0.0)
        ratio = statistics.median(speeds[1000]) / statistics.median(speeds[100])
        return {"throughput_ratio": round(ratio, 3), "cpu_cores": round(cores, 4)}

    # log starts

    def align(self, offsets: int = 40_000_000) -> float:
        """Return the offsets per second at which a partition's log start is brought to the source's."""
        topic = "aligned"
        make_topic(self.source.bootstrap, topic, 1)
        asyncio.run(_pad(self.source, topic, offsets))

        async def scene() -> float:
            with self.fresh_target() as target:
                async with link_between(self.source, target, "bench-align") as world:
                    await world.mirror(topic)
                    with mirror_process(world, "m"):
                        await world.in_phase(topic, TopicPhase.ALIGNING)
                        began = time.monotonic()
                        await world.in_phase(topic, TopicPhase.MIRRORING, 120)
                        return offsets / (time.monotonic() - began)

        speed = asyncio.run(scene())
        say(f"  align: {speed / 1e6:.1f} M offsets/s")
        return round(speed)


async def _fetch_all(source: KafkaCluster, topic: str, records: int) -> tuple[float, list[bytearray]]:
    sample: list[bytearray] = []
    async with ClusterClient(settings_of("source", source.bootstrap)) as client:
        await client.refresh([topic])
        session = FetchSession(client, client.leader(topic, 0), "floor", max_bytes=32 << 20)
        at = dict.fromkeys(range(PARTITIONS), 0)
        began = time.monotonic()
        while sum(at.values()) < records:
            wanted = {(topic, p): FetchPartition(topic, p, offset, 4 << 20) for p, offset in at.items()}
            answer = await session.fetch(wanted, max_wait_ms=10, full=False)
            for part in answer.partitions:
                for batch in walk(part.records):
                    at[part.partition] = batch.next_offset
                    if len(sample) < 64 and not batch.is_control:
                        sample.append(bytearray(batch.view))
        return records / (time.monotonic() - began), sample


async def _produce_all(target: KafkaCluster, topic: str, sample: list[bytearray], records: int) -> float:
    counts = [next(walk(memoryview(batch))).count for batch in sample]
    async with ClusterClient(settings_of("target", target.bootstrap)) as client:
        await client.refresh([topic])
        producer, epoch = await client.init_producer_id()
        connection = await client.connection(client.leader(topic, 0), "floor")
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        waiting: list[asyncio.Future[bytearray]] = []
        done = number = 0
        began = time.monotonic()
        while done < records:
            parts = []
            for partition in range(PARTITIONS):
                count = counts[number % len(sample)]
                batch = bytearray(sample[number % len(sample)])
                number += 1
                stamp(
                    memoryview(batch),
                    producer_id=producer,
                    epoch=epoch,
                    sequence=sequences[partition],
                    clear=TRANSACTIONAL,
                )
                sequences[partition] += count
                done += count
                parts.append((topic, partition, batch))
            body = encode_produce(parts)
            waiting.append(connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, body, flexible=True))
            await connection.drain()
            if len(waiting) == 5:
                _raise_refused(await waiting.pop(0))
        for future in waiting:
            _raise_refused(await future)
        return done / (time.monotonic() - began)


def _raise_refused(frame: bytearray) -> None:
    refused = [answer for answer in decode_produce(frame).values() if answer.error]
    if refused:
        raise RuntimeError(f"refused: {refused[0]}")


async def _pad(source: KafkaCluster, topic: str, offsets: int) -> None:
    """Make a source partition that begins at `offsets`: fillers, then DeleteRecords."""
    async with ClusterClient(settings_of("source", source.bootstrap)) as client:
        await client.refresh([topic])
        producer, epoch = await client.init_producer_id()
        connection = await client.connection(client.leader(topic, 0), "pad")
        for at in range(0, offsets, 1_000_000):
            batch = filler_batch(
                1_000_000, timestamp=int(time.time() * 1000), producer_id=producer, epoch=epoch, sequence=at
            )
            frame = await connection.call_raw(
                ApiKey.PRODUCE, PRODUCE_VERSION, encode_produce([(topic, 0, batch)]), flexible=True, timeout=60
            )
            _raise_refused(frame)
        await client.delete_records(topic, {0: offsets})


def _latencies(source: str, target: str, topic: str) -> list[int]:
    """Return the nanoseconds from produce at the source to readable at the target, after a warm-up."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": source, "linger.ms": 0, "acks": "all"})
        began, sent = time.monotonic(), 0
        while not stop.is_set():
            due = int((time.monotonic() - began) * _RATE)
            while sent < due:
                producer.produce(topic, str(time.time_ns()).encode().ljust(100, b"."), partition=sent % PARTITIONS)
                sent += 1
            producer.poll(0)
            time.sleep(0.002)
        producer.flush(10)

    reader = Consumer(
        {
            "bootstrap.servers": target,
            "group.id": "latency",
            "fetch.wait.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 500,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    ends = EndReader(target, topic, PARTITIONS)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        deadline = time.monotonic() + 90
        while not ends.read():
            if time.monotonic() > deadline:
                raise RuntimeError("nothing arrives on the target")
            time.sleep(0.1)
        reader.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        began = time.monotonic()
        out: list[int] = []
        while time.monotonic() < began + _WARM_S + _LATENCY_S:
            message = reader.poll(0.5)
            if message is None or message.error():
                continue
            now = time.time_ns()
            if time.monotonic() > began + _WARM_S:
                value = message.value()
                assert value is not None
                out.append(now - int(value[:19]))
        return out
    finally:
        stop.set()
        writer.join()
        reader.close()
        ends.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pairs", type=int, default=5)
    arguments.add_argument("--cases", default="1kB,small,lz4,txn")
    arguments.add_argument("--records", type=int, default=0)
    arguments.add_argument("--skip", default="")
    chosen = arguments.parse_args()
    skip = set(chosen.skip.split(","))
    began = time.monotonic()
    found: dict[str, Any] = {
        "pairs": chosen.pairs,
        "partitions": PARTITIONS,
        "cores": os.cpu_count(),
        "source": SOURCE_VERSION,
        "target": TARGET_VERSION,
        "mm2": {"version": VERSION, **SETTINGS},
        "cases": {},
    }
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-bench-") as folder,
        cluster("source", SOURCE_VERSION, Path(folder)) as source,
    ):
        bench = Bench(Path(folder), source)
        for name in filter(None, chosen.cases.split(",")):
            case = replace(CASES[name], records=chosen.records or CASES[name].records)
            say(f"{name}: {case.records} records of {case.record_bytes} B")
            found["cases"][name] = bench.case(case, chosen.pairs)
            if name == "1kB" and "floors" not in skip:
                found["floors"] = bench.floors(case)
        if "latency" not in skip:
            found["latency_ms"] = bench.latency()
        if "align" not in skip:
            found["align_offsets_per_s"] = bench.align()
        if "idle" not in skip:
            found["idle"] = bench.idle()
    if found["cases"]:
        found["rss_mb"] = max(each["rss_mb"] for each in found["cases"].values())
    found["repeats"] = bench.repeats
    found["seconds"] = round(time.monotonic() - began)
    whole = vars(chosen) == vars(arguments.parse_args([]))
    raise SystemExit(conclude("mirror", found, LIMITS, say, whole=whole))


if __name__ == "__main__":
    main()
