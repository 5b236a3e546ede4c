"""Live clients on librdkafka, as in applications: callbacks run in the thread of `poll`, so histories need no lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from kmigrate.errors import Failed
from kmigrate.sandbox.client_specs import ConsumerSpec, Launch, ProducerSpec, TransactionalSpec
from kmigrate.sandbox.final_read import position_of
from kmigrate.sandbox.history import ABORTED, HistoryWriter, Position
from kmigrate.sandbox.reading import ReadLog
from kmigrate.sandbox.sending import TICK_SECONDS, Send, SendLog, run_producer, run_transactions

__all__ = ["consume", "produce", "transact"]

_FLUSH_SECONDS = 30.0
_MOST_READ_AT_ONCE = 1000

# Errors that librdkafka reports and then heals by itself. They deserve a line, but are no errors of the client.
_NOTICES = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._TIMED_OUT})
_CLASSIC = {
    "partition.assignment.strategy": "range",
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1_000,
}
"""Settings for members of the classic protocol. In the new protocol the coordinator decides these settings."""
_NEVER_SENT = frozenset({KafkaError._PURGE_QUEUE})


def _error_callback(history: HistoryWriter) -> Callable[[KafkaError], None]:
    def on_error(error: KafkaError) -> None:
        f = "notice" if error.code() in _NOTICES and not error.fatal() else "error"
        history.record("info", f, error=error.name(), detail={"text": error.str(), "fatal": error.fatal()})

    return on_error


class _Writer:
    """A producer that writes down the outcome of each send."""

    def __init__(
        self, spec: ProducerSpec | TransactionalSpec, launch: Launch, history: HistoryWriter, **settings: Any
    ) -> None:
        reported = {"client.id": spec.name, "error_cb": _error_callback(history)}
        self._producer = Producer({**launch.librdkafka, **reported, **settings, **spec.settings})
        self._answered_by_broker = settings.get("acks") != "0"
        """False for acks=0: "delivered" then only means handed to the socket."""
        if isinstance(spec, TransactionalSpec):
            self._producer.init_transactions(_FLUSH_SECONDS)
        self._topic = spec.topic
        self.log = SendLog(launch, spec.topic, _partitions_of(self._producer, spec.topic), history)

    @property
    def waiting(self) -> int:
        return len(self._producer)

    def poll(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._producer.poll(left)

    def send(self, sends: Sequence[Send]) -> None:
        for send in sends:
            key, value, headers = send.content
            stamp = max(send.timestamp, 0)  # 0: the library's own
            answered = partial(self._answered, send)
            while True:
                try:
                    self._producer.produce(
                        self._topic, value, key, send.partition, answered, timestamp=stamp, headers=list(headers)
                    )
                except BufferError:
                    self._producer.poll(TICK_SECONDS)
                else:
                    break

    def _answered(self, send: Send, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            # Only a record that never left the queue is surely not in the log. Any other record may be in the log.
            self.log.record("fail" if error.code() in _NEVER_SENT else "info", send, error=error.name())
        elif self._answered_by_broker:
            offset = message.offset()  # the answer to a duplicate may have none
            self.log.record("ok", send, offset=-1 if offset is None else offset)
        else:
            self.log.record("info", send)

    def flush(self) -> int:
        """Wait for the answers, and return the number of records that still have none."""
        return self._producer.flush(_FLUSH_SECONDS)


class _TransactionalWriter(_Writer):
    """A producer whose records get their outcome from the end of the transaction."""

    def __init__(self, spec: TransactionalSpec, launch: Launch, history: HistoryWriter) -> None:
        self.offsets: dict[str, int] = {}
        super().__init__(spec, launch, history, **{"transactional.id": spec.name})

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, sends: Sequence[Send]) -> None:
        super().send(sends)
        self.flush()

    def _answered(self, send: Send, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.offsets[send.value] = message.offset() or 0

    def end(self, *, abort: bool) -> tuple[str, str]:
        while True:
            try:
                if abort:
                    self._producer.abort_transaction(_FLUSH_SECONDS)
                    return "fail", ABORTED
                self._producer.commit_transaction(_FLUSH_SECONDS)
                return "ok", ""
            except KafkaException as raised:
                error: KafkaError = raised.args[0]
                if error.retriable():
                    continue
                if error.txn_requires_abort() and not abort:
                    with contextlib.suppress(KafkaException):
                        self._producer.abort_transaction(_FLUSH_SECONDS)
                        return "fail", error.name()
                return "info", error.name()


def _partitions_of(producer: Producer, topic: str, patience_s: float = 10.0) -> int:
    """Return the number of partitions of a topic; ask again while a broker does not know a new topic."""
    deadline = time.monotonic() + patience_s
    while True:
        described = producer.list_topics(topic, timeout=30).topics[topic]
        if described.error is None and described.partitions:
            return len(described.partitions)
        if time.monotonic() > deadline:
            raise Failed("traffic-topic", f"topic {topic} cannot be written: {described.error}")
        time.sleep(TICK_SECONDS)


def produce(spec: ProducerSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a producer with default settings except acks and idempotence."""
    writer = _Writer(spec, launch, history, **{"acks": spec.acks, "enable.idempotence": spec.idempotent})
    run_producer(spec.rate, writer.log, writer, stopping)
    if left_over := writer.flush():
        history.record("info", "error", error="flush-timed-out", detail={"text": f"{left_over} records unanswered"})


def transact(spec: TransactionalSpec, launch: Launch, history: HistoryWriter, stopping: Event) -> None:
    """Run a transactional writer."""
    writer = _TransactionalWriter(spec, launch, history)
    run_transactions(spec, writer.log, writer, stopping)


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
        while not stopping.is_set():
            message = self._consumer.poll(0.1)
            while message is not None:
                self._note(message)
                message = self._consumer.poll(0) if self._log.waiting < _MOST_READ_AT_ONCE else None
            self._log.write()
            if self._log.commit_due() and (positions := self._log.uncommitted()):
                self._consumer.commit(offsets=_partitions(positions), asynchronous=True)
        self._commit_now()
        self._consumer.close()

    def _note(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            f = "notice" if error.code() in _NOTICES else "error"
            self._history.record("info", f, error=error.name(), detail={"text": error.str()})
            return
        self._log.read(*position_of(message), message.value(), message.key(), message.headers())

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
        named = [(each.error.name() if each.error else whole, each) for each in partitions]
        for name in sorted({name for name, _ in named}):
            self._log.committed(_positions([each for of, each in named if of == name]), name)

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
