"""Broken windows of transactions: is a control marker ever misplaced on the target?

    python -m tests.soak.markers [--rounds 60] [--seed 1] [--faults late,size,...] [--target 3.9.1] [--secure]

Each round mirrors a new topic of transactions with identical offsets while something fails in the middle. The faults:

- `late`: the owner is replaced while its requests are held on their way, and the requests arrive later.
- `size`: the target topic refuses every batch for a while (`max.message.bytes=1`).
- `leaders`: another broker leads a partition.
- `kill`: a broker is killed and started anew.
- `still`: a broker, often a follower, stands still.
- `insync`: while a broker is away, `min.insync.replicas` is raised from 1 to 3, so that brokers refuse the markers
  of long windows and store the batches behind them. Such a partition must stop; its log is not compared.

With `--secure` both clusters speak TLS and want a login (SASL).

Then a last owner copies the rest. Kafka's own DumpLogSegments reads both logs, and each offset is compared: is it a
record or a control marker, and how many records does the target lack or hold twice? The soak writes
build/soak/markers.json with `rounds, lanes_broken, stopped, misplaced, lost, duplicated`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Failed
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.settings import HoleFiller, MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.security import Login, Security, Tls
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.dial import dial
from kmigrate.protocol.codes import Code
from kmigrate.sandbox.kafka import SOURCE_VERSION, TARGET_VERSION, Broker, ClusterSpec, KafkaCluster
from kmigrate.sandbox.topics import create_topics
from tests.figures import save
from tests.integration.java_clients import java_command
from tests.integration.mirror_world import settings_of
from tests.soak.chaos import elect, reorder, wait_in_sync

__all__ = ["FAULTS", "Found", "Round", "judge", "owner", "play", "until"]

FAULTS = ("late", "size", "leaders", "kill", "still", "insync")
_PARTITIONS = 4
_PATIENCE_S = 90.0
_LAST_TERM = 9
_GAP_S = 0.004
"""Seconds for which the line to the target holds each piece, so that windows are in flight most of the time."""


@dataclass
class Found:
    """The figures of all rounds."""

    rounds: int = 0
    windows: int = 0
    long_windows: int = 0
    lanes_broken: int = 0
    stopped: int = 0
    """Number of partitions that stopped under `insync`."""
    misplaced: int = 0
    lost: int = 0
    duplicated: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def is_right(self) -> bool:
        return not (self.misplaced or self.lost or self.duplicated)


# lines to the brokers


class Lines:
    """Relays to the target's brokers that never show a broker that a client has left: held requests arrive late."""

    def __init__(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._ports: dict[tuple[str, int], int] = {}
        self._brokers: dict[tuple[str, int], Broker] = {}
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.relayed = True
        """True if new connections go through the relays."""

    async def dial(self, protocol: asyncio.BaseProtocol, host: str, port: int, *more: Any) -> None:
        broker = self._brokers.get((host, port))
        # A relay in front of a dead broker would accept connections.
        through = self._ports[host, port] if self.relayed and broker is not None and broker.alive else port
        await dial(protocol, host, through, *more)

    def hold(self) -> None:
        """Hold what clients send from now on."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    async def open(self, cluster: KafkaCluster) -> None:
        for broker in cluster.brokers.values():
            address = ("127.0.0.1", broker.port)
            server = await asyncio.start_server(self._relay(address), "127.0.0.1", 0)
            self._servers.append(server)
            self._brokers[address] = broker
            self._ports[address] = server.sockets[0].getsockname()[1]

    def _relay(self, to: tuple[str, int]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    await asyncio.sleep(_GAP_S)
                    if up:
                        await self._flows.wait()
                    with contextlib.suppress(OSError):
                        writer.write(data)
                        await writer.drain()
            if not up:
                writer.close()

        async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, back = await asyncio.open_connection(*to)
            except OSError:
                writer.close()
                return
            self._writers += (writer, back)
            with contextlib.suppress(asyncio.CancelledError):  # the round has ended
                await asyncio.gather(pump(reader, back, up=True), pump(there, writer, up=False))

        return taken

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()


# owners


@dataclass
class Owner:
    """A copier that owns the partitions under a term, as long as `term` is not 0."""

    copier: Copier
    term: list[int]

    @property
    def positions(self) -> int:
        return sum(max(0, lane.target.position) for lane in self.copier.lanes.values())

    def has_copied(self, share: float) -> bool:
        """Return whether at least this share of each partition's log is copied."""
        lanes = self.copier.lanes.values()
        return all(lane.target.position >= share * lane.source.log_end > 0 for lane in lanes)

    @property
    def is_done(self) -> bool:
        """True once the copy has reached the source's log ends."""
        lanes = self.copier.lanes.values()
        return all(0 <= lane.source.log_end <= lane.target.position for lane in lanes)

    @property
    def problems(self) -> dict[int, str]:
        """Why partitions have stopped."""
        return {lane.partition: lane.report.problem for lane in self.copier.lanes.values() if lane.stopped}

    @property
    def long_windows(self) -> int:
        return sum(lane.tally.windows["long",] for lane in self.copier.lanes.values())

    @property
    def broken(self) -> int:
        return sum(sum(lane.tally.retries.values()) > 0 or lane.stopped for lane in self.copier.lanes.values())


def _reached(cluster: KafkaCluster) -> ClusterSettings:
    """Return the settings with which an owner reaches a cluster."""
    settings = settings_of(cluster.spec.name, cluster.bootstrap)
    if not cluster.spec.secure:
        return settings
    access = cluster.security.access("admin", "PLAIN")
    return replace(settings, security=Security(Tls(access.ca_file), Login("PLAIN", "admin", "", access.password_file)))


@contextlib.asynccontextmanager
async def owner(
    source: KafkaCluster, target: KafkaCluster, identity: CopyIdentity, topic: str, term: int, fetched: int = 20_000
) -> AsyncIterator[Owner]:
    """Copy a topic under a term; `fetched`: bytes of a partition in a response, the bound of a long window."""
    async with ClusterClient(_reached(source)) as reading, ClusterClient(_reached(target)) as writing:
        holes = HoleMaker(writing, identity, link_uuid="u", filler=HoleFiller.MARKERS)
        held = [term]
        context = CopyContext(
            reading,
            writing,
            identity,
            holes,
            MirrorSettings(partition_max_bytes=fetched),
            owner_term=lambda _: held[0],
        )
        copier = Copier(context)
        copier.assign([MirroredTopic(topic, "", "", dict.fromkeys(range(_PARTITIONS), 0))])
        running = asyncio.get_running_loop().create_task(copier.run())
        try:
            yield Owner(copier, held)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


# a round


@dataclass
class Round:
    """A topic that is mirrored while something fails."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    fault: str
    dice: random.Random
    transactions: int = 120
    stopped: set[int] = field(default_factory=set)
    """Partitions whose last owner found a shifted log."""

    def load(self) -> None:
        """Write transactions of one to four records per partition; every seventh is aborted."""
        create_topics(self.source.client(), [NewTopic(self.topic, _PARTITIONS)])
        replicas = sorted(self.target.brokers)
        create_topics(self.target.client(), [NewTopic(self.topic, _PARTITIONS, replication_factor=len(replicas))])
        producer = Producer({**self.source.client(), "transactional.id": self.topic, "linger.ms": 0})
        producer.init_transactions(30)
        for number in range(self.transactions):
            producer.begin_transaction()
            for partition in range(_PARTITIONS):
                for record in range(self.dice.choice((1, 1, 2, 4))):
                    producer.produce(self.topic, b"%d-%d" % (number, record), partition=partition)
            producer.flush(30)  # an abort drops what has not left
            if number % 7 == 6:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)

    async def play(self, found: Found) -> None:
        lines = Lines()
        await lines.open(self.target)
        async with ClusterClient(_reached(self.target)) as client:
            identity = CopyIdentity(*await client.init_producer_id())
            with mock.patch("kmigrate.net.broker.dial", lines.dial):
                if self.fault == "insync":
                    await self._lose_a_replica(client)
                fetched = self.dice.choice((1_000, 3_000, 20_000))
                async with owner(self.source, self.target, identity, self.topic, 1, fetched) as first:
                    moment = self.dice.randrange(20, 6 * self.transactions)
                    await until(lambda: first.positions >= moment, "the moment of the fault")
                    await self._fail(client, lines, identity, first, found)
                    found.lanes_broken += first.broken
                    found.long_windows += first.long_windows
                await self._copy_the_rest(identity, found)
        lines.close()
        found.rounds += 1
        found.faults[self.fault] += 1

    async def _fail(
        self, client: ClusterClient, lines: Lines, identity: CopyIdentity, first: Owner, found: Found
    ) -> None:
        node = self.dice.choice(sorted(self.target.brokers))
        if self.fault == "late":
            lines.hold()
            await asyncio.sleep(self.dice.uniform(0.02, 0.1))
            lines.relayed = False
            first.term[0] = 0
            async with owner(self.source, self.target, identity, self.topic, 2) as second:
                ahead = first.positions + self.dice.choice((0, 0, 1, 5, 40))
                await until(lambda: second.positions >= ahead or second.is_done, "the next owner")
                await asyncio.sleep(self.dice.choice((0, 0, 0.002, 0.02)))
                lines.release()
                await asyncio.sleep(0.3)
                found.lanes_broken += second.broken
                found.long_windows += second.long_windows
            lines.relayed = True
        elif self.fault == "size":
            await asyncio.to_thread(self.set_config, "max.message.bytes", "1")
            await asyncio.sleep(self.dice.uniform(0.1, 0.4))
            await asyncio.to_thread(self.set_config, "max.message.bytes", "1048588")
        elif self.fault == "insync":
            await asyncio.to_thread(self.set_config, "min.insync.replicas", "3")
            await asyncio.sleep(self.dice.uniform(0.1, 2))
            await asyncio.to_thread(self.set_config, "min.insync.replicas", "1")
            await asyncio.to_thread(self._bring_back)
        elif self.fault == "leaders":
            for partition in range(_PARTITIONS):
                info = (await client.refresh([self.topic])).topics[self.topic]
                replicas = info.partitions[partition].replicas
                await reorder(client, self.topic, partition, (*replicas[1:], replicas[0]))
                await elect(client, self.topic, partition)
                await asyncio.sleep(self.dice.uniform(0, 0.2))
        elif self.fault == "kill":
            self.target.kill(node)
            await asyncio.sleep(self.dice.uniform(0, 1))
            await asyncio.to_thread(self.target.restart, node)
            await asyncio.to_thread(self.target.wait_ready)
        else:
            self.target.pause(node)
            await asyncio.sleep(self.dice.uniform(0.5, 3))
            self.target.resume(node)
            await asyncio.sleep(0.5)

    async def _lose_a_replica(self, client: ClusterClient) -> None:
        """Kill a broker, and wait until no partition counts the broker among its in-sync replicas."""
        node = self.dice.choice(sorted(self.target.brokers))
        self.target.kill(node)
        deadline, seen = time.monotonic() + _PATIENCE_S, ""
        while time.monotonic() < deadline:
            try:
                parts = (await client.refresh([self.topic])).topics[self.topic].partitions
            except Failed as error:
                seen = error.what
            else:
                seen = str(parts)
                if all(part.leader >= 0 and node not in part.in_sync for part in parts.values()):
                    return
            await asyncio.sleep(0.2)
        raise TimeoutError(f"the killed broker {node} stays in sync: {seen}")

    def _bring_back(self) -> None:
        for node, broker in self.target.brokers.items():
            if not broker.alive:
                self.target.restart(node)
        self.target.wait_ready()

    def set_config(self, key: str, value: str) -> None:
        """Set a config of the target's topic."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[entry])
        admin = AdminClient({**self.target.client()})
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result(20)

    async def _copy_the_rest(self, identity: CopyIdentity, found: Found) -> None:
        """Copy the rest under a last owner, or several: a broker on a busy machine applies a new size limit late.

        A refused batch stops its partition for good, and the next owner is the person who resumes.
        """
        term, deadline = _LAST_TERM, time.monotonic() + _PATIENCE_S
        refused = True
        while refused and time.monotonic() < deadline:
            async with owner(self.source, self.target, identity, self.topic, term) as last:
                await self._finished(last)
                found.lanes_broken += last.broken
                found.long_windows += last.long_windows
                refused = any(Code.MESSAGE_TOO_LARGE.name in problem for problem in last.problems.values())
            term += 1
        if self.fault == "insync":
            self.stopped = set(last.problems)

    async def _finished(self, last: Owner) -> None:
        async with ClusterClient(_reached(self.source)) as reading:
            await reading.refresh([self.topic])
            keys = [(self.topic, partition) for partition in range(_PARTITIONS)]
            ends = {key: each.offset for key, each in (await reading.log_ends(keys)).items()}

        def is_over(key: tuple[str, int], end: int) -> bool:
            lane = last.copier.lanes[key]
            return lane.stopped or lane.target.position >= end

        await until(lambda: all(is_over(key, end) for key, end in ends.items()), "the end of the copy")
        if last.problems:
            print(f"{self.topic} ({self.fault}): {last.problems}", flush=True)


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no end of the wait for {what}")
        await asyncio.sleep(0.002)


# the judge


def judge(source: KafkaCluster, target: KafkaCluster, rounds: Sequence[Round], found: Found) -> None:
    """Compare both logs offset by offset, as Kafka's own DumpLogSegments reads them."""
    topics = [each.topic for each in rounds]
    ours, theirs = dumped(target, topics), dumped(source, topics)
    for each in rounds:
        topic = each.topic
        found.stopped += len(each.stopped)
        for partition in set(range(_PARTITIONS)) - each.stopped:
            copy, truth = ours.get((topic, partition), {}), theirs[(topic, partition)]
            aborted = {offset for offset, kind in truth.items() if kind == "aborted"}
            wanted = {offset: "marker" if offset in aborted else kind for offset, kind in truth.items()}
            for offset, kind in wanted.items():
                is_there = copy.get(offset)
                if is_there is None:
                    found.lost += 1
                elif (is_there == "marker") != (kind == "marker"):
                    found.misplaced += 1
                elif kind != is_there:
                    found.duplicated += 1  # another record than the source's: an earlier one that was stored again
            found.duplicated += len(copy.keys() - wanted.keys())
    found.windows += sum(kind == "marker" for log in ours.values() for kind in log.values())


def dumped(cluster: KafkaCluster, topics: list[str]) -> dict[tuple[str, int], dict[int, str]]:
    """Return what each offset holds: "marker", "aborted", or the record's value."""
    logs: dict[tuple[str, int], dict[int, str]] = {}
    files: list[Path] = []
    for topic in topics:
        for partition in range(_PARTITIONS):
            held = [broker.folder / "data" / f"{topic}-{partition}" for broker in cluster.brokers.values()]
            whole = max(held, key=lambda folder: sum(f.stat().st_size for f in folder.glob("*.log")))
            files += sorted(whole.glob("*.log"))
    words = ("--print-data-log", "--files", ",".join(map(str, files)))
    command = java_command("kafka.tools.DumpLogSegments", *words, jars="kafka", version=SOURCE_VERSION)
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    for key, records in _logs(said):
        logs.setdefault(key, {}).update(records)
    return logs


def _logs(said: str) -> Iterator[tuple[tuple[str, int], dict[int, str]]]:
    """Yield each dumped segment's topic and partition, and the content of its offsets."""
    for part in said.split("Dumping ")[1:]:
        folder = Path(part.splitlines()[0].strip()).parent.name
        topic, _, partition = folder.rpartition("-")
        found: dict[int, str] = {}
        open_at: dict[str, list[int]] = {}
        control, producer = False, ""
        for line in part.splitlines():
            words = line.replace("|", " ").split()
            if line.startswith("baseOffset:"):
                control = words[words.index("isControl:") + 1] == "true"
                transactional = words[words.index("isTransactional:") + 1] == "true"
                producer = words[words.index("producerId:") + 1]
            elif words and line.lstrip().startswith("|") and words[0] == "offset:":
                offset = int(words[words.index("offset:") + 1])
                if control:
                    found[offset] = "marker"
                    ended = open_at.pop(producer, [])
                    if "ABORT" in line:
                        found.update(dict.fromkeys(ended, "aborted"))
                else:
                    found[offset] = line.rpartition("payload: ")[2]
                    if transactional:
                        open_at.setdefault(producer, []).append(offset)
        yield (topic, int(partition)), found


def play(
    source: KafkaCluster, target: KafkaCluster, faults: list[str], dice: random.Random, name: str, transactions: int
) -> Found:
    """Play a round for each fault, and judge all logs together."""
    found = Found()
    rounds: list[Round] = []
    for number, fault in enumerate(faults):
        it = Round(source, target, f"{name}-{number}", fault, dice, transactions)
        it.load()
        asyncio.run(it.play(found))
        wait_in_sync(target)
        rounds.append(it)
    judge(source, target, rounds, found)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--faults", default=",".join(FAULTS))
    arguments.add_argument("--target", default=TARGET_VERSION, help="Kafka version of the target")
    arguments.add_argument("--secure", action="store_true", help="clusters with TLS and SASL")
    chosen = arguments.parse_args()
    dice, began = random.Random(chosen.seed), time.monotonic()
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="kmigrate-soak-") as folder:
        source = KafkaCluster.create(ClusterSpec("source", SOURCE_VERSION, secure=chosen.secure), Path(folder))
        target = KafkaCluster.create(ClusterSpec("target", chosen.target, 3, secure=chosen.secure), Path(folder))
        try:
            for cluster in (source, target):
                cluster.start()
                cluster.wait_ready()
            names = chosen.faults.split(",")
            for at in range(0, chosen.rounds, len(names)):
                some = [names[(at + n) % len(names)] for n in range(min(len(names), chosen.rounds - at))]
                found = play(source, target, some, dice, f"markers-{at}", 120)
                figures = {name: value for name, value in vars(found).items() if name != "faults"}
                total.update(cast("dict[str, int]", figures))
                faults.update(found.faults)
                print(f"{at + len(some)} rounds: {dict(total)}", flush=True)
        finally:
            for cluster in (source, target):
                cluster.stop()
    seconds = round(time.monotonic() - began)
    path = save(
        "soak/markers",
        {
            **total,
            "faults": dict(faults),
            "seed": chosen.seed,
            "target": chosen.target,
            "secure": chosen.secure,
            "seconds": seconds,
        },
    )
    print(f"{path}: {seconds} s")
    raise SystemExit(bool(total["misplaced"] or total["lost"] or total["duplicated"]))


if __name__ == "__main__":
    main()
