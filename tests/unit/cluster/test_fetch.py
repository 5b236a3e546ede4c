"""Tests of fetch sessions and their topic ids, of quotas, and of a reader that goes on through every error.

Requests are read and answers written by kio, whose classes are made from Kafka's own schemas.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId, TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32, i32Timedelta, i64

from kmigrate.cluster import fetch
from kmigrate.cluster.client import ClusterClient
from kmigrate.cluster.fetch import FetchSession, Tail, fetch_one
from kmigrate.cluster.health import BrokerHealth
from kmigrate.cluster.metadata import Metadata
from kmigrate.errors import ProtocolViolation, Unreachable
from kmigrate.protocol.api import ApiKey, element_type, entity
from kmigrate.protocol.hot import FetchAnswer, FetchPartition
from kmigrate.records.batch import Batch, walk
from kmigrate.records.build import one_record_batch

SESSION = 77
REST_MS = 12_000
T, U, NEW_T = UUID(int=1), UUID(int=2), UUID(int=3)
Wanted = dict[tuple[str, int], FetchPartition]


def at(offset: int, *topics: str) -> Wanted:
    return {(topic, 0): FetchPartition(topic, 0, offset, 1 << 20) for topic in topics}


class Broker:
    """A broker that supports Fetch up to a version, and answers every request with an empty log."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.asked: list[Any] = []
        self.strange = False
        """True if the broker answers for a topic that nobody has asked for."""
        self.rests = 0
        """Number of answers that name no partition and ask for a rest, because the reader's quota is used up."""

    async def call(self, request: Any) -> Any:
        assert type(request) is entity(18, 0, "request")
        return SimpleNamespace(
            api_keys=(SimpleNamespace(api_key=ApiKey.FETCH, min_version=4, max_version=self.newest),)
        )

    async def call_raw(
        self, api: int, version: int, body: list[bytes], *, flexible: bool, timeout: float = 0
    ) -> bytearray:
        assert (api, flexible) == (ApiKey.FETCH, True)
        assert version <= self.newest
        request, size = entity_reader(cast("Any", entity(ApiKey.FETCH, version, "request")))(b"".join(body), 0)
        assert size == len(b"".join(body))
        self.asked.append(request)
        return self._answer(version, request)

    def _answer(self, version: int, request: Any) -> bytearray:
        kind = entity(ApiKey.FETCH, version, "response")
        topic_kind = element_type(kind, "responses")
        part = element_type(topic_kind, "partitions")(
            partition_index=i32(0),
            error_code=ErrorCode(0),
            high_watermark=i64(5),
            last_stable_offset=i64(5),
            log_start_offset=i64(0),
            aborted_transactions=(),
            preferred_read_replica=BrokerId(-1),
            records=None,
        )
        named = [{"topic": t.topic} if version < 13 else {"topic_id": t.topic_id} for t in request.topics]
        if self.strange:
            named = [{"topic": TopicName("x")} if version < 13 else {"topic_id": UUID(int=9)}]
        rests, self.rests = bool(self.rests), max(0, self.rests - 1)
        answer = kind(
            throttle_time=i32Timedelta.parse(dt.timedelta(milliseconds=REST_MS if rests else 0)),
            error_code=ErrorCode(0),
            session_id=i32(SESSION if request.session_epoch >= 0 else 0),
            responses=tuple(topic_kind(**name, partitions=(part,)) for name in named if not rests),
        )
        out = io.BytesIO()
        entity_writer(cast("Any", kind))(out, answer)
        return bytearray(struct.pack(">ii", len(out.getvalue()) + 5, 7) + b"\0" + out.getvalue())


class Scene:
    """A session with a series of brokers on its connection."""

    def __init__(self, broker: Broker, meant: Callable[[str], UUID | None] | None = None, **ids: UUID | None) -> None:
        self.broker = broker
        self.know(**ids)
        settings = SimpleNamespace(name="c", request_timeout_s=30.0)
        self.client = client = cast("Any", SimpleNamespace(connection=self._connection, settings=settings))
        self._session = FetchSession(client, 1, "test", max_bytes=1 << 20, meant=meant)
        client.metadata = self._metadata

    def know(self, **ids: UUID | None) -> None:
        self._metadata = SimpleNamespace(topics={name: SimpleNamespace(topic_id=of) for name, of in ids.items()})
        if hasattr(self, "client"):
            self.client.metadata = self._metadata

    async def _connection(self, node: int, purpose: str) -> Broker:
        return self.broker

    def fetch(self, wanted: Wanted, *, full: bool = False) -> FetchAnswer:
        return asyncio.run(self._session.fetch(wanted, max_wait_ms=1, full=full))

    @property
    def last(self) -> tuple[int, int, int, list[object], list[object]]:
        """Return version, session and epoch of the newest request, the requested topics, and the topics to forget."""
        request = self.broker.asked[-1]
        by = "topic" if request.__version__ < 13 else "topic_id"
        asked, forgotten = ([getattr(t, by) for t in of] for of in (request.topics, request.forgotten_topics_data))
        return request.__version__, request.session_id, request.session_epoch, asked, forgotten


def test_a_session_names_topics_by_id_and_its_answers_are_told_by_name() -> None:
    scene = Scene(Broker(17), t=T, u=U)
    assert [part.topic for part in scene.fetch(at(0, "t", "u")).partitions] == ["t", "u"]
    assert scene.last == (13, 0, 0, [T, U], [])
    assert [part.topic for part in scene.fetch(at(0, "t") | at(3, "u")).partitions] == ["u"]
    assert scene.last == (13, SESSION, 1, [U], [])
    scene.fetch(at(0, "t"))
    assert scene.last == (13, SESSION, 2, [], [U])


def test_a_full_fetch_names_them_by_id_too_and_belongs_to_no_session() -> None:
    scene = Scene(Broker(13), t=T, u=U)
    scene.fetch(at(0, "t"))
    scene.fetch(at(0, "t", "u"), full=True)
    assert scene.last == (13, 0, -1, [T, U], [])
    scene.fetch(at(0, "t"))
    assert scene.last == (13, 0, 0, [T], [])


def test_by_name_where_the_broker_is_old_or_an_id_is_not_known() -> None:
    for scene in (Scene(Broker(12), t=T, u=U), Scene(Broker(17), t=T), Scene(Broker(17), t=T, u=None)):
        assert [part.topic for part in scene.fetch(at(0, "t", "u")).partitions] == ["t", "u"]
        assert scene.last == (12, 0, 0, ["t", "u"], [])
        scene.fetch(at(1, "t", "u"))
        assert scene.last == (12, SESSION, 1, ["t", "u"], [])


def test_a_session_begins_anew_where_topics_get_their_ids_or_lose_them() -> None:
    scene = Scene(Broker(17), t=T)
    scene.fetch(at(0, "t", "u"))
    scene.know(t=T, u=U)
    scene.fetch(at(0, "t", "u"))
    assert scene.last == (13, 0, 0, [T, U], [])
    scene.know(t=T)
    scene.fetch(at(0, "t", "u"))
    assert scene.last == (12, 0, 0, ["t", "u"], [])


def test_a_session_begins_anew_for_a_topic_that_was_made_anew() -> None:
    scene = Scene(Broker(17), t=T, u=U)
    scene.fetch(at(0, "t", "u"))
    scene.know(t=NEW_T, u=U)
    scene.fetch(at(0, "t", "u"))
    assert scene.last == (13, 0, 0, [NEW_T, U], [])


def test_whoever_means_one_topic_never_reads_another_of_its_name() -> None:
    """The broker answers that the topic with this id is gone.

    This holds even where other readers have refreshed the metadata, which now shows the new topic of that name.
    """
    scene = Scene(Broker(17), {"t": T}.get, t=T, u=U)
    scene.fetch(at(0, "t", "u"))
    scene.know(t=NEW_T, u=U)
    scene.fetch(at(1, "t", "u"))
    assert scene.last == (13, SESSION, 1, [T, U], [])
    scene.know(u=U)
    scene.fetch(at(2, "t"))
    assert scene.last == (13, SESSION, 2, [T], [U])


def test_what_a_broker_takes_is_asked_of_each_connection() -> None:
    scene = Scene(Broker(12), t=T)
    scene.fetch(at(0, "t"))
    scene.broker = Broker(17)
    scene.fetch(at(0, "t"))
    assert scene.last == (13, 0, 0, [T], [])
    scene.broker = Broker(12)
    scene.fetch(at(0, "t"))
    assert scene.last == (12, 0, 0, ["t"], [])


def test_an_answer_about_an_id_that_nobody_asked_for_is_a_violation() -> None:
    scene = Scene(Broker(13), t=T)
    scene.broker.strange = True
    with pytest.raises(ProtocolViolation, match="unasked"):
        scene.fetch(at(0, "t"))


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(fetch, "monotonic", lambda: self.now)
        monkeypatch.setattr(fetch, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_who_looks_at_one_batch_rests_for_as_long_as_a_quota_asks_for_and_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A throttled answer names no partition; a mirror that started on a busy source used to end with an IndexError."""
    clock, scene = Clock(monkeypatch), Scene(Broker(17))
    scene.broker.rests = 2
    assert asyncio.run(fetch_one(scene.client, 1, at(0, "t")["t", 0], purpose="test")).high_watermark == 5
    assert clock.now == 124.0
    scene.broker.rests = 9
    with pytest.raises(Unreachable, match="t-0 cannot be read: the quota at broker 1 of cluster c is used up"):
        asyncio.run(fetch_one(scene.client, 1, at(0, "t")["t", 0], purpose="test"))
    assert scene.broker.rests, "it is given up after a while"


RECORD = bytes(one_record_batch(b"k", b"v", timestamp=1, producer_id=-1, epoch=-1, sequence=-1))
HEAD = struct.pack(">iib", 0, 7, 0)
THROTTLED = HEAD + struct.pack(">ihi", 900, 0, 0) + b"\1\0"
"""A fetch answer without topics, as a broker sends to a client above its quota."""
ANSWERED = (
    HEAD
    + struct.pack(">ihi", 0, 0, 0)
    + b"\2\2t\2"
    + struct.pack(">ihqqq", 0, 0, 1, 1, 0)
    + b"\1"
    + struct.pack(">i", -1)
    + bytes([len(RECORD) + 1])
    + RECORD
    + b"\0\0\0"
)


class TailBroker:
    """A broker that leads t-0, and answers each Fetch with the next of the given answers."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.metadata = Metadata("c", {1: ("a", 1)})
        self.health = BrokerHealth()

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def connection(self, node: int, purpose: str) -> TailBroker:
        return self

    async def call_raw(self, *_: object, **__: object) -> bytearray:
        return bytearray(self.answers.pop(0))


def nothing(preferred: int = -1) -> bytes:
    """Return an answer without records below a high watermark of 1."""
    partition = struct.pack(">ihqqq", 0, 0, 1, 1, 0) + b"\1" + struct.pack(">i", preferred) + b"\1"
    return HEAD + struct.pack(">ihi", 0, 0, 0) + b"\2\2t\2" + partition + b"\0\0\0"


def test_an_end_that_no_batch_reaches_is_reached_when_it_was_told_again_and_no_batch_is_passed_over() -> None:
    """A log cleaner may remove the newest batch."""
    read: list[Batch] = []

    async def scene() -> None:
        broker = TailBroker(nothing(), nothing(), THROTTLED, ANSWERED)
        tail = Tail(cast("ClusterClient", broker), "t", 0, read.append, purpose="read")
        tail.position = 0
        for _ in range(3):
            await tail.poll(1)
        assert tail.reached == 0
        broker.answers = [nothing(), nothing(2), nothing(), nothing(), nothing(), ANSWERED]
        for reached in (1, 0, 0, 0, 1):
            await tail.poll(1)
            assert (tail.reached, tail.position) == (reached, 0)
        await tail.poll(1)
        assert (tail.reached, len(read)) == (1, 1)

    asyncio.run(scene())


def test_an_answer_without_the_partition_is_one_of_nothing() -> None:
    read: list[Batch] = []

    async def scene() -> None:
        tail = Tail(cast("ClusterClient", TailBroker(THROTTLED, ANSWERED)), "t", 0, read.append, purpose="read")
        tail.position = 0
        for _ in range(2):
            await tail.poll(1)
        assert tail.position == 1

    asyncio.run(scene())
    assert [bytes(batch.view) for batch in read] == [bytes(batch.view) for batch in walk(memoryview(RECORD))]


def test_a_reader_in_no_hurry_rests_after_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    began = clock.now
    progress: list[float] = []

    async def scene() -> None:
        tail = Tail(cast("ClusterClient", TailBroker(THROTTLED, ANSWERED)), "t", 0, lambda _: None, purpose="read")
        tail.position = 0
        await tail.run(
            lambda: progress.append(clock.now - began),
            lambda _: None,
            until=lambda: tail.position == 1,
            rest_s=lambda: 0.2 * len(progress),
        )

    asyncio.run(scene())
    assert progress == [0.0, pytest.approx(0.2)]
    assert clock.now - began == pytest.approx(0.6)
