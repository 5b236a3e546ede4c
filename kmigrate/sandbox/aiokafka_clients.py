"""Live clients on aiokafka, a second implementation that shares no line with librdkafka."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from threading import Event
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, Launch, ProducerSpec
from kmigrate.sandbox.history import HistoryWriter
from kmigrate.sandbox.pacing import TICK_SECONDS, Pace
from kmigrate.sandbox.payload import ValueId, content_of
from kmigrate.sandbox.reading import COMMIT_SECONDS, Position, ReadLog

__all__ = ["consume", "produce"]

_MOST_WAITING = 20_000


async def produce(spec: ClientSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a producer that waits for no single answer. The futures write the answers down as they come."""
    if not isinstance(spec, ProducerSpec):
        raise Failed("traffic-family", f"{spec.name}: aiokafka clients here are producers and consumers")
    producer = AIOKafkaProducer(
        **launch.aiokafka,
        client_id=spec.name,
        acks="all" if spec.acks == "all" else int(spec.acks),
        enable_idempotence=spec.idempotent,
        linger_ms=5,
        **spec.settings,
    )
    await producer.start()
    waiting: set[asyncio.Future[Any]] = set()
    try:
        partitions = len(await producer.partitions_for(spec.topic))
        history.record("ok", "open", topic=spec.topic, detail={"partitions": partitions})
        seq = launch.start_seq
        pace = Pace(spec.rate)
        while not stopping.is_set():
            named = []
            for _ in range(pace.due() if len(waiting) < _MOST_WAITING else 0):
                text = ValueId(spec.name, launch.run, seq).text
                timestamp = time.time_ns() // 1_000_000 if seq % 4 == 0 else None
                extra = {} if timestamp is None else {"ts": timestamp}
                history.record("invoke", "send", topic=spec.topic, partition=seq % partitions, value=text, **extra)
                named.append((text, seq, timestamp))
                seq += 1
            history.flush()  # before the library sees the records (H2)
            for text, number, timestamp in named:
                await _send(spec, producer, history, waiting, text, number, number % partitions, timestamp)
            await asyncio.sleep(TICK_SECONDS)
    finally:
        await producer.stop()  # flushes first
        if waiting:
            await asyncio.wait(waiting, timeout=5)
        await asyncio.sleep(0)


async def _send(
    spec: ProducerSpec,
    producer: AIOKafkaProducer,
    history: HistoryWriter,
    waiting: set[asyncio.Future[Any]],
    text: str,
    seq: int,
    partition: int,
    timestamp: int | None,
) -> None:
    content = content_of(text, seq)
    fields = {"topic": spec.topic, "partition": partition, "value": text}
    try:
        answer = await producer.send(
            spec.topic,
            content.value,
            key=content.key,
            partition=partition,
            timestamp_ms=timestamp,
            headers=list(content.headers),
        )
    except KafkaError as error:  # never queued
        history.record("fail", "send", error=type(error).__name__, detail={"text": str(error)}, **fields)
        return
    waiting.add(answer)
    answer.add_done_callback(partial(_answered, spec, history, waiting, fields))


def _answered(
    spec: ProducerSpec,
    history: HistoryWriter,
    waiting: set[asyncio.Future[Any]],
    fields: dict[str, Any],
    answer: asyncio.Future[Any],
) -> None:
    waiting.discard(answer)
    if answer.cancelled():
        history.record("info", "send", error="cancelled", **fields)
    elif (error := answer.exception()) is not None:
        history.record("info", "send", error=type(error).__name__, detail={"text": str(error)}, **fields)
    elif spec.acks == "0":
        history.record("info", "send", **fields)
    else:
        history.record("ok", "send", offset=answer.result().offset, **fields)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """A listener that commits before partitions are revoked, and writes the moves down."""

    def __init__(self, consumer: AIOKafkaConsumer, log: ReadLog) -> None:
        self._consumer = consumer
        self._log = log

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            await _commit(self._consumer, self._log)
            self._log.revoked([(p.topic, p.partition, -1) for p in sorted(revoked)])

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._log.assigned([(p.topic, p.partition, -1) for p in sorted(assigned)])


async def _commit(consumer: AIOKafkaConsumer, log: ReadLog) -> None:
    positions: list[Position] = log.uncommitted()
    if not positions:
        return
    try:
        await consumer.commit({TopicPartition(topic, number): after for topic, number, after in positions})
    except KafkaError as error:
        log.committed(positions, type(error).__name__)
    else:
        log.committed(positions, "")


async def consume(spec: ConsumerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a group member that commits its reads every half second, on revoke and at the end."""
    log = ReadLog(spec.group, history)
    settings: dict[str, Any] = {
        **launch.aiokafka,
        "client_id": spec.name,
        "group_id": spec.group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "partition_assignment_strategy": (RangePartitionAssignor,),
        "session_timeout_ms": 10_000,
        "heartbeat_interval_ms": 1_000,
        "fetch_min_bytes": 16_384,
        "fetch_max_wait_ms": 50,
        **spec.settings,
    }
    consumer = AIOKafkaConsumer(**settings)
    await consumer.start()
    history.record("ok", "open")
    history.flush()
    consumer.subscribe(list(spec.topics), listener=_Listener(consumer, log))  # may be held, unlike the start
    commit_at = time.monotonic() + COMMIT_SECONDS
    try:
        while not stopping.is_set():
            try:
                fetched = await consumer.getmany(timeout_ms=100, max_records=1000)
            except KafkaError as error:
                history.record("info", "error", error=type(error).__name__, detail={"text": str(error)})
                await asyncio.sleep(0.1)
                continue
            for messages in fetched.values():
                for message in messages:
                    log.read(
                        message.topic,
                        message.partition,
                        message.offset,
                        message.value,
                        message.key,
                        message.headers,
                    )
            log.write()
            if time.monotonic() >= commit_at:
                await _commit(consumer, log)
                commit_at = time.monotonic() + COMMIT_SECONDS
        await _commit(consumer, log)
    finally:
        await consumer.stop()
