"""Live clients on aiokafka, a second implementation that shares no line with librdkafka."""

from __future__ import annotations

import asyncio
from functools import partial
from threading import Event
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import ClientSpec, ConsumerSpec, Launch, ProducerSpec
from kmigrate.sandbox.history import HistoryWriter, Position
from kmigrate.sandbox.reading import ReadLog
from kmigrate.sandbox.sending import MOST_WAITING, TICK_SECONDS, Pace, Send, SendLog

__all__ = ["consume", "produce"]


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
        log = SendLog(launch, spec.topic, len(await producer.partitions_for(spec.topic)), history)
        pace = Pace(spec.rate)
        while not stopping.is_set():
            for send in log.invoke(pace.due() if len(waiting) < MOST_WAITING else 0):
                if answer := await _send(spec, producer, log, send):
                    waiting.add(answer)
                    answer.add_done_callback(waiting.discard)
            await asyncio.sleep(TICK_SECONDS)
    finally:
        await producer.stop()  # flushes first
        if waiting:
            await asyncio.wait(waiting, timeout=5)
        await asyncio.sleep(0)


async def _send(spec: ProducerSpec, producer: AIOKafkaProducer, log: SendLog, send: Send) -> asyncio.Future[Any] | None:
    """Hand a record to the library, and return the future of the answer, or None if the library refuses the record."""
    key, value, headers = send.content
    try:
        answer: asyncio.Future[Any] = await producer.send(
            spec.topic,
            value,
            key=key,
            partition=send.partition,
            timestamp_ms=send.timestamp if send.timestamp >= 0 else None,
            headers=list(headers),
        )
    except KafkaError as error:  # never queued
        log.record("fail", send, error=type(error).__name__, detail={"text": str(error)})
        return None
    answer.add_done_callback(partial(_answered, spec, log, send))
    return answer


def _answered(spec: ProducerSpec, log: SendLog, send: Send, answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        log.record("info", send, error="cancelled")
    elif (error := answer.exception()) is not None:
        log.record("info", send, error=type(error).__name__, detail={"text": str(error)})
    elif spec.acks == "0":
        log.record("info", send)
    else:
        log.record("ok", send, offset=answer.result().offset)


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
    try:
        while not stopping.is_set():
            try:
                fetched = await consumer.getmany(timeout_ms=100, max_records=1000)
            except KafkaError as error:
                history.record("info", "error", error=type(error).__name__, detail={"text": str(error)})
                await asyncio.sleep(0.1)
                continue
            for messages in fetched.values():
                for each in messages:
                    log.read(each.topic, each.partition, each.offset, each.value, each.key, each.headers)
            log.write()
            if log.commit_due():
                await _commit(consumer, log)
        await _commit(consumer, log)
    finally:
        await consumer.stop()
