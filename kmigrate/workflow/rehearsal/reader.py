"""The group that reads the shadow topics: a single member, at the source first and later at the routers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException

from kmigrate.cluster.librdkafka import client_config, is_refusal
from kmigrate.cluster.requests import Key
from kmigrate.errors import Failed, WaitTimedOut
from kmigrate.model.settings import ClusterSettings

__all__ = ["Reader"]

_BATCH = 500
_POLL_S = 0.1
_CLOSE_S = 30.0


class Reader:
    """Reads the shadow topics in a thread of its own, and counts records that are read again or skipped."""

    def __init__(self, group: str, topics: Sequence[str], source: ClusterSettings) -> None:
        self._group, self._topics = group, list(topics)
        self._settings = source
        self._next: ClusterSettings | None = None
        self._ended, self._moved = threading.Event(), threading.Event()
        self._failure = ""
        self._expected: dict[Key, int] = {}
        self._thread = threading.Thread(target=self._run, name="rehearsal-reader", daemon=True)
        self.records = self.read_again = self.skipped = 0

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise Failed if the member has failed."""
        if self._failure:
            raise Failed("rehearsal-client-failed", f"the member of group {self._group} has failed: {self._failure}")

    async def move(self, settings: ClusterSettings, timeout_s: float) -> None:
        """Leave the group, and join the group again at other addresses."""
        self._moved.clear()
        self._next = settings
        if not await asyncio.to_thread(self._moved.wait, timeout_s):
            self.check()
            raise WaitTimedOut("rehearsal-slow", f"the member did not leave group {self._group} in time")
        self.check()

    async def stop(self) -> None:
        """Leave the group."""
        self._ended.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                consumer = self._consumer()
                try:
                    consumer.subscribe(self._topics)
                    self._moved.set()
                    self._read(consumer)
                finally:
                    consumer.close()
        except KafkaException as error:
            self._failure = str(error)
        finally:
            self._moved.set()

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **client_config(self._settings),
                "client.id": f"{self._settings.client_id}-rehearsal",
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        )

    def _read(self, consumer: Consumer) -> None:
        """Read until the member is stopped, or moves: then the next consumer has other addresses."""
        while not self._ended.is_set():
            if self._next is not None:
                self._settings, self._next = self._next, None
                return
            for message in consumer.consume(_BATCH, _POLL_S):
                error = message.error()
                if error is not None:
                    if error.fatal() or is_refusal(error.code()):
                        raise KafkaException(error)
                    continue
                self._count((str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0))

    def _count(self, key: Key, offset: int) -> None:
        expected = self._expected.get(key, offset)
        self.records += 1
        self.read_again += offset < expected
        self.skipped += max(0, offset - expected)
        self._expected[key] = max(expected, offset + 1)
