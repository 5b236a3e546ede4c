"""Live producers of a soak: librdkafka in its usual forms, each with a ledger of the source's promises.

A record names its writer (key) and its number within writer and partition (value). So a reader can tell loss, doubling
and disorder from the records alone. Idempotent writers never double. The other writers never retry a record that may be
stored. But a leader that steps down may answer NOT_LEADER_OR_FOLLOWER for a record that the leader did store. Then the
source itself holds the record twice, and so must the target. The order of these writers' records, too, is the source's.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer

__all__ = ["KINDS", "Kind", "Ledger", "Pace", "Writer"]

_PATIENT: Mapping[str, object] = {
    "acks": "all",
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 2_000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,  # brokers that go away are what the soak is about
}


Told = Callable[[KafkaError | None, Message], None]


@dataclass(frozen=True)
class Kind:
    """A way of producing, and its share of a topic's records."""

    name: str
    share: float
    config: Mapping[str, object]
    value_bytes: int = 40
    transactional: bool = False


KINDS = (
    Kind("small", 0.3, {"enable.idempotence": True, "batch.num.messages": 5, "linger.ms": 0}),
    Kind("large", 0.4, {"enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4"}, 200),
    Kind("bare", 0.25, {"message.send.max.retries": 0, "batch.num.messages": 20, "linger.ms": 2}),
    Kind("transactions", 0.05, {"linger.ms": 0, "transaction.timeout.ms": 20_000}, transactional=True),
)


@dataclass
class Ledger:
    """The source's answers on the records of a writer."""

    acked: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """The offset of each number that was stored (and committed), by partition; negative where a retry got no offset."""
    aborted: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    in_doubt: list[list[tuple[int, int]]] = field(default_factory=list)
    """Partitions and numbers of each transaction of unknown outcome: all are stored, or none."""
    count: int = 0
    unknown: int = 0
    """Records without an answer of the source, or with a refusal: they may be there or not."""


@dataclass
class Pace:
    """How far the writers are to be by now: `part` of each writer's share of `records`."""

    records: int
    part: float = 0.0

    def goal(self, kind: Kind) -> int:
        return math.ceil(self.records * kind.share)

    def allowed(self, kind: Kind) -> int:
        return math.ceil(self.records * kind.share * self.part)


class Writer(threading.Thread):
    """A producer that writes its share to every partition in turn, in bursts, as the pace allows."""

    def __init__(self, kind: Kind, bootstrap: str, topic: str, partitions: Sequence[int], pace: Pace) -> None:
        super().__init__(name=f"writer-{topic}-{kind.name}", daemon=True)
        self.kind = kind
        self.writes_as = f"{topic}/{kind.name}"
        self.ledger = Ledger()
        self.failure: BaseException | None = None
        self._config = {"bootstrap.servers": bootstrap, **_PATIENT, **kind.config}
        if kind.transactional:
            self._config["transactional.id"] = self.writes_as
        self._topic = topic
        self._partitions = partitions
        self._pace = pace
        self._numbers = dict.fromkeys(partitions, 0)
        self._turn = 0
        self._sent = 0
        self._gone = 0

    def run(self) -> None:
        try:
            write = self._transactions if self.kind.transactional else self._stream
            write()
        except BaseException as error:
            self.failure = error

    def _due(self, burst: int) -> int:
        """Return how many records to write now."""
        return min(burst, self._pace.allowed(self.kind) - (self._sent - self._gone))

    def _next(self) -> tuple[int, int]:
        partition = self._partitions[self._turn % len(self._partitions)]
        self._turn += 1
        number = self._numbers[partition]
        self._numbers[partition] = number + 1
        self._sent += 1
        return partition, number

    def _produce(self, producer: Producer, partition: int, number: int, told: Told) -> None:
        value = str(number).encode().ljust(self.kind.value_bytes, b".")
        while True:
            try:
                producer.produce(
                    self._topic,
                    value,
                    self.writes_as.encode(),
                    partition,
                    on_delivery=told,
                    headers={"number": str(number)},
                )
                return
            except BufferError:
                producer.poll(0.05)

    # one record after the other

    def _stream(self) -> None:
        goal = self._pace.goal(self.kind)
        producer = Producer(self._config)
        while self.ledger.count < goal:
            for _ in range(self._due(500)):
                partition, number = self._next()
                self._produce(producer, partition, number, self._told)
            producer.poll(0.01)
        producer.flush(60)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._gone += 1
            self.ledger.unknown += 1
            return
        self._note(message)

    def _note(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        self.ledger.acked[partition][_number(message)] = -1 if offset is None else offset
        self.ledger.count += 1

    # transactions

    def _transactions(self) -> None:
        goal = self._pace.goal(self.kind)
        producer: Producer | None = None
        turn = 0
        while self.ledger.count < goal:
            if producer is None:
                producer = Producer(self._config)
                _persist(producer.init_transactions)
            due = self._due(1 + turn % 9)
            if due <= 0:
                time.sleep(0.01)
                continue
            turn += 1
            if not self._transaction(producer, due, abort=turn % 4 == 0):
                producer = None  # the next init_transactions ends what is open

    def _transaction(self, producer: Producer, count: int, *, abort: bool) -> bool:
        """Write a transaction. Return False if nobody knows how the transaction ended."""
        stored: list[Message] = []
        written: list[tuple[int, int]] = []

        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                stored.append(message)

        try:
            producer.begin_transaction()
            for _ in range(count):
                partition, number = self._next()
                written.append((partition, number))
                self._produce(producer, partition, number, told)
            producer.flush(60)
            if not abort:
                _persist(producer.commit_transaction)
                for message in stored:
                    self._note(message)
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                self._in_doubt(written)
                self._gone += len(written)
                return False
        self._gone += len(written)
        with contextlib.suppress(KafkaException):
            _persist(producer.abort_transaction)
            for partition, number in written:
                self.ledger.aborted[partition].add(number)
            return True
        self._in_doubt(written)
        return False

    def _in_doubt(self, written: list[tuple[int, int]]) -> None:
        self.ledger.unknown += len(written)
        self.ledger.in_doubt.append(written)


def _number(message: Message) -> int:
    return int((message.value() or b"").rstrip(b"."))


def _persist(step: Callable[[float], object]) -> None:
    """Repeat a step of a transaction until it is taken. librdkafka says after which errors a repeat is allowed."""
    while True:
        try:
            step(30)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
