"""The sends of a live client: their open-loop schedule, their numbers and their lines in the client's history.

A client that waits for each answer sends nothing that could wait, and hides a pause. So the schedule does not slow down
with the answers. After a stall (a held response, a paused process) the schedule starts anew and sends no flood.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import NamedTuple, Protocol

from kmigrate.sandbox.client_specs import Launch, TransactionalSpec
from kmigrate.sandbox.history import HistoryWriter
from kmigrate.sandbox.payload import Content, ValueId, content_of

__all__ = [
    "MOST_WAITING",
    "TICK_SECONDS",
    "Pace",
    "Send",
    "SendLog",
    "TransactionalWriter",
    "Writer",
    "run_producer",
    "run_transactions",
]

TICK_SECONDS = 0.02
"""The length of a tick; due records go out together, because each send wakes client, broker, mirror and readers."""
MOST_WAITING = 20_000
"""Records without an answer. Beyond this number the client waits and does not fill the library's queue."""
_MOST_AT_ONCE = 200


class Pace:
    """The schedule of a producer."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._restart()

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._given = 0

    def due(self) -> int:
        """Return the number of records to send now, at most `_MOST_AT_ONCE`. After a stall start the schedule anew."""
        due = int((time.monotonic() - self._since) * self._rate) - self._given
        if due > _MOST_AT_ONCE:
            self._restart()
            return _MOST_AT_ONCE
        self._given += due
        return due


class Send(NamedTuple):
    """A record that a client hands to its library."""

    value: str
    seq: int
    partition: int
    timestamp: int
    """The record's own timestamp, ms; -1: the library chooses."""

    @property
    def content(self) -> Content:
        return content_of(self.value, self.seq)


class SendLog:
    """The numbered records of a client's run to a topic, on their way to the client's history."""

    def __init__(self, launch: Launch, topic: str, partitions: int, history: HistoryWriter) -> None:
        self.launch = launch
        self.history = history
        self._topic = topic
        self._partitions = partitions
        self._in_a_row = launch.spec.in_a_row if launch.spec.role != "consumer" else 1
        self._seq = launch.start_seq
        history.record("ok", "open", topic=topic, detail={"partitions": partitions})

    def invoke(self, count: int, **fields: int) -> list[Send]:
        """Name the next records and write them down before the library sees any of them (H2)."""
        sends = [self._next() for _ in range(count)]
        for send in sends:
            stamp = {"ts": send.timestamp} if send.timestamp >= 0 else {}
            self.record("invoke", send, **fields, **stamp)
        self.history.flush()
        return sends

    def _next(self) -> Send:
        """Return the next record; for kafka-python skip numbers with a null header, which the library cannot send."""
        spec = self.launch.spec
        while True:
            seq, self._seq = self._seq, self._seq + 1
            timestamp = time.time_ns() // 1_000_000 if seq % 4 == 0 else -1
            partition = seq // self._in_a_row % self._partitions
            send = Send(ValueId(spec.name, self.launch.run, seq).text, seq, partition, timestamp)
            if not spec.family.startswith("kafka-python") or all(
                value is not None for _, value in send.content.headers
            ):
                return send

    def record(self, kind: str, send: Send, **fields: object) -> None:
        self.history.record(kind, "send", topic=self._topic, partition=send.partition, value=send.value, **fields)


class Writer(Protocol):
    """A producer of any family."""

    @property
    def waiting(self) -> int:
        """The number of records without an answer."""
        ...

    def send(self, sends: Sequence[Send]) -> None: ...

    def poll(self, seconds: float) -> None:
        """Take in answers for this time."""
        ...


class TransactionalWriter(Writer, Protocol):
    """A transactional producer of any family. `send` waits for the answers if the library wants this before the end."""

    offsets: dict[str, int]
    """The offset of each value that was acknowledged within the transaction."""

    def begin(self) -> None: ...

    def end(self, *, abort: bool) -> tuple[str, str]:
        """End the transaction; return the outcome (`ok`, `fail`: aborted, `info`: nobody can say) and the error."""
        ...


def run_producer(rate: float, log: SendLog, writer: Writer, stopping: Event) -> None:
    """Send records at a rate until the client is to stop."""
    # The first record fetches the producer id and opens connections. The schedule starts after that record, or every
    # later record would share the record's wait.
    writer.send(log.invoke(1))
    while writer.waiting and not stopping.is_set():
        writer.poll(TICK_SECONDS)
    pace = Pace(rate)
    while not stopping.is_set():
        if writer.waiting < MOST_WAITING and (due := pace.due()):
            writer.send(log.invoke(due))
        writer.poll(TICK_SECONDS)


def run_transactions(spec: TransactionalSpec, log: SendLog, writer: TransactionalWriter, stopping: Event) -> None:
    """Write transactions at the spec's rate. A record counts as acknowledged once its transaction is committed."""
    pace = Pace(spec.rate / spec.records)
    number = log.launch.start_seq // spec.records
    while not stopping.is_set():
        for _ in range(pace.due()):
            if not stopping.is_set():
                _transaction(spec, log, writer, number)
                number += 1
        writer.poll(TICK_SECONDS)
        log.history.flush()


def _transaction(spec: TransactionalSpec, log: SendLog, writer: TransactionalWriter, number: int) -> None:
    history = log.history
    where = {"topic": spec.topic, "txn": number}
    history.record("ok", "begin", **where)
    writer.begin()
    sends = log.invoke(spec.records, txn=number)
    writer.send(sends)
    abort = number % spec.abort_every == spec.abort_every - 1
    history.record("invoke", "txn", **where, detail={"ask": "abort" if abort else "commit"})
    history.flush()  # before the library is asked (H2)
    outcome, error = writer.end(abort=abort)
    for send in sends:
        offset = writer.offsets.pop(send.value, -1)
        if outcome == "ok":
            log.record("ok", send, txn=number, offset=offset)
        else:
            log.record(outcome, send, txn=number, error=error)
    history.record(outcome, "txn", **where, error=error)
