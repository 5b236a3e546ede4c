"""A migration of thousands of partitions whose topics are numbered through, as estates have them.

    python -m tests.soak.partitions [--topics 40] [--partitions 100] [--rate 400]

There are two sandbox brokers, a mirror, a controller and a router. All topics are mirrored by a single expression. Then
a producer (librdkafka, idempotent) writes through the router to partitions at random, while first a topic and then all
other topics are promoted. In the end librdkafka reads the target: every acknowledged record must be there once, at the
acknowledged place, and nothing else. The soak says how long each step took, what the processes cost when nothing moves,
and how long the producer waited. The soak writes build/soak/partitions.json; exit code 1 if a record is not where it
belongs, or the producer met an error.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import NewTopic
from rich.console import Console

from kmigrate.sandbox.final_read import read_topic
from kmigrate.sandbox.topics import create_topics
from tests.bench.meter import cpu_seconds, peak_rss_mb
from tests.figures import save
from tests.integration.migration import Migration, fresh_migration

_ENGINES = ("mirror", "controller", "router")
_BEFORE = 3
"""Records of each partition from before the migration."""
_LIVE_S = 20.0
_IDLE_S = 15.0
_STEP_S = 600.0

say = Console(stderr=True, highlight=False).print

Place = tuple[str, int, int]


@dataclass
class Report:
    """The seconds of each step, and the fates of the records."""

    partitions: int
    seconds: dict[str, float] = field(default_factory=dict)
    idle_cores: dict[str, float] = field(default_factory=dict)
    resident_mb: dict[str, float] = field(default_factory=dict)
    ack_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """The waits of producers in each stretch: p50, p99 and max."""
    acknowledged: int = 0
    missing: int = 0
    strange: int = 0
    """Records on the target at a place that no acknowledgement names, doubled records among them."""
    errors: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return self.acknowledged > 0 and not (self.missing or self.strange or self.errors)


class Writer:
    """A writer through the router for as long as the block runs. The writer keeps the acknowledged records."""

    def __init__(self, bootstrap: str, topics: list[str], rate: float) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        self._topics = topics
        self._rate = rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self.stored: dict[Place, bytes] = {}
        self.waits_ms: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        chosen = random.Random(7)
        number = 0
        began = time.monotonic()
        while not self._over.is_set():
            while number < (time.monotonic() - began) * self._rate:
                number += 1
                self._producer.produce(chosen.choice(self._topics), b"live %d" % number, on_delivery=self._told)
            self._producer.poll(0.002)
        left = self._producer.flush(120)
        if left:
            self.errors.append(f"{left} records were never answered")

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.stored[topic, partition, offset] = value
        self.waits_ms.append(1000 * (message.latency() or 0.0))


class Soak:
    """A run of the soak."""

    def __init__(self, run: Migration, topics: int, partitions: int, rate: float) -> None:
        self._run = run
        self._topics = [f"orders-{number:03d}" for number in range(topics)]
        self._partitions = partitions
        self._rate = rate
        self.report = Report(topics * partitions)

    def _timed(self, what: str, *words: str) -> None:
        began = time.monotonic()
        self._run.does(*words, timeout=_STEP_S)
        self._took(what, began)

    def _took(self, what: str, began: float) -> None:
        self.report.seconds[what] = round(time.monotonic() - began, 1)
        say(f"  {what}: {self.report.seconds[what]} s")

    def run(self) -> Report:
        before = self._write_before()
        self._timed("link create", "link", "create", "blue", "--source", "source", "--target", "target")
        self._run.start(*_ENGINES)
        self._timed("topic mirror", "topic", "mirror", "orders-.*", "--regex")
        began = time.monotonic()
        while any(topic["lag"] for topic in self._run.does("status", timeout=_STEP_S)["topics"]):
            time.sleep(0.5)
        self._took("in sync", began)
        self._timed("status", "status")
        self._idle()
        with Writer(self._run.routers, self._topics, self._rate) as writer:
            time.sleep(_LIVE_S)
            self._waited(writer, "mirrored")
            self._timed("promote one", "promote", self._topics[0], "--yes")
            self._waited(writer, "promote one")
            self._timed("promote the others", "promote", *self._topics[1:], "--yes")
            self._waited(writer, "promote the others")
        self.report.resident_mb = {name: round(peak_rss_mb(self._pid(name))) for name in _ENGINES}
        self._judge(before | writer.stored, writer.errors)
        return self.report

    def _pid(self, name: str) -> int:
        return self._run.engines[name].pid

    def _write_before(self) -> dict[Place, bytes]:
        create_topics(self._run.source.client(), [NewTopic(topic, self._partitions, 1) for topic in self._topics])
        writer = Producer({**self._run.source.client(), "linger.ms": 50, "queue.buffering.max.messages": 10_000_000})
        places = [(t, p, at) for t in self._topics for p in range(self._partitions) for at in range(_BEFORE)]
        for topic, partition, at in places:
            writer.produce(topic, b"before %d" % at, partition=partition)
            writer.poll(0)
        if writer.flush(120):
            raise RuntimeError("the source did not take what is there before the migration")
        return {place: b"before %d" % place[2] for place in places}

    def _idle(self) -> None:
        time.sleep(5)
        spent = {name: cpu_seconds(self._pid(name)) for name in _ENGINES}
        time.sleep(_IDLE_S)
        self.report.idle_cores = {
            name: round((cpu_seconds(self._pid(name)) - before) / _IDLE_S, 3) for name, before in spent.items()
        }
        say(f"  idle, in cores: {self.report.idle_cores}")

    def _waited(self, writer: Writer, stretch: str) -> None:
        """Note the times of the acknowledgements since the last stretch."""
        waits, writer.waits_ms = writer.waits_ms, []
        if len(waits) > 1:
            percentiles = statistics.quantiles(waits, n=100)
            told = {"p50": percentiles[49], "p99": percentiles[98], "max": max(waits)}
            self.report.ack_ms[stretch] = {name: round(value, 1) for name, value in told.items()}
            say(f"  acknowledgements, {stretch}: {self.report.ack_ms[stretch]} ms")

    def _judge(self, stored: dict[Place, bytes], errors: list[str]) -> None:
        found = 0
        for topic in self._topics:
            for record in read_topic(self._run.target.bootstrap, topic):
                right = stored.get((topic, record.partition, record.offset)) == record.value
                found += right
                self.report.strange += not right
        self.report.acknowledged = len(stored)
        self.report.missing = len(stored) - found
        self.report.errors = errors


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--topics", type=int, default=40)
    arguments.add_argument("--partitions", type=int, default=100)
    arguments.add_argument("--rate", type=float, default=400.0)
    chosen = arguments.parse_args()
    say(f"{chosen.topics} topics of {chosen.partitions} partitions")
    with (
        tempfile.TemporaryDirectory(prefix="kmigrate-soak-") as folder,
        fresh_migration(Path(folder)) as run,
    ):
        report = Soak(run, **vars(chosen)).run()
    path = save("soak/partitions", {"clean": report.clean, **asdict(report)})
    verdict = f"all {report.acknowledged} records in their places" if report.clean else asdict(report)
    say(f"{path}: {verdict}")
    sys.exit(0 if report.clean else 1)


if __name__ == "__main__":
    main()
