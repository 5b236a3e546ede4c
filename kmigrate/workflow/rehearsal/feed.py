"""The copy of the real traffic: a consumer without a group reads the real topics, a producer writes the shadow topics.

Records keep their partition, key, value, headers and time. Aborted records are not copied, and records of transactions
become plain records. A topic without new records gets synthetic records, so that a fence meets writers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kmigrate.cluster.librdkafka import client_config, is_refusal
from kmigrate.cluster.requests import Key
from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.clock import monotonic, now_ms
from kmigrate.workflow.rehearsal.contents import Content

__all__ = ["Feed", "Shadow"]

_BATCH = 500
_POLL_S = 0.005
_IDLE_S = 1.0
"""Seconds without a record after which a topic gets synthetic records."""
_SYNTHETIC_PER_S = 100
_FLUSH_S = 30.0
_Headers = dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]]
_LARGEST = 100_000_000
"""Largest record that the feed copies, in bytes."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """A shadow topic, and the real topic whose traffic is copied."""

    topic: str
    name: str
    partitions: int
    compacted: bool


@dataclass(slots=True)
class _Source:
    """The traffic of one real topic."""

    shadow: Shadow
    heard: float
    copied: int = 0
    synthetic: int = 0


class Feed:
    """Writes the shadow topics from a thread of its own, until stopped."""

    def __init__(self, shadows: Collection[Shadow], source: ClusterSettings) -> None:
        self._sources = {each.topic: _Source(each, monotonic()) for each in shadows}
        self._settings = source
        self._next: ClusterSettings | None = None
        self._producer = _producer(source)
        self._ended = threading.Event()
        self._moved = threading.Event()
        self._failure = ""
        self._synthetic_due = monotonic()
        self._thread = threading.Thread(target=self._run, name="rehearsal-feed", daemon=True)
        self.acknowledged: dict[Key, Content] = {
            (each.name, partition): Content(compacted=each.compacted)
            for each in shadows
            for partition in range(each.partitions)
        }
        """The records that brokers or routers have acknowledged, by partition of a shadow topic."""

    def start(self) -> None:
        self._thread.start()

    def copied(self, topic: str) -> int:
        """Return how many records of a real topic were copied."""
        return self._sources[topic].copied

    def synthetic(self, topic: str) -> int:
        """Return how many synthetic records the shadow of a topic got."""
        return self._sources[topic].synthetic

    def check(self) -> None:
        """Raise Failed if a client of the feed has failed."""
        if self._failure:
            raise Failed("rehearsal-client-failed", f"the feed of the shadow topics has failed: {self._failure}")

    async def move(self, settings: ClusterSettings, timeout_s: float) -> None:
        """Have a new producer go on at other addresses, once all earlier records are acknowledged."""
        self._moved.clear()
        self._next = settings
        if not await asyncio.to_thread(self._moved.wait, timeout_s):
            self.check()
            raise WaitTimedOut("rehearsal-slow", f"the feed did not reach {settings.bootstrap_servers} in time")
        self.check()

    async def stop(self) -> None:
        """Stop copying, and wait until all records are acknowledged."""
        self._ended.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 2 * _FLUSH_S)

    def _run(self) -> None:
        try:
            consumer = Consumer(
                {
                    **client_config(self._settings),
                    "group.id": f"{self._settings.client_id}-rehearsal",  # no member joins, nothing is committed
                    "enable.auto.commit": False,
                    "auto.offset.reset": "latest",
                    "isolation.level": "read_committed",
                }
            )
            try:
                self._copy(consumer)
            finally:
                consumer.close()
        except (KafkaException, Failed) as error:
            self._failure = self._failure or str(error)
        finally:
            self._flush()
            self._moved.set()

    def _copy(self, consumer: Consumer) -> None:
        shadows = [each.shadow for each in self._sources.values()]
        consumer.assign([TopicPartition(each.topic, p, OFFSET_END) for each in shadows for p in range(each.partitions)])
        while not self._ended.is_set() and not self._failure:
            for message in consumer.consume(_BATCH, _POLL_S):
                error = message.error()
                if error is not None and (error.fatal() or is_refusal(error.code())):
                    raise KafkaException(error)
                if error is None:
                    self._pass_on(message)
            self._fill_in()
            self._producer.poll(0)
            if self._next is not None:
                settings, self._next = self._next, None
                self._flush()
                self._producer = _producer(settings)
                self._moved.set()

    def _pass_on(self, message: Message) -> None:
        source = self._sources[str(message.topic())]
        source.heard = monotonic()
        source.copied += 1
        _, time = message.timestamp()
        partition = int(message.partition() or 0)
        self._send(source.shadow, partition, message.key(), message.value(), message.headers() or [], max(time, 0))

    def _fill_in(self) -> None:
        now = monotonic()
        if now < self._synthetic_due:
            return
        self._synthetic_due = now + 1 / _SYNTHETIC_PER_S
        for source in self._sources.values():
            if now - source.heard > _IDLE_S:
                source.synthetic += 1
                partition = source.synthetic % source.shadow.partitions
                text = f"rehearsal {source.synthetic}".encode()
                self._send(source.shadow, partition, text, text, [], now_ms())

    def _send(
        self,
        shadow: Shadow,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: _Headers,
        time: int,
    ) -> None:
        answered = partial(self._answered, (shadow.name, partition), key, value)
        while True:
            try:
                self._producer.produce(shadow.name, value, key, partition, answered, timestamp=time, headers=headers)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _answered(self, at: Key, key: bytes | None, value: bytes | None, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged[at].add(key, value)
        else:
            self._failure = self._failure or f"a write to {at[0]}-{at[1]}: {error.str()}"

    def _flush(self) -> None:
        left = self._producer.flush(_FLUSH_S)
        if left:
            self._failure = self._failure or f"{left} records have no answer after {_FLUSH_S:g} s"


def _producer(settings: ClusterSettings) -> Producer:
    return Producer(
        {
            **client_config(settings),
            "client.id": f"{settings.client_id}-rehearsal",
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.max.bytes": _LARGEST,
        }
    )
