"""Live clients on librdkafka, as an application would write them.

Everything happens in a single thread: librdkafka's callbacks run inside `poll`, so the history needs no lock.
"""

from __future__ import annotations

import contextlib
import time
from threading import Event
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import ConsumerSpec, Launch, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.history import ABORTED, HistoryWriter
from kmigrate.sandbox.pacing import TICK_SECONDS, Pace
from kmigrate.sandbox.payload import ValueId, content_of, id_in
from kmigrate.sandbox.reading import COMMIT_SECONDS, Position, ReadLog

__all__ = ["consume", "produce", "transact"]

_FLUSH_SECONDS = 30.0
_MOST_READ_AT_ONCE = 1000
_MOST_WAITING = 20_000  # records without an answer; then the client waits and does not fill the library's queue

# Errors that librdkafka reports and then heals by itself. They deserve a line, but are no errors of the client.
_NOTICES = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT})
_CLASSIC = {
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
}
"""Settings for members of the classic protocol. In the new protocol the coordinator decides these settings."""
_NEVER_SENT = frozenset({KafkaError._PURGE_QUEUE})


def _error_callback(history: HistoryWriter) -> Any:
    def told(error: KafkaError) -> None:
        f = "notice" if error.code() in _NOTICES and not error.fatal() else "error"
        history.record("info", f, error=error.name(), detail={"text": error.str(), "fatal": error.fatal()})

    return told


class _Sender:
    """A sender of numbered values that writes down the outcome of each value."""

    def __init__(self, producer: Producer, launch: Launch, topic: str, history: HistoryWriter) -> None:
        self.producer = producer
        self._run = launch.run
        self._name = launch.spec.name
        self._seq = launch.start_seq
        self._topic = topic
        self._history = history
        self._partitions = _partitions_of(producer, topic)
        history.record("ok", "open", topic=topic, detail={"partitions": self._partitions})

    def invoke(self, count: int, *, txn: int = -1) -> list[tuple[str, int, int, int]]:
        """Name the next records and write them down before the library sees any of them (H2)."""
        named = []
        for _ in range(count):
            seq, self._seq = self._seq, self._seq + 1
            text = ValueId(self._name, self._run, seq).text
            partition = seq % self._partitions
            timestamp = time.time_ns() // 1_000_000 if seq % 4 == 0 else -1
            extra: dict[str, int] = {"txn": txn} if txn >= 0 else {}
            if timestamp >= 0:
                extra["ts"] = timestamp
            self._history.record("invoke", "send", topic=self._topic, partition=partition, value=text, **extra)
            named.append((text, seq, partition, timestamp))
        self._history.flush()
        return named

    def send(self, text: str, seq: int, partition: int, timestamp: int, on_delivery: Any) -> None:
        content = content_of(text, seq)
        extra: dict[str, Any] = {"timestamp": timestamp} if timestamp >= 0 else {}
        while True:
            try:
                self.producer.produce(
                    self._topic,
                    content.value,
                    content.key,
                    partition,
                    on_delivery=on_delivery,
                    headers=list(content.headers),
                    **extra,
                )
            except BufferError:
                self.producer.poll(TICK_SECONDS)
            else:
                return

    def failed(self, text: str, partition: int, error: KafkaError) -> None:
        # Only a record that never left the queue is surely not in the log. Any other record may be in the log.
        kind = "fail" if error.code() in _NEVER_SENT else "info"
        self._history.record(kind, "send", topic=self._topic, partition=partition, value=text, error=error.name())


def _partitions_of(producer: Producer, topic: str, patience_s: float = 10.0) -> int:
    """Return the number of partitions of a topic.

    A broker that has not yet heard of a new topic is asked again.
    """
    deadline = time.monotonic() + patience_s
    while True:
        described = producer.list_topics(topic, timeout=30).topics[topic]
        if described.error is None and described.partitions:
            return len(described.partitions)
        if time.monotonic() > deadline:
            raise Failed("traffic-topic", f"topic {topic} cannot be written: {described.error}")
        time.sleep(TICK_SECONDS)


def _text_of(message: Message) -> str:
    return id_in(message.value()) or ""


def produce(spec: ProducerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a producer with default settings except acks and idempotence."""
    settings: dict[str, Any] = {
        **launch.librdkafka,
        "client.id": spec.name,
        "acks": spec.acks,
        "enable.idempotence": spec.idempotent,
        "error_cb": _error_callback(history),
        **spec.settings,
    }
    sender = _Sender(producer := Producer(settings), launch, spec.topic, history)

    def answered(error: KafkaError | None, message: Message) -> None:
        text, partition = _text_of(message), message.partition() or 0
        if error is not None:
            sender.failed(text, partition, error)
        elif spec.acks == "0":  # "delivered" only means handed to the socket
            history.record("info", "send", topic=spec.topic, partition=partition, value=text)
        else:
            offset = -1 if message.offset() is None else message.offset()  # the answer to a duplicate may have none
            history.record("ok", "send", topic=spec.topic, partition=partition, offset=offset, value=text)

    _send_on_schedule(spec, sender, answered, stopping)
    if left_over := producer.flush(_FLUSH_SECONDS):
        history.record("info", "error", error="flush-timed-out", detail={"text": f"{left_over} records unanswered"})


def _send_on_schedule(spec: ProducerSpec, sender: _Sender, answered: Any, stopping: Event) -> None:
    def send(count: int) -> None:
        for text, seq, partition, timestamp in sender.invoke(count):
            sender.send(text, seq, partition, timestamp, answered)

    # The first record fetches the producer id and opens connections. The schedule starts after that record, or every
    # later record would share the record's wait.
    producer = sender.producer
    send(1)
    while len(producer) and not stopping.is_set():
        producer.poll(TICK_SECONDS)
    pace = Pace(spec.rate)
    while not stopping.is_set():
        if len(producer) < _MOST_WAITING and (due := pace.due()):
            send(due)
        deadline = time.monotonic() + TICK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            producer.poll(left)


def transact(spec: TransactionalSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a transactional writer. A record counts as acknowledged once its transaction is committed."""
    settings: dict[str, Any] = {
        **launch.librdkafka,
        "client.id": spec.name,
        "transactional.id": spec.name,
        "error_cb": _error_callback(history),
        **spec.settings,
    }
    producer = Producer(settings)
    producer.init_transactions(_FLUSH_SECONDS)
    sender = _Sender(producer, launch, spec.topic, history)
    pace = Pace(spec.rate / spec.records)
    number = launch.start_seq // spec.records
    while not stopping.is_set():
        for _ in range(pace.due()):
            if not stopping.is_set():
                _transaction(spec, sender, history, number)
                number += 1
        producer.poll(TICK_SECONDS)
        history.flush()


def _transaction(spec: TransactionalSpec, sender: _Sender, history: HistoryWriter, number: int) -> None:
    producer = sender.producer
    delivered: dict[str, tuple[int, int]] = {}

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            delivered[_text_of(message)] = (message.partition() or 0, message.offset() or 0)

    where = {"topic": spec.topic, "txn": number}
    history.record("ok", "begin", **where)
    producer.begin_transaction()
    named = sender.invoke(spec.records, txn=number)
    for text, seq, partition, timestamp in named:
        sender.send(text, seq, partition, timestamp, answered)
    producer.flush(_FLUSH_SECONDS)
    abort = number % spec.abort_every == spec.abort_every - 1
    history.record("invoke", "txn", **where, detail={"ask": "abort" if abort else "commit"})
    history.flush()  # before the library is asked (H2)
    outcome, error = _end(producer, abort=abort)
    for text, _, partition, _ in named:
        offset = delivered.get(text, (partition, -1))[1]
        fields: dict[str, Any] = {**where, "partition": partition, "value": text}
        if outcome == "ok":
            history.record("ok", "send", offset=offset, **fields)
        else:
            history.record(outcome, "send", error=error, **fields)
    history.record(outcome, "txn", **where, error=error)


def _end(producer: Producer, *, abort: bool) -> tuple[str, str]:
    """Commit or abort, and return the outcome and the error.

    The outcome is `ok`, `fail` (aborted), or `info` if nobody can say.
    """
    while True:
        try:
            if abort:
                producer.abort_transaction(_FLUSH_SECONDS)
                return "fail", ABORTED
            producer.commit_transaction(_FLUSH_SECONDS)
            return "ok", ""
        except KafkaException as raised:
            error: KafkaError = raised.args[0]
            if error.retriable():
                continue
            if error.txn_requires_abort() and not abort:
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_FLUSH_SECONDS)
                    return "fail", error.name()
            return "info", error.name()


class _Member:
    """A group member that commits its reads every half second, on revoke and at the end."""

    def __init__(self, spec: ConsumerSpec, launch: Launch, history: HistoryWriter) -> None:
        self._history = history
        self._log = ReadLog(spec.group, history)
        settings: dict[str, Any] = {
            **launch.librdkafka,
            "client.id": spec.name,
            "group.id": spec.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **({} if spec.settings.get("group.protocol") == "consumer" else _CLASSIC),
            "fetch.min.bytes": 16_384,
            "fetch.wait.max.ms": 50,
            "error_cb": _error_callback(history),
            "on_commit": self._committed,
            **spec.settings,
        }
        self._consumer = Consumer(settings)
        self._consumer.list_topics(timeout=30)
        history.record("ok", "open")
        history.flush()
        self._consumer.subscribe(
            list(spec.topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def run(self, stopping: Event) -> None:
        commit_at = time.monotonic() + COMMIT_SECONDS
        while not stopping.is_set():
            message = self._consumer.poll(0.1)
            while message is not None:
                self._note(message)
                message = self._consumer.poll(0) if self._log.waiting < _MOST_READ_AT_ONCE else None
            self._log.write()
            if time.monotonic() >= commit_at:
                if positions := self._log.uncommitted():
                    self._consumer.commit(offsets=_partitions(positions), asynchronous=True)
                commit_at = time.monotonic() + COMMIT_SECONDS
        self._commit_now()
        self._consumer.close()

    def _note(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            f = "notice" if error.code() in _NOTICES else "error"
            self._history.record("info", f, error=error.name(), detail={"text": error.str()})
            return
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        self._log.read(topic, partition, offset, message.value(), message.key(), message.headers())

    def _commit_now(self) -> None:
        positions = self._log.uncommitted()
        if not positions:
            return
        try:
            self._consumer.commit(offsets=_partitions(positions), asynchronous=False)
            self._log.committed(positions, "")
        except KafkaException as raised:
            self._log.committed(positions, raised.args[0].name())

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        whole = error.name() if error else ""
        told = [(partition.error.name() if partition.error else whole, partition) for partition in partitions]
        for name in sorted({name for name, _ in told}):
            self._log.committed(_positions([partition for of, partition in told if of == name]), name)

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._log.assigned(_positions(partitions))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit_now()
        self._log.revoked(_positions(partitions))

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._log.revoked(_positions(partitions), lost=True)


def _partitions(positions: list[Position]) -> list[TopicPartition]:
    return [TopicPartition(*position) for position in positions]


def _positions(partitions: list[TopicPartition]) -> list[Position]:
    return [(partition.topic, partition.partition, partition.offset) for partition in partitions]


def consume(spec: ConsumerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a group member from metadata to a clean leave."""
    _Member(spec, launch, history).run(stopping)
