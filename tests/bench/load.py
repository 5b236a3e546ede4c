"""The records of a benchmark on the source: real librdkafka batches of a stated size, spread over all partitions.

Another form is real transactions of a stated number of records, by several producers for each partition.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

__all__ = ["CASES", "Case", "load", "make_topic", "remove_topics"]


@dataclass(frozen=True)
class Case:
    """A kind of data: number and size of the records, and the way the source's producer batches them."""

    name: str
    records: int
    record_bytes: int
    producer: dict[str, object] = field(default_factory=dict)
    compression: str = "none"
    transaction: int = 0
    """Records of a transaction, all in the same partition; 0 is without transactions."""

    @property
    def offsets(self) -> int:
        """The offsets that the records take on a log with the source's offsets, with a marker per transaction."""
        return self.records + (self.records // self.transaction if self.transaction else 0)

    @property
    def gigabytes(self) -> float:
        return self.records * self.record_bytes / 1e9


_EACH = 4
"""Transactional producers of each partition."""
_BATCH_64K: dict[str, object] = {"batch.size": 64 << 10, "linger.ms": 100, "batch.num.messages": 100_000}

CASES = {
    "1kB": Case("1kB", 2_000_000, 1000, _BATCH_64K),
    "small": Case("small", 3_000_000, 100, {"batch.num.messages": 8, "linger.ms": 5}),
    "txn": Case("txn", 240_000, 1000, {"linger.ms": 0}, transaction=10),
    "lz4": Case("lz4", 2_000_000, 1000, {**_BATCH_64K, "compression.type": "lz4"}, "lz4"),
}


def make_topic(bootstrap: str, topic: str, partitions: int, replicas: int = 1) -> None:
    new = NewTopic(topic, partitions, replicas, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap})  # the client must outlive the answer
    admin.create_topics([new])[topic].result(60)


def remove_topics(bootstrap: str, *topics: str) -> None:
    """Delete topics and wait until their names are free. A missing topic is no error."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_topics(list(topics)).values():
        with contextlib.suppress(KafkaException):
            done.result(60)
    deadline = time.monotonic() + 60
    while set(topics) & admin.list_topics(timeout=10).topics.keys():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{', '.join(topics)} cannot be deleted")
        time.sleep(0.2)
    time.sleep(2)  # and their files


def load(bootstrap: str, topic: str, partitions: int, case: Case, *, records: int | None = None) -> None:
    """Write the case's records to the partitions in turn. Raise an error if a record is not stored."""
    words = random.Random(7)
    half = case.record_bytes // 2
    # Half noise, half text: such values compress to a half, as business records do.
    values = [words.randbytes(half) + b"account=settled;" * (half // 16 + 1) for _ in range(512)]
    values = [value[: case.record_bytes] for value in values]
    if case.transaction:
        _load_transactions(bootstrap, topic, partitions, case, values)
        return
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "enable.idempotence": True,
            **case.producer,
        }
    )
    total = records or case.records
    for number in range(total):
        while True:
            try:
                producer.produce(topic, values[number % 512], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(300)
    if left:
        raise RuntimeError(f"{left} records were not stored")


def _load_transactions(bootstrap: str, topic: str, partitions: int, case: Case, values: Sequence[bytes]) -> None:
    """Write the case's records in transactions, by producers that all commit at the same time."""
    producers = partitions * _EACH

    def write(number: int) -> None:
        config = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}", "log_level": 0}
        producer = Producer({**config, **case.producer})
        producer.init_transactions(60)
        for _ in range(number, case.records // case.transaction, producers):
            producer.begin_transaction()
            for index in range(case.transaction):
                producer.produce(topic, values[index], partition=number % partitions)
            producer.commit_transaction(60)

    with ThreadPoolExecutor(producers) as threads:
        list(threads.map(write, range(producers)))
