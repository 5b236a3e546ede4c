"""Writers past the routers, before, at and after the flip: every record they wrote is accounted for, and named.

    python -m tests.soak.direct_writers [--rounds 30] [--at-once 5] [--seconds 40]

A round is a topic with clients of a router, and five writers that know the source's address only: idempotent,
transactional (in every third round under the transactional id of a router's client), acks=0, acks=1 and acks=all
without idempotence. Each writes every 0.1 to 20 s. The topic is promoted in the middle. Rounds differ in whether the
source is closed afterwards, in what becomes of late records, and in the size of records. A record of a direct writer
must be on the target, in the quarantine topic, refused by the source, or named by `status` with the offset. No client
of a router may be named. librdkafka reads the logs; the ids of batches are read from the source's batch headers.

The soak writes build/soak/direct-writers.json: rounds, written, on_target, quarantined, refused, named, missing,
falsely_named. Exit code 1 if a record is missing or a router's client is named.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from rich.console import Console

from kmigrate.cluster.client import EARLIEST, ClusterClient
from kmigrate.cluster.fetch import fetch_one
from kmigrate.protocol.hot import FetchPartition
from kmigrate.records.old_messages import walk_all
from kmigrate.sandbox.final_read import read_topic
from tests.figures import save
from tests.integration.migration import Migration, fresh_migration, wait_until
from tests.integration.router_world import settings_of

__all__ = ["Figures", "main", "soak"]

SETTINGS = "[promote]\nfence_timeout_s = 10.0\nstraggler_window_s = 0.0\n"
PARTITIONS = 2
KINDS = ("idempotent", "transactional", "acks0", "acks1", "plain")

say = Console(stderr=True, highlight=False).print


@dataclass
class Figures:
    """The fates of the records of direct writers."""

    rounds: int = 0
    written: int = 0
    """Records that were handed to a client library, whatever the source said."""
    on_target: int = 0
    quarantined: int = 0
    refused: int = 0
    """Records in no log: the source refused them, or their transaction was aborted."""
    named: int = 0
    """Records on the source alone, whose offsets `status` names."""
    missing: int = 0
    falsely_named: int = 0
    """Clients of a router that are called direct writers, and their records that are called late."""
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return bool(self.rounds and self.written) and not (self.missing or self.falsely_named)

    def add(self, other: Figures) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Writer:
    """A client that writes in a thread until it is told to stop."""

    topic: str
    name: str
    config: dict[str, str]
    every_s: float
    size: int
    begins_s: float = 0.0
    written: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        if self.stop.wait(self.begins_s):
            return
        producer = Producer({"linger.ms": "0", "message.timeout.ms": "20000", "log_level": "0", **self.config})
        in_transactions = "transactional.id" in self.config
        if in_transactions:
            with suppress(KafkaException):
                producer.init_transactions(20)
        while True:
            self._write(producer, in_transactions)
            if self.stop.wait(self.every_s):
                with suppress(KafkaException):  # the producer was fenced
                    producer.flush(20)
                return

    def _write(self, producer: Producer, in_transactions: bool) -> None:
        value = f"{self.name} {len(self.written)} ".ljust(self.size, ".")
        self.written.append(value)
        try:
            if in_transactions:
                producer.begin_transaction()
            producer.produce(self.topic, value, partition=random.randrange(PARTITIONS))
            producer.poll(0)
            if in_transactions:
                producer.commit_transaction(20)
        except KafkaException as error:
            if in_transactions and error.args[0].txn_requires_abort():
                with suppress(KafkaException):
                    producer.abort_transaction(20)


def writers_of(run: Migration, topic: str, number: int, seconds: float, rng: random.Random) -> list[Writer]:
    """Return the direct writers of a round."""
    configs = {
        "idempotent": {"enable.idempotence": "true"},
        "transactional": {"transactional.id": f"{topic}-{'till' if number % 3 == 0 else 'direct'}"},
        "acks0": {"acks": "0"},
        "acks1": {"acks": "1"},
        "plain": {"acks": "all"},
    }
    size = 6 if number % 5 == 0 else 200
    return [
        Writer(
            topic,
            f"d{place}",
            {"bootstrap.servers": run.source.bootstrap, **configs[kind]},
            every_s=rng.choice((0.1, 0.5, 2.0, 8.0, 20.0)),
            size=size,
            begins_s=rng.choice((0.0, 0.0, seconds / 2, 0.75 * seconds)),
        )
        for place, kind in enumerate(KINDS)
    ]


def one_round(run: Migration, number: int, seconds: float) -> Figures:
    """Promote a topic while direct writers write to the topic, and return the fates of their records."""
    rng = random.Random(number)
    topic = f"round-{number}"
    on_late = ("alarm", "copy", "quarantine")[number % 3]
    sealed = number % 2 == 0
    routed = [
        Writer(topic, "r0", {"bootstrap.servers": run.routers, "enable.idempotence": "true"}, 0.2, 200),
        Writer(topic, "r1", {"bootstrap.servers": run.routers, "transactional.id": f"{topic}-till"}, 0.5, 200),
    ]
    direct = writers_of(run, topic, number, seconds, rng)
    threads = [threading.Thread(target=writer.run) for writer in (*routed, *direct)]
    try:
        for thread in threads[: len(routed)]:
            thread.start()
        time.sleep(2)
        for thread in threads[len(routed) :]:
            thread.start()
        time.sleep(seconds / 2)
        words = ["promote", topic, "--yes", "--accept-direct-writers", "--on-late", on_late]
        words += [] if sealed else ["--no-seal"]
        wait_until(lambda: run.cli(*words, timeout=200).code == 0, 240, f"{topic} to be promoted")
        time.sleep(seconds / 2)
    finally:
        for writer in (*routed, *direct):
            writer.stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    return judged(run, topic, on_late, direct)


def judged(run: Migration, topic: str, on_late: str, direct: Sequence[Writer]) -> Figures:
    """Find every record of the direct writers, and every name that kmigrate gave."""
    status = settled(run, topic, on_late)
    written = [value for writer in direct for value in writer.written]
    ours = set(written)
    source = {str((r.value or b"").decode()): (r.partition, r.offset) for r in read_topic(run.source.bootstrap, topic)}
    target = {(r.value or b"").decode() for r in read_topic(run.target.bootstrap, topic)}
    beside: set[str] = set()
    if on_late == "quarantine" and any(each["handled"] for each in status["late"]):
        beside = {(r.value or b"").decode() for r in read_topic(run.target.bootstrap, f"kmigrate-late-{topic}")}
    late = {each["partition"]: range(each["start"], each["end"]) for each in status["late"]}
    found = Figures(1, len(written))
    for value in written:
        place = source.get(value)
        if value in target:
            found.on_target += 1
        elif value in beside:
            found.quarantined += 1
        elif place is None:
            found.refused += 1
        elif place[1] in late.get(place[0], ()):
            found.named += 1
        else:
            found.missing += 1
            found.examples.append(f"{topic}-{place[0]} at {place[1]}: {value.rstrip('.')}")
    routed = {place: value for value, place in source.items() if value not in ours}
    false = [f"{topic}: late, though a router's: {place}" for place in routed if place[1] in late.get(place[0], ())]
    of_routers = asyncio.run(identities(run, topic, set(routed)))
    for each in status["direct_writers"]:
        named = each["partition"], each["producer_id"], each["epoch"]
        if named in of_routers:
            false.append(f"{topic}: a direct writer, though a router's: {named}")
    found.falsely_named = len(false)
    found.examples += false
    return found


def settled(run: Migration, topic: str, on_late: str) -> dict[str, Any]:
    """Return the topic's status once the watch has read and handled all."""

    def look() -> dict[str, Any] | None:
        status = run.topic_status(topic)
        left = [each for each in status["late"] if each["unread"] or (on_late != "alarm" and each["missing"])]
        return None if left else status

    time.sleep(3)  # a look of the watch
    found: dict[str, Any] = wait_until(look, 90, f"late records of {topic} to be read and handled")
    return found


async def identities(run: Migration, topic: str, places: set[tuple[int, int]]) -> set[tuple[int, int, int]]:
    """Return partition, producer id and epoch of the source's batches that hold any of these offsets."""
    found: set[tuple[int, int, int]] = set()
    async with ClusterClient(settings_of("source", run.source.bootstrap)) as client:
        await client.refresh([topic])
        for partition in range(PARTITIONS):
            key = topic, partition
            at = (await client.list_offsets({key: EARLIEST}))[key].offset
            end = (await client.log_ends([key]))[key].offset
            while at < end:
                part = FetchPartition(topic, partition, at, 4 << 20)
                answer = await fetch_one(client, client.leader(*key), part, purpose="judge")
                for batch in walk_all(answer.records):
                    offsets = range(batch.base_offset, batch.next_offset)
                    if any((partition, offset) in places for offset in offsets):
                        found.add((partition, getattr(batch, "producer_id", -1), getattr(batch, "producer_epoch", -1)))
                    at = batch.next_offset
    return found


def soak(run: Migration, rounds: int, at_once: int, seconds: float) -> Iterator[Figures]:
    """Run rounds on a migration with running engines, and yield the figures of each round."""
    for first in range(0, rounds, at_once):
        numbers = range(first, min(rounds, first + at_once))
        for number in numbers:
            run.make_topic(f"round-{number}", PARTITIONS)
        run.does("topic", "mirror", *(f"round-{number}" for number in numbers))
        with ThreadPoolExecutor(at_once) as threads:
            yield from threads.map(lambda number: one_round(run, number, seconds), numbers)


def main(words: Sequence[str] | None = None) -> int:
    """Run the rounds on clusters of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--at-once", type=int, default=5, help="rounds that run beside each other")
    parser.add_argument("--seconds", type=float, default=45.0, help="how long the writers of a round write")
    asked = parser.parse_args(words)
    whole = Figures()
    root = Path(tempfile.mkdtemp(prefix="kmigrate-direct-"))
    with fresh_migration(root, SETTINGS) as run:
        run.does("link", "create", "blue", "--source", "source", "--target", "target")
        run.start("mirror", "router", "controller")
        for figures in soak(run, asked.rounds, asked.at_once, asked.seconds):
            whole.add(figures)
            say(f"round {whole.rounds}: {figures.written} written, {figures.missing} missing, {figures.examples[:5]}")
    told = {name: value for name, value in asdict(whole).items() if name != "examples"}
    where = save("soak/direct-writers", told)
    say(f"{where}: {told}")
    for example in whole.examples[:20]:
        say(example)
    return 0 if whole.clean else 1


if __name__ == "__main__":
    sys.exit(main())
