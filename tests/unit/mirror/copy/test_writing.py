"""The writer decides what a broker of the target gets at once, and how long an answer may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.errors import AuthenticationFailed
from kmigrate.mirror.copy import writing as module
from kmigrate.mirror.copy.context import CopyContext
from kmigrate.mirror.copy.copier import Copier, MirroredTopic
from kmigrate.mirror.copy.holes import HoleMaker
from kmigrate.mirror.copy.request_size import AdaptiveRequestSize
from kmigrate.mirror.copy.writing import _Unanswered
from kmigrate.mirror.partition.lane import Lane, Sent
from kmigrate.mirror.partition.steps import Append
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import now_ms
from tests.unit.mirror.batches import batch, fetched


def test_a_target_with_a_short_memory_is_given_one_batch_at_a_time_by_the_owner_alone() -> None:
    client = _Served()
    holes, warrants = cast("HoleMaker", None), [0]
    copier = Copier(
        CopyContext(
            client,
            client,
            CopyIdentity(77, 0),
            holes,
            MirrorSettings(),
            owner_term=lambda _: warrants[0],
            pipelining=False,
        )
    )
    copier.assign([MirroredTopic("t", "", "", {0: 0})])
    lane = copier.lanes[("t", 0)]
    lane.recovered(0, 0, 0)
    now = now_ms()
    lane.take(0, fetched(b"".join(batch(n, 1, timestamp=now) for n in range(4))), now)
    connection = cast("BrokerConnection", object())

    def sent() -> list[Sent]:
        return copier._writer._gather(1, 0, [lane], connection)

    assert sent() == [], "another may own it by now"
    warrants[0] = 1
    for number in range(4):
        (one,) = sent()
        assert one.step.start == number
        assert sent() == [], "the one before is not acknowledged"
        lane.answered(one.step, 0, number)


class _Served(ClusterClient):
    """A target whose only broker leads all partitions."""

    def __init__(self) -> None:
        super().__init__(ClusterSettings("c", (("127.0.0.1", 1),)))

    def leader(self, topic: str, partition: int) -> int:
        return 1


MIB = 1 << 20


class _Deaf:
    """A connection whose broker works on other requests, so that no answer comes."""

    lost = False

    def __init__(self) -> None:
        self.requests = 0

    def send(self, *_: object, flexible: bool) -> asyncio.Future[bytearray]:
        self.requests += 1
        return asyncio.get_running_loop().create_future()

    async def drain(self) -> None: ...


class Crowd:
    """Lanes that always have more records to write, on a broker that handles requests one after another."""

    def __init__(self, count: int, size: int = MIB) -> None:
        client = _Served()
        self.copier = Copier(
            CopyContext(
                client,
                client,
                CopyIdentity(77, 0),
                cast("HoleMaker", None),
                MirrorSettings(request_max_bytes=16 * size),
                owner_term=lambda _: 1,
                request_limit=100 * size + module._REQUEST_HEAD,
            )
        )
        self.copier.assign([MirroredTopic("t", "", "", dict.fromkeys(range(count), 0))])
        self.lanes = list(self.copier.lanes.values())
        self.sizes = dict.fromkeys(self.lanes, size)
        self.deaf = _Deaf()
        self.connection = cast("BrokerConnection", self.deaf)
        for lane in self.lanes:
            lane.recovered(0, 0, 0)
            self.read(lane)

    def read(self, lane: Lane) -> None:
        data = batch(lane.source.read_at, 1, timestamp=now_ms(), text=b"x" * self.sizes[lane])
        lane.take(lane.source.read_at, fetched(data), now_ms())

    def request(self) -> list[Lane]:
        """Send and answer the next request, read each lane's next batch, and return the lanes of the request."""
        writer = self.copier._writer
        sent = writer._gather(1, 0, writer._mine(1, 0), self.connection)
        for lane, step in sent:
            lane.answered(step, 0, step.start)
            self.read(lane)
        return [lane for lane, _ in sent]


def test_of_more_partitions_than_a_request_holds_each_has_its_turn() -> None:
    """Three requests reach all lanes, so lanes at the front of the list do not take every request."""
    crowd = Crowd(40)
    first = [*crowd.request(), *crowd.request(), *crowd.request()]
    assert set(first) == set(crowd.lanes)


def test_a_batch_that_only_fits_alone_has_its_turn_among_others_that_never_end() -> None:
    """A batch that needs almost a whole request is sent, although small batches could fill every request."""
    crowd = Crowd(20, size=MIB // 16)
    large = crowd.lanes[11]
    crowd.sizes[large] = 98 * MIB // 16
    crowd.read(large)
    sent = [lane for _ in range(8) for lane in crowd.request()]
    assert large.target.position >= 2
    assert all(sent.count(lane) >= 2 for lane in crowd.lanes)


def test_what_is_promoted_is_not_written_behind_partitions_that_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is being promoted is written over its own connection.

    Up to 80 MiB of other partitions may be in flight, and its producers would wait for their answers.
    """
    crowd = Crowd(40)
    opened = {"mirror-write-0": crowd.deaf}
    writer, lane = crowd.copier._writer, crowd.lanes[-1]

    async def connection(node: int, purpose: str) -> _Deaf:
        return opened.setdefault(purpose, _Deaf())

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def scene() -> None:
        running = asyncio.create_task(writer.run(1))
        await turns()
        assert [each.requests for each in opened.values()] == [5], "all that may be on its way"
        lane.paused, lane.promoting = False, True
        crowd.copier._signals.assign()
        await turns()
        assert sorted(each.requests for each in opened.values()) == [1, 5]
        assert len(lane.target.sent) == 1
        running.cancel()
        await asyncio.wait({running})

    monkeypatch.setattr(writer._target, "connection", connection)
    for _ in range(3):
        crowd.request()
    for each in (each for each in crowd.lanes for _ in range(4)):
        crowd.read(each)
    lane.paused = True
    asyncio.run(scene())


def test_while_a_broker_has_enough_to_work_on_requests_are_kept_back_and_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small requests leave together, because waking the process for each request costs more than its work."""
    crowd = Crowd(40)
    writer = crowd.copier._writer
    owed: list[tuple[asyncio.Future[bytearray], list[Sent]]] = []
    monkeypatch.setattr(module, "decode_throttled_produce", lambda frame: (frame, 0))

    async def connection(node: int, purpose: str) -> _Deaf:
        return crowd.deaf

    def send(*_: object, flexible: bool) -> asyncio.Future[bytearray]:
        owed.append((asyncio.get_running_loop().create_future(), batches[-1]))
        return owed[-1][0]

    batches: list[list[Sent]] = []
    gather = writer._gather

    def gathered(*arguments: Any) -> list[Sent]:
        batches.append(gather(*arguments))
        return batches[-1]

    async def answer() -> int:
        """Answer the oldest request, let all tasks have their turns, and return the number of requests in flight."""
        future, sent = owed.pop(0)
        answers: Any = {lane.key: (0, step.start, -1, None) for lane, step in sent}
        future.set_result(answers)
        for _ in range(20):
            await asyncio.sleep(0)
        return len(owed)

    async def scene() -> None:
        running = asyncio.create_task(writer.run(1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(owed) == 5
        assert [await answer() for _ in range(6)] == [4, 3, 5, 4, 3, 5]
        running.cancel()
        await asyncio.wait({running})

    monkeypatch.setattr(writer._target, "connection", connection)
    monkeypatch.setattr(crowd.deaf, "send", send)
    monkeypatch.setattr(writer, "_gather", gathered)
    for _ in range(3):
        crowd.request()
    for each in (each for each in crowd.lanes for _ in range(9)):
        crowd.read(each)
    asyncio.run(scene())


def test_a_broker_that_is_not_trusted_ends_nobody_elses_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, tries = Crowd(2), 0
    writer = crowd.copier._writer

    async def connection(node: int, purpose: str) -> _Deaf:
        nonlocal tries
        tries += 1
        if tries > 2:
            raise EnoughError
        raise AuthenticationFailed("certificate-expired", "the certificate of broker 1 has expired")

    monkeypatch.setattr(writer._target, "connection", connection)
    monkeypatch.setattr(module, "sleep", lambda _: asyncio.sleep(0))
    with pytest.raises(EnoughError):
        asyncio.run(writer.run(1))
    assert crowd.copier.trouble.startswith("certificate-expired: ")
    assert all(lane.drop_waiting() for lane in crowd.lanes), "they leave room for what others lead"


class EnoughError(Exception):
    """The test has seen what it wanted to see."""


class _Connection:
    given_up = lost = False

    def abort(self) -> None:
        self.given_up = self.lost = True


class _Request:
    def cancelled(self) -> bool:
        return False

    def exception(self) -> None:
        return None


class Scene:
    """Requests without answers, and a clock with timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.request_size = AdaptiveRequestSize(16 * MIB, 35)
        self.moved: set[str] = set()
        """Topics that have moved to another leader."""
        self.requests = _Unanswered(
            cast("asyncio.AbstractEventLoop", self),
            self.request_size,
            lambda batches: any(lane.topic in self.moved for lane, _ in batches),
        )

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.timers.append((self.now + seconds, callback))

    def after(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(at for at, _ in self.timers) <= end:
            due = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(due)
            self.now, callback = due
            callback()
        self.now = end

    def send(self, connection: _Connection, *topics: str) -> asyncio.Future[bytearray]:
        request = cast("asyncio.Future[bytearray]", _Request())
        lanes = [Lane(topic, 0, producer_id=1, epoch=0, hole_limit=1) for topic in topics]
        batches = [Sent(lane, cast("Append", None)) for lane in lanes]
        self.requests.add(request, cast("BrokerConnection", connection), batches)
        return request


def test_a_connection_that_owes_an_answer_for_35_seconds_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, connection = Scene(monkeypatch), _Connection()
    scene.send(connection)
    scene.after(34.9)
    assert not connection.given_up
    scene.after(0.2)
    assert connection.given_up


def test_a_broker_that_stands_still_is_given_up_once_another_leads_what_it_has_led(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests to a broker that stands still are given up when another broker leads one of their partitions.

    Otherwise the partitions would wait 35 seconds, although they have new leaders after ten seconds.
    """
    scene, connection = Scene(monkeypatch), _Connection()
    scene.send(connection, "t", "u")
    scene.after(9)
    assert not connection.given_up
    scene.moved = {"u"}
    scene.after(3)
    assert connection.given_up
    assert scene.request_size.size == 16 * MIB, "the line is as good as it was"


def test_a_broker_that_stands_still_is_given_up_also_where_the_first_request_is_about_what_only_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, connection = Scene(monkeypatch), _Connection()
    scene.send(connection, "unreplicated")
    scene.after(1)
    scene.send(connection, "t")
    scene.after(9)
    assert not connection.given_up
    scene.moved = {"t"}
    scene.after(3)
    assert connection.given_up


def test_a_leader_that_moves_has_a_moment_for_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, connection = Scene(monkeypatch), _Connection()
    scene.moved = {"t"}
    for _ in range(20):
        request = scene.send(connection, "t")
        scene.after(2.5)
        scene.requests.answered(request, 1)
    assert not connection.given_up


def test_each_request_has_its_own_time_though_one_timer_looks_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, quick, slow = Scene(monkeypatch), _Connection(), _Connection()
    first = scene.send(quick)
    scene.after(20)
    scene.send(slow)
    del scene.requests[first]  # the first request is answered
    assert len(scene.timers) == 1
    scene.after(34.9)
    assert not slow.given_up
    scene.after(0.2)
    assert slow.given_up
    assert not quick.given_up


def test_after_all_have_been_answered_the_next_request_is_looked_after_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, connection = Scene(monkeypatch), _Connection()
    del scene.requests[scene.send(connection)]
    scene.after(100)
    assert not scene.timers
    scene.send(connection)
    scene.after(36)
    assert connection.given_up


def test_over_a_line_that_carries_no_request_in_time_less_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests become smaller over a connection that carries none of them within 35 seconds.

    Otherwise a request of 16 MiB would be sent again and again.
    """
    scene, sizes = Scene(monkeypatch), list[int]()
    for _ in range(20):
        connection = _Connection()
        request = scene.send(connection)
        seconds = scene.request_size.size / (50 << 10)
        sizes.append(scene.request_size.size)
        scene.after(seconds)
        if not connection.given_up:
            scene.requests.answered(request, sizes[-1])
        else:
            del scene.requests[request]
    assert max(sizes[-5:]) < 35 * (50 << 10)
    assert min(sizes[-5:]) > 50 << 10, "nor a frame for every few records"


def test_a_request_has_no_more_than_the_line_has_carried_of_late() -> None:
    crowd = Crowd(40)
    assert len(crowd.request()) == 16
    for _ in range(3):
        crowd.copier._writer._sizes[1, 0].late()
    assert len(crowd.request()) == 1


def test_a_process_that_may_have_missed_a_decision_sends_nothing() -> None:
    crowd = Crowd(2)
    may_write = [False]
    crowd.copier._writer._may_write = lambda: may_write[0]
    assert crowd.request() == []
    may_write[0] = True
    assert set(crowd.request()) == set(crowd.lanes)
