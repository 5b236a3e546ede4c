"""A link, routers in processes of their own, and clients that judge: for the router's tests.

No mirror runs here. librdkafka reads the source's records, and the target's records after a flip. Put together in this
order, the records must be the sent records, each once and in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from kmigrate.cluster.admin import Admin
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.log_probes import RecentBatches
from kmigrate.model.barrier import barrier_chunks, merge_marks
from kmigrate.model.lifecycle import GroupMode, GroupPhase, TopicPhase
from kmigrate.model.presences import FenceAck, RouterPresence
from kmigrate.model.records import ClusterRef, GroupRecord, LinkRecord, ProducerMark, TopicRecord, topic_key
from kmigrate.model.routes import routing_table
from kmigrate.model.settings import ClusterSettings
from kmigrate.model.state import State
from kmigrate.net.clock import monotonic
from kmigrate.sandbox.kafka import KafkaCluster
from kmigrate.state.log import StateLog
from kmigrate.state.topics import ensure_state_log
from tests.integration.command_line import Script, in_a_test, program

ROOT = Path(__file__).resolve().parents[2]

_PATIENCE_S = 60.0
"""Time for whatever happens within a second on an idle machine; no test waits for this time to pass."""

_Given = ParamSpec("_Given")
_Told = TypeVar("_Told")


def settings_of(name: str, bootstrap: str) -> ClusterSettings:
    pairs = (address.rsplit(":", 1) for address in bootstrap.split(","))
    return ClusterSettings(name, tuple((host, int(port)) for host, port in pairs))


@dataclass
class RouterProcess:
    name: str
    process: Script | subprocess.Popen[str]
    bootstrap: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop_before_sending(self) -> None:
        """Stop the process with a write that is checked and not yet sent; SIGCONT wakes the process.

        With `stop_at` the process stops at the next request of that API.
        """
        self.process.send_signal(signal.SIGUSR1)
        status = Path(f"/proc/{self.process.pid}/status")
        deadline = time.monotonic() + 20
        while "State:\tT" not in status.read_text(encoding="utf-8"):
            assert time.monotonic() < deadline, f"router {self.name} has sent no write"
            time.sleep(0.005)

    def stop(self) -> int:
        self.process.terminate()
        self.process.send_signal(signal.SIGCONT)  # A test may have left the process standing still.
        return self.process.wait(_PATIENCE_S)


def start_router(
    name: str, target: KafkaCluster, port: int = 0, *, state_via: str = "", detour: str = "", log_level: str = "INFO",
    stop_at: str = "", **settings: Any,
) -> RouterProcess:  # fmt: skip
    words = ["tests/integration/router_process.py", name, target.bootstrap, str(port), json.dumps(settings)]
    around = {
        "PYTHONPATH": ".", "STATE_VIA": state_via, "DETOUR": detour, "ROUTER_LOG": log_level, "STOP_AT": stop_at
    }  # fmt: skip
    process: Script | subprocess.Popen[str]
    if in_a_test():
        process = Script(words, around, ROOT)
    else:
        process = subprocess.Popen(program(*words), stdout=subprocess.PIPE, text=True, cwd=ROOT, env=around)
    assert process.stdout is not None
    told = process.stdout.readline().split()
    assert told and told[0] == "bootstrap", f"router {name} did not start: {told}"
    return RouterProcess(name, process, told[1])


@contextlib.contextmanager
def router(name: str, target: KafkaCluster, port: int = 0, **more: Any) -> Iterator[RouterProcess]:
    """Run a router while the block lasts; the arguments are those of `start_router`."""
    running = start_router(name, target, port, **more)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@dataclass
class World:
    """A link and the state log with its records; plays the controller."""

    link: str
    source: KafkaCluster
    target: KafkaCluster
    log: StateLog
    target_id: str

    async def put(self, topic: str, phase: TopicPhase, **changes: Any) -> TopicRecord:
        def decide(state: State) -> TopicRecord:
            record = state.topic(self.link, topic) or TopicRecord(self.link, topic, phase, 1, partitions=3)
            return replace(record, phase=phase, **changes)

        state = await self.log.append(decide)
        record = state.topic(self.link, topic)
        assert record is not None
        return record

    async def put_group(self, group: str, phase: GroupPhase, mode: GroupMode = GroupMode.HOLD) -> None:
        await self.log.append(lambda _: GroupRecord(self.link, group, phase, 1, mode=mode))

    async def fence(self, topic: str) -> TopicRecord:
        epoch = self.log.state.epoch + 1
        return await self.put(topic, TopicPhase.FENCING, fence_epoch=epoch)

    async def drained(self, topic: str, epoch: int, routers: int = 1) -> list[FenceAck]:
        """Wait until every router reports that nothing of a topic is in flight under a fence; return the reports."""

        def found(_: State) -> list[FenceAck] | None:
            acks = [p.fences.get(topic_key(self.link, topic)) for p in self.log.alive(RouterPresence)]
            done = [a for a in acks if a is not None and a.epoch == epoch and a.in_flight == 0]
            return done if len(done) >= routers else None

        return await self.log.wait(found, _PATIENCE_S, f"{routers} routers to drain {topic}")

    async def flip(self, topic: str, epoch: int, acks: list[FenceAck]) -> None:
        """Write the barrier table from the routers and the source broker, and then the record that flips."""
        marks = await self.barrier(topic, acks)
        for chunk in barrier_chunks(self.link, topic, epoch, marks):
            await self.log.append(lambda _, chunk=chunk: chunk)  # type: ignore[misc]
        await self.put(topic, TopicPhase.PROMOTED)

    async def barrier(self, topic: str, acks: list[FenceAck]) -> dict[int, tuple[ProducerMark, ...]]:
        shift = self.shift(topic)
        seen: dict[int, list[ProducerMark]] = {}
        for ack in acks:
            for partition, producers in ack.producers.items():
                seen.setdefault(partition, []).extend(producers)
        async with ClusterClient(settings_of("source", self.source.bootstrap)) as client:
            await client.refresh([topic])
            keys = [(topic, partition) for partition in client.metadata.topics[topic].partitions]
            for (_, partition), (_, states) in (await client.describe_producers(keys)).items():
                seen.setdefault(partition, []).extend(
                    ProducerMark(s.producer_id - shift, s.producer_epoch, s.last_sequence) for s in states
                )
            recent = await RecentBatches(client).read_to(await client.log_ends(keys), monotonic() + 15)
            for (_, partition), marks in recent.items():
                seen[partition] += [replace(mark, producer_id=mark.producer_id - shift) for mark in marks]
        return {partition: merge_marks(marks) for partition, marks in seen.items()}

    def shift(self, topic: str) -> int:
        return routing_table(self.log.state).topics[topic].shift

    async def source_producers(self, topic: str) -> set[int]:
        async with ClusterClient(settings_of("source", self.source.bootstrap)) as client:
            await client.refresh([topic])
            keys = [(topic, partition) for partition in client.metadata.topics[topic].partitions]
            found = await client.describe_producers(keys)
            return {s.producer_id for _, states in found.values() for s in states}

    async def fallbacks(self, home: RouterProcess) -> list[str]:
        """Wait until another router reports listeners for a router's clients, and return their addresses."""

        def kept(_: State) -> list[str] | None:
            heard = self.log.alive(RouterPresence)
            return [each.fallbacks[home.bootstrap] for each in heard if home.bootstrap in each.fallbacks] or None

        return await self.log.wait(kept, _PATIENCE_S, "a fallback listener")

    async def only_routers(self, count: int) -> None:
        """Wait until no other routers are heard of: the presence of an earlier test's router lasts for seconds."""
        await self.log.wait(
            lambda _: len(self.log.alive(RouterPresence)) == count or None, _PATIENCE_S, f"{count} routers alone"
        )

    async def routers_apply(self, count: int = 1) -> None:
        """Wait until that many routers follow the newest state."""
        epoch = self.log.state.epoch
        await self.log.wait(
            lambda _: [p for p in self.log.alive(RouterPresence) if p.applied >= epoch][count - 1 :] or None,
            _PATIENCE_S,
            f"{count} routers at epoch {epoch}",
        )


@contextlib.asynccontextmanager
async def link_between(
    source: KafkaCluster, target: KafkaCluster, link: str, login: ClusterSettings | None = None
) -> AsyncIterator[World]:
    settings = login or settings_of("target", target.bootstrap)
    async with ClusterClient(settings) as client:
        await ensure_state_log(client, Admin(settings))
        async with StateLog(client) as log:
            target_id = client.metadata.cluster_id
            await log.append(
                lambda _: LinkRecord(
                    link,
                    f"uuid-{link}",
                    ClusterRef("source", source.bootstrap, source.cluster_id),
                    ClusterRef("target", target.bootstrap, target_id),
                    1,
                )
            )
            world = World(link, source, target, log, target_id)
            try:
                yield world
            finally:
                await world_gone(log, link, routers=login is None)


def beside_a_router(
    source: KafkaCluster, target: KafkaCluster, link: str, act: Callable[[RouterProcess], None], **settings: Any
) -> None:
    """Call `act` with a router of a link that mirrors nothing."""

    async def scenario() -> None:
        async with link_between(source, target, link):
            with router("r1", target, **settings) as running:
                await quietly(act, running)

    asyncio.run(scenario())


async def world_gone(log: StateLog, *links: str, routers: bool) -> None:
    """Delete a test's records, so that the next test finds none."""
    of_routers = ("router/", "stray/") if routers else ()
    gone = [k for k in log.state.records if k.split("/")[1] in links or k.startswith(of_routers)]
    for key in gone:
        await log.append(lambda state, key=key: (key, None) if key in state.records else None)  # type: ignore[misc]


async def links_gone(target: KafkaCluster, *links: str) -> None:
    """Delete the records of these links, or of all links, and of all routers from a target's state log."""
    async with ClusterClient(settings_of("target", target.bootstrap)) as client, StateLog(client) as log:
        await world_gone(log, *(links or [each.name for each in log.state.links()]), routers=True)


@dataclass
class Writer:
    """A librdkafka producer in a thread of its own that sends numbered values until the test stops it."""

    bootstrap: str
    topic: str
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    pause: float = 0.001
    partitions: int = 3
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    acked: int = 0
    slowest: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Writer:
        base = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "enable.idempotence": True}
        self._producer = Producer({**base, **self.config}, logger=None)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            partition = number % self.partitions
            value = b"%s-%d" % (self.name.encode(), number)
            self.sent.setdefault(partition, []).append(value)
            self._producer.produce(self.topic, value, partition=partition, on_delivery=self._told(time.monotonic()))
            self._producer.poll(0)
            number += 1
            time.sleep(self.pause)
        left = self._producer.flush(20)
        if left:
            self.errors.append(f"{left} not acknowledged")

    def _told(self, sent: float) -> Callable[[Any, Any], None]:
        def told(error: Any, _: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            self.acked += 1
            self.slowest = max(self.slowest, time.monotonic() - sent)

        return told

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self.finish()

    def until(self, acked: int, timeout: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout
        while self.acked < acked:
            assert time.monotonic() < deadline, f"{self.name}: {self.acked} of {acked} acknowledged, {self.errors}"
            time.sleep(0.01)


@dataclass
class InTransactions:
    """A librdkafka producer in a thread of its own, with a few numbered values per transaction; every fifth is aborted.

    Each transaction writes the values to all topics. After a forced abort the producer repeats the transaction, as
    applications do.
    """

    bootstrap: str
    topics: tuple[str, ...]
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    partitions: int = 3
    abort_every: int = 5
    pause: float = 0.0
    """Seconds between two transactions."""
    committed: dict[int, list[bytes]] = field(default_factory=dict)
    """Values by partition, in order; the same in all topics."""
    transactions: int = 0
    errors: list[str] = field(default_factory=list)
    """Errors that ended the producer."""
    aborted: list[str] = field(default_factory=list)
    """Errors that forced an abort."""
    slowest: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> InTransactions:
        base = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "transactional.id": self.name}
        self._producer = Producer({**base, **self.config}, logger=None)
        self._producer.init_transactions(30)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and not self.errors:
            began = time.monotonic()
            if self._transaction(number, abort=bool(self.abort_every) and number % self.abort_every == 1):
                self.transactions += 1
            self.slowest = max(self.slowest, time.monotonic() - began)
            number += 1
            time.sleep(self.pause)

    def _transaction(self, number: int, *, abort: bool) -> bool:
        values = [(at % self.partitions, b"%s-%d-%d" % (self.name.encode(), number, at)) for at in range(4)]
        try:
            while not self._written(values, abort=abort):
                pass
        except KafkaException as raised:
            self.errors.append(str(raised.args[0]))
            return False
        if abort:
            return False
        for partition, value in values:
            self.committed.setdefault(partition, []).append(value)
        return True

    def _written(self, values: list[tuple[int, bytes]], *, abort: bool) -> bool:
        """Try the transaction; return False where the producer had to abort."""
        try:
            self._producer.begin_transaction()
            for topic in self.topics:
                for partition, value in values:
                    self._producer.produce(topic, value, partition=partition)
            if abort:
                self._producer.flush(5)  # Otherwise the abort would wait for records that are already aborted.
            _again(self._producer.abort_transaction if abort else self._producer.commit_transaction)
        except KafkaException as raised:
            if not raised.args[0].txn_requires_abort():
                raise
            self.aborted.append(str(raised.args[0]))
            _again(self._producer.abort_transaction)
            return False
        return True

    def until(self, transactions: int, timeout: float = _PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout
        while self.transactions < transactions:
            told = f"{self.name}: {self.transactions} of {transactions}, {self.errors} {self.aborted}"
            assert time.monotonic() < deadline and not self.errors, told
            time.sleep(0.01)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self.finish()


def _again(end: Callable[[float], None]) -> None:
    """Call `end` until the call succeeds; librdkafka demands this after a timeout."""
    while True:
        try:
            return end(60)
        except KafkaException as raised:
            if not raised.args[0].retriable():
                raise


def ends(bootstrap: str, topic: str, partitions: int = 3) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=10)[1] for index in range(partitions)
        ]
    finally:
        consumer.close()


def values(bootstrap: str, topic: str, partitions: int = 3) -> dict[int, list[bytes]]:
    """Return every value in a topic, by partition, as librdkafka reads them."""
    wanted = ends(bootstrap, topic, partitions)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "values", "enable.auto.commit": False})
    out: dict[int, list[bytes]] = {index: [] for index in range(partitions)}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        deadline = time.monotonic() + 30
        while any(len(out[index]) < wanted[index] for index in range(partitions)):
            assert time.monotonic() < deadline, f"read {[len(v) for v in out.values()]} of {wanted}"
            for message in consumer.consume(1000, 0.5):
                assert message.error() is None, message.error()
                partition, value = message.partition(), message.value()
                assert partition is not None and value is not None
                out[partition].append(value)
        return out
    finally:
        consumer.close()


async def quietly(call: Callable[_Given, _Told], *args: _Given.args, **named: _Given.kwargs) -> _Told:
    """Run a blocking call in a thread, so that the state log is followed meanwhile."""
    return await asyncio.to_thread(call, *args, **named)
