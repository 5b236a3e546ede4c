"""The last word of a run: what a cluster really holds, read once more by an independent client.

librdkafka reads it with `read_committed`, never kmigrate's own wire code. The end of a partition is
taken from the client's end-of-partition event, for control markers and aborted batches leave
offsets at the tail that no consumer is ever handed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from kmigrate.errors import Failed
from kmigrate.sandbox.payload import Headers, plain_headers

__all__ = ["FinalRecord", "read_topic"]

_BATCH = 10_000


class FinalRecord(NamedTuple):
    """One visible record as it stands in the log."""

    topic: str
    partition: int
    offset: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int


def read_topic(
    bootstrap: str, topic: str, *, settings: Mapping[str, str] | None = None, timeout: float = 120.0
) -> Iterator[FinalRecord]:
    """Every record of a topic that read_committed shows, each partition in the order of its offsets."""
    client = {"bootstrap.servers": bootstrap, **(settings or {})}
    ends = _ends(client, topic)
    consumer = Consumer(
        {
            "group.id": "kmigrate-final-read",  # never joined and never committed to
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            **client,
        }
    )
    try:
        yield from _read(consumer, topic, ends, time.monotonic() + timeout)
    finally:
        consumer.close()


def _ends(client: Mapping[str, Any], topic: str) -> dict[int, int]:
    """The end of each partition's log as of now; read_committed alone would end at an open transaction."""
    admin = AdminClient(dict(client))
    described = admin.list_topics(topic, timeout=15).topics[topic]
    if described.error is not None:
        raise Failed("final-read-topic", f"topic {topic} cannot be read: {described.error.str()}")
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in described.partitions}  # type: ignore[no-untyped-call]
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=15)
    return {asked_for.partition: answer.result(20).offset for asked_for, answer in answers.items()}


def _read(consumer: Consumer, topic: str, ends: dict[int, int], deadline: float) -> Iterator[FinalRecord]:
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
    while ends:
        if time.monotonic() > deadline:
            raise Failed(
                "final-read-stuck",
                f"the end of {topic} was not reached in partitions {sorted(ends)}",
                next_step="look for an open transaction that holds the last stable offset back",
            )
        for message in consumer.consume(_BATCH, timeout=0.1):
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            error = message.error()
            if error is None:
                yield _record(message, topic, partition, offset)
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition in ends and offset >= ends[partition]:
                del ends[partition]


def _record(message: Message, topic: str, partition: int, offset: int) -> FinalRecord:
    return FinalRecord(
        topic,
        partition,
        offset,
        message.value(),
        message.key(),
        plain_headers(message.headers()),
        message.timestamp()[1],
    )
