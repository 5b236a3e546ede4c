"""The last read of a run: the records that a cluster really holds, read once more by an independent client.

The client is librdkafka with `read_committed`, never kmigrate's own wire code. The client's end-of-partition event is
the end: control markers and aborted batches leave offsets at the tail that no consumer is ever handed.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
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

__all__ = ["FinalRecord", "position_of", "read_saved", "read_topic", "saving"]

_BATCH = 10_000


class FinalRecord(NamedTuple):
    """A visible record as it stands in the log."""

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
    """Yield every record of a topic that read_committed shows, each partition in the order of its offsets."""
    client = {"bootstrap.servers": bootstrap, **(settings or {})}
    ends = _ends(client, topic)
    consumer = Consumer(
        {
            "group.id": "kmigrate-final-read",  # the group is never joined, and nothing is committed
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
    """Return the current end of each partition's log. With read_committed the end would be at an open transaction."""
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
            (_, partition, offset), error = position_of(message), message.error()
            if error is None:
                headers, (_, timestamp) = plain_headers(message.headers()), message.timestamp()
                yield FinalRecord(topic, partition, offset, message.value(), message.key(), headers, timestamp)
                offset += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if partition in ends and offset >= ends[partition]:
                del ends[partition]


def position_of(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a message that a consumer was given."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise Failed("message-without-offset", f"librdkafka gave a message of {topic}-{partition} at offset {offset}")
    return topic, partition, offset


# the file beside a history (docs/history.md, "The last read")


def saving(records: Iterable[FinalRecord], path: Path) -> Iterator[FinalRecord]:
    """Yield the records again and save each of them. The file appears after the last record."""
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wt", compresslevel=1, encoding="utf-8") as file:
        for record in records:
            file.write(_line(record))
            yield record
    partial.replace(path)


def read_saved(path: Path) -> Iterator[FinalRecord]:
    """Yield the records of a file that `saving` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            fields = json.loads(line)
            value, key = _bytes(fields["value"]), _bytes(fields["key"])
            headers = tuple((name, _bytes(value)) for name, value in fields["headers"])
            yield FinalRecord(**{**fields, "value": value, "key": key, "headers": headers})


def _line(record: FinalRecord) -> str:
    fields = {
        **record._asdict(),
        "value": _text(record.value),
        "key": _text(record.key),
        "headers": [(name, _text(value)) for name, value in record.headers],
    }
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")
