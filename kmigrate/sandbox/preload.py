"""The content of the source before the demo starts: topics with a past, and groups with committed offsets.

- `orders`: some partitions have a log start beyond 1,000,000 (tiny filler records, then DeleteRecords).
- `payments`: written by transactions, a fifth of which is aborted.
- `audit`: empty.

A history of its own, with a line per stretch of records, lets the judge find the records again on the target.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import DEMO_GROUPS
from kmigrate.sandbox.history import ABORTED, HistoryWriter
from kmigrate.sandbox.payload import ValueId, content_of
from kmigrate.sandbox.topics import create_topics

__all__ = ["DEMO_TOPICS", "Preload", "Preloaded", "preload", "seeded_preload"]

DEMO_TOPICS: Mapping[str, int] = {"orders": 6, "payments": 3, "audit": 1}

_ABORT_EVERY = 5
_TRANSACTION_RECORDS = 100
_FILLER_BATCH = 50_000
_WAIT_SECONDS = 60.0
_LARGE_BATCHES = {"linger.ms": 20, "queue.buffering.max.messages": 10_000_000}

_Client = Mapping[str, str]
"""A client's bootstrap servers and login, by librdkafka's names."""


@dataclass(frozen=True)
class Preload:
    """The size of the past that `preload` creates."""

    records: int = 200_000  # in orders; payments gets a twentieth of this
    log_start: int = 1_000_000  # some partitions of orders have a log start beyond this offset
    filled_partitions: tuple[int, ...] = (0, 3)
    replicas: int = 1
    age_seconds: int = 0  # the age of the records' own timestamps
    # The share of each partition that a group has read and committed.
    groups: Mapping[str, float] = field(default_factory=lambda: {"billing": 0.95, "analytics": 0.99})


def seeded_preload(seed: int, records: int, replicas: int) -> Preload:
    """Return a preload. The seed decides which partitions of `orders` start beyond 1,000,000, and where."""
    chance = random.Random(seed)
    return Preload(
        records=records,
        log_start=1_000_000 + chance.randrange(200_000),
        filled_partitions=tuple(sorted(chance.sample(range(DEMO_TOPICS["orders"]), chance.randint(2, 3)))),
        replicas=replicas,
    )


@dataclass(frozen=True)
class Preloaded:
    """The result of `preload`."""

    records: Mapping[str, int]
    log_starts: Mapping[int, int]  # of orders, by partition
    seconds: float


def preload(
    bootstrap: str,
    history: Path,
    plan: Preload,
    *,
    on_progress: Callable[[str], None] = lambda _: None,
    login: Mapping[str, str] | None = None,
) -> Preloaded:
    """Create the demo's topics and groups on an empty source; `login` belongs to a user who may do all of this."""
    started = time.monotonic()
    history.unlink(missing_ok=True)
    client = {"bootstrap.servers": bootstrap, **(login or {})}
    admin = AdminClient({**client, "log_level": 3})
    with HistoryWriter(history, "preload", role="preload", bootstrap=bootstrap) as pen:
        on_progress("creating topics")
        create_topics(client, [NewTopic(name, count, plan.replicas) for name, count in DEMO_TOPICS.items()])
        on_progress(f"moving the log start of {len(plan.filled_partitions)} partitions")
        starts = _move_log_starts(admin, client, plan)
        on_progress(f"writing {plan.records:,} records to orders")
        timestamp = (time.time_ns() // 1_000_000 - 1000 * plan.age_seconds) if plan.age_seconds else -1
        _write_orders(client, pen, plan.records, timestamp)
        on_progress("writing payments by transactions")
        payments = _write_payments(client, pen, plan.records // 20, timestamp)
        on_progress("committing group positions")
        for group, share in plan.groups.items():
            _commit_positions(client, pen, group, DEMO_GROUPS[group], share)
    records = {"orders": plan.records, "payments": payments, "audit": 0}
    return Preloaded(records, starts, time.monotonic() - started)


def _move_log_starts(admin: AdminClient, client: _Client, plan: Preload) -> dict[int, int]:
    """Fill some partitions with one-byte records, a different number in each, and delete all of these records."""
    starts = {partition: plan.log_start + 17 * partition + 5 for partition in plan.filled_partitions}
    fast = {"acks": "1", "compression.type": "zstd", "batch.num.messages": 100_000}
    producer = Producer({**client, **_LARGE_BATCHES, **fast})
    for partition, start in starts.items():
        for first in range(0, start, _FILLER_BATCH):
            count = min(_FILLER_BATCH, start - first)
            producer.produce_batch("orders", [{"value": b"-"} for _ in range(count)], partition=partition)
    _flush(producer)
    cuts = [TopicPartition("orders", partition, start) for partition, start in starts.items()]
    for cut, moved in admin.delete_records(cuts).items():
        low = moved.result(_WAIT_SECONDS).low_watermark
        if low != cut.offset:
            raise Failed("preload-log-start", f"orders-{cut.partition} starts at {low}, expected {cut.offset}")
    return starts


def _flush(producer: Producer) -> None:
    if left := producer.flush(_WAIT_SECONDS):
        raise Failed("preload-unanswered", f"{left} records of the preload were not acknowledged")


class _Stretch:
    """The records of a producer in a partition, numbered in a row, and their offsets."""

    def __init__(self, pen: HistoryWriter, topic: str, partition: int, timestamp: int) -> None:
        self._pen = pen
        self._name = f"stock-{topic}-{partition}"
        self._timestamp = timestamp
        self._slot: dict[str, Any] = {"topic": topic, "partition": partition}
        self._next = 0
        self._offsets: list[int] = []

    def send(self, producer: Producer, count: int) -> None:
        """Send the next numbers. The library's queue must have room for all of them."""
        self._first, self._offsets = self._next, []
        self._next += count
        self._record("invoke", self._first, count)
        self._pen.flush()
        for seq in range(self._first, self._next):
            content = content_of(ValueId(self._name, 1, seq).text, seq)
            producer.produce(
                **self._slot,
                value=content.value,
                key=content.key,
                headers=list(content.headers),
                on_delivery=self._answered,
                timestamp=max(self._timestamp, 0),  # 0: the library's own
            )
            if seq % 1000 == 0:
                producer.poll(0)

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise Failed("preload-refused", f"a record of the preload was refused: {error.str()}")
        self._offsets.append(message.offset() or 0)

    def committed(self) -> int:
        """Write down the records' offsets, a line per run of consecutive offsets, and return the number of records."""
        first = 0
        for index in range(1, len(self._offsets) + 1):
            if index == len(self._offsets) or self._offsets[index] != self._offsets[index - 1] + 1:
                self._record("ok", self._first + first, index - first, offset=self._offsets[first])
                first = index
        return len(self._offsets)

    def aborted(self) -> None:
        self._record("fail", self._first, self._next - self._first, error=ABORTED)

    def _record(self, kind: str, seq: int, count: int, **fields: object) -> None:
        if self._timestamp >= 0:
            fields["ts"] = self._timestamp
        value = ValueId(self._name, 1, seq).text
        self._pen.record(kind, "send", **self._slot, value=value, records=count, **fields)


def _write_orders(client: _Client, pen: HistoryWriter, records: int, timestamp: int) -> None:
    safe = {"enable.idempotence": True, "compression.type": "lz4", "log_level": 3}
    producer = Producer({**client, **_LARGE_BATCHES, **safe})
    count = DEMO_TOPICS["orders"]
    stretches = [_Stretch(pen, "orders", partition, timestamp) for partition in range(count)]
    for partition, stretch in enumerate(stretches):
        stretch.send(producer, records // count + (partition < records % count))
    _flush(producer)
    if sum(stretch.committed() for stretch in stretches) != records:
        raise Failed("preload-unanswered", "not every record of the preload was acknowledged")


def _write_payments(client: _Client, pen: HistoryWriter, records: int, timestamp: int) -> int:
    """Write transactions to the partitions in turn and return the number of committed records."""
    producer = Producer({**client, "transactional.id": "preload", "linger.ms": 1, "log_level": 3})
    producer.init_transactions(_WAIT_SECONDS)
    stretches = [_Stretch(pen, "payments", partition, timestamp) for partition in range(DEMO_TOPICS["payments"])]
    committed = 0
    for number in range(records // _TRANSACTION_RECORDS):
        stretch = stretches[number % len(stretches)]
        producer.begin_transaction()
        stretch.send(producer, _TRANSACTION_RECORDS)
        _flush(producer)
        if number % _ABORT_EVERY == _ABORT_EVERY - 1:
            producer.abort_transaction(_WAIT_SECONDS)
            stretch.aborted()
        else:
            producer.commit_transaction(_WAIT_SECONDS)
            committed += stretch.committed()
    return committed


def _commit_positions(client: _Client, pen: HistoryWriter, group: str, topics: tuple[str, ...], share: float) -> None:
    consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})
    try:
        positions = []
        for topic in topics:
            for partition in range(DEMO_TOPICS[topic]):
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), _WAIT_SECONDS)
                positions.append(TopicPartition(topic, partition, low + int((high - low) * share)))
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()
    pen.record("ok", "commit", group=group, positions=[(p.topic, p.partition, p.offset) for p in positions])
