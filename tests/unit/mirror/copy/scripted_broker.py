"""A broker of the target with Kafka's checks of batches and markers, on connections that work on requests in order.

kio reads each request and writes each answer, so that our own codec does not judge itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

from kio.schema.errors import ErrorCode

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import Unreachable
from kmigrate.net.broker import OutgoingRequest
from kmigrate.protocol.api import ApiKey, Message, decode_body, element_type, encode_body, entity
from kmigrate.protocol.codes import Code
from kmigrate.records.batch import check_crc, walk

Key = tuple[str, int]


@dataclass
class Log:
    """A partition's log, and the broker's state of the only producer id that writes to the partition."""

    kinds: str = ""
    """The log's content: D is a record, M a control marker."""
    epoch: int = -1
    next_sequence: int | None = None
    coordinator_epoch: int = -1
    newest: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """First and last sequences of the newest batches."""
    refusal: int = 0
    """Error code for all batches."""

    def produce(self, data: bytes) -> int:
        batch = next(walk(memoryview(bytearray(data))))
        if not check_crc(batch.view):
            return Code.CORRUPT_MESSAGE
        if self.refusal:
            return self.refusal
        bounds = (batch.base_sequence, batch.last_sequence)
        if batch.producer_epoch < self.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if batch.producer_epoch == self.epoch and bounds in self.newest:
            return 0
        expected = 0 if batch.producer_epoch > self.epoch >= 0 else self.next_sequence
        if expected not in (None, batch.base_sequence):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if batch.producer_epoch > self.epoch:
            self.newest.clear()
        self.epoch, self.next_sequence = batch.producer_epoch, batch.last_sequence + 1
        self.newest.append(bounds)
        self.kinds += "D" * batch.count
        return 0

    def mark(self, epoch: int, coordinator_epoch: int) -> int:
        if epoch < self.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if coordinator_epoch < self.coordinator_epoch:
            return Code.TRANSACTION_COORDINATOR_FENCED
        if epoch > self.epoch:
            self.next_sequence = 0
            self.newest.clear()
        self.epoch, self.coordinator_epoch = epoch, coordinator_epoch
        self.kinds += "M"
        return 0


class ScriptedBroker:
    """The only broker of a target, as its `ClusterClient` shows the broker."""

    def __init__(self, *, closes: bool = True) -> None:
        self.settings = SimpleNamespace(request_timeout_s=0.2)
        self.health = SimpleNamespace(heard=lambda _: None, failed=lambda *_: None)
        self.logs: dict[Key, Log] = {}
        self.closes = closes
        """False for a broker that goes on to the next request behind a refused Produce request with acks=0."""
        self.holds = False
        """True while the broker works on no request."""
        self.markers_error = 0
        self.node = 1
        self.opened: dict[str, ScriptedConnection] = {}
        self.requests: list[tuple[str, str]] = []
        """Kind and connection of each request that the broker has worked on."""
        self.marked: list[tuple[Key, int, int]] = []
        """Partition, producer epoch and coordinator epoch of each marker that the broker was asked to write."""
        self.marking_ids: list[tuple[Key, int]] = []
        """Partition and producer id of each of these markers."""
        self.before: Callable[[ApiKey], None] = lambda _: None
        """Called before each request."""

    @property
    def client(self) -> ClusterClient:
        return cast("ClusterClient", self)

    def leader(self, topic: str, partition: int) -> int:
        return self.node

    def log(self, topic: str, partition: int) -> Log:
        return self.logs.setdefault((topic, partition), Log())

    def is_open(self, node: int, purpose: str) -> bool:
        return self.open_connection(node, purpose) is not None

    def open_connection(self, node: int, purpose: str) -> ScriptedConnection | None:
        known = self.opened.get(purpose)
        return None if known is None or known.lost else known

    async def connection(self, node: int, purpose: str) -> ScriptedConnection:
        known = self.open_connection(node, purpose)
        if known is None:
            known = self.opened[purpose] = ScriptedConnection(self, purpose)
        return known

    def work(self, api_key: int, body: bytes) -> bytearray | None:
        """Return the answer; None if the broker closes the connection."""
        self.before(ApiKey(api_key))
        if api_key == ApiKey.PRODUCE:
            return self._produce(decode_body(entity(ApiKey.PRODUCE, 9, "request"), bytearray(body), 0))
        if api_key == ApiKey.WRITE_TXN_MARKERS:
            return self._mark(decode_body(entity(ApiKey.WRITE_TXN_MARKERS, 1, "request"), bytearray(body), 0))
        return self._log_ends(decode_body(entity(ApiKey.LIST_OFFSETS, 5, "request"), bytearray(body), 0))

    def _produce(self, request: Message) -> bytearray | None:
        assert request.acks == 0
        codes = [
            self.log(str(topic.name), part.index).produce(bytes(part.records))
            for topic in request.topic_data
            for part in topic.partition_data
        ]
        return None if any(codes) and self.closes else bytearray()

    def _mark(self, request: Message) -> bytearray:
        codes: dict[Key, int] = {}
        for marker in request.markers:
            for topic in marker.topics:
                for partition in topic.partition_indexes:
                    key = (str(topic.name), int(partition))
                    self.marked.append((key, int(marker.producer_epoch), int(marker.coordinator_epoch)))
                    self.marking_ids.append((key, int(marker.producer_id)))
                    code = self.markers_error or self.log(*key).mark(marker.producer_epoch, marker.coordinator_epoch)
                    codes[key] = codes.get(key, 0) or code
        kind = entity(ApiKey.WRITE_TXN_MARKERS, 1, "response")
        result = element_type(kind, "markers")
        topic_type = element_type(result, "topics")
        part_type = element_type(topic_type, "partitions")
        topics = tuple(
            topic_type(name=name, partitions=(part_type(partition_index=number, error_code=ErrorCode(code)),))
            for (name, number), code in codes.items()
        )
        return bytearray(9) + encode_body(kind(markers=(result(producer_id=77, topics=topics),)))

    def _log_ends(self, request: Message) -> bytearray:
        assert request.replica_id == -2, "the log end, not the high watermark"
        kind = entity(ApiKey.LIST_OFFSETS, 5, "response")
        topic_type = element_type(kind, "topics")
        part_type = element_type(topic_type, "partitions")
        topics = tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    part_type(
                        partition_index=part.partition_index,
                        error_code=ErrorCode(0),
                        offset=len(self.log(str(topic.name), part.partition_index).kinds),
                    )
                    for part in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return bytearray(8) + encode_body(kind(throttle_time=timedelta(0), topics=topics))


class ScriptedConnection:
    """A connection to the broker; a lost connection answers nothing more."""

    address = "broker:1"

    def __init__(self, broker: ScriptedBroker, purpose: str) -> None:
        self.broker = broker
        self.purpose = purpose
        self.lost = False
        self.given_up = ""
        self.waiting: deque[tuple[int, bytes, asyncio.Future[bytearray] | None]] = deque()

    def send(self, api_key: int, version: int, body: list[Any], *, flexible: bool) -> asyncio.Future[bytearray]:
        answer: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()
        self._take(api_key, body, answer)
        return answer

    def send_unanswered(self, api_key: int, version: int, body: list[Any], *, flexible: bool) -> None:
        self._take(api_key, body, None)

    def send_together(self, *requests: OutgoingRequest) -> list[asyncio.Future[bytearray]]:
        futures = []
        for each in requests:
            if each.is_answered:
                futures.append(self.send(each.api_key, each.version, each.body, flexible=each.flexible))
            else:
                self.send_unanswered(each.api_key, each.version, each.body, flexible=each.flexible)
        return futures

    async def call_raw(
        self, api_key: int, version: int, body: list[Any], *, flexible: bool, timeout: float
    ) -> bytearray:
        return await self.send(api_key, version, body, flexible=flexible)

    def _take(self, api_key: int, body: list[Any], answer: asyncio.Future[bytearray] | None) -> None:
        if self.lost and answer is not None:
            answer.set_exception(Unreachable("connection-lost", "the connection is lost"))
        elif not self.lost:
            self.waiting.append((api_key, b"".join(map(bytes, body)), answer))
            asyncio.get_running_loop().call_soon(self.work)

    def work(self) -> None:
        while self.waiting and not self.broker.holds and not self.lost:
            api_key, body, answer = self.waiting.popleft()
            self.broker.requests.append((ApiKey(api_key).name, self.purpose))
            try:
                told = self.broker.work(api_key, body)
            except Exception as error:
                if answer is None:
                    raise
                answer.set_exception(error)
                continue
            if told is None or self.lost:
                self.waiting.appendleft((api_key, body, answer))
                self.lose()
            elif answer is not None:
                answer.set_result(told)

    def give_up(self, why: str) -> None:
        self.given_up = why
        self.lose()

    def lose(self) -> None:
        self.lost = True
        for _, _, answer in self.waiting:
            if answer is not None:
                answer.set_exception(Unreachable("connection-lost", "the connection is lost"))

    def close(self) -> None:
        self.lost = True
