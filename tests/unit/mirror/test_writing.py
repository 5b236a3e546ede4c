"""What goes to a broker of the target at once, and how long it may owe an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from kmigrate.cluster.client import ClusterClient
from kmigrate.mirror import writing as module
from kmigrate.mirror.copier import Copier, MirroredTopic
from kmigrate.mirror.holes import HoleMaker
from kmigrate.mirror.lane import Sent
from kmigrate.mirror.settings import MirrorSettings
from kmigrate.mirror.writing import _Unanswered
from kmigrate.model.records import CopyIdentity
from kmigrate.model.settings import ClusterSettings
from kmigrate.net.broker import BrokerConnection
from kmigrate.net.clock import now_ms
from tests.unit.mirror.batches import batch, fetched


def test_a_target_with_a_short_memory_is_given_one_batch_at_a_time_by_the_owner_alone() -> None:
    client = ClusterClient(ClusterSettings("c", (("127.0.0.1", 1),)))
    holes, warrants = cast("HoleMaker", None), [0]
    copier = Copier(
        client,
        client,
        CopyIdentity(77, 0, 78, 0),
        holes,
        MirrorSettings(),
        warrant=lambda _: warrants[0],
        pipelining=False,
    )
    copier.assign([MirroredTopic("t", "", "", {0: 0})])
    lane = copier.lanes[("t", 0)]
    lane.recovered(0, 0, 0)
    now = now_ms()
    lane.take(0, fetched(b"".join(batch(n, 1, timestamp=now) for n in range(4))), now)
    connection = cast("BrokerConnection", object())

    def sent() -> list[Sent]:
        return copier._writer._gather([lane], connection)

    assert sent() == [], "another may own it by now"
    warrants[0] = 1
    for number in range(4):
        (one,) = sent()
        assert one.step.start == number
        assert sent() == [], "the one before is not acknowledged"
        lane.answered(one.step, 0, number)


class _Connection:
    given_up = False

    def abort(self) -> None:
        self.given_up = True


class Scene:
    """Requests that wait for answers, and a clock with timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        monkeypatch.setattr(module, "monotonic", lambda: self.now)
        self.requests = _Unanswered(cast("asyncio.AbstractEventLoop", self))

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

    def send(self, connection: _Connection) -> asyncio.Future[bytearray]:
        request = cast("asyncio.Future[bytearray]", object())
        self.requests.add(request, cast("BrokerConnection", connection))
        return request


def test_a_connection_that_owes_an_answer_for_35_seconds_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, connection = Scene(monkeypatch), _Connection()
    scene.send(connection)
    scene.after(34.9)
    assert not connection.given_up
    scene.after(0.2)
    assert connection.given_up


def test_each_request_has_its_own_time_though_one_timer_looks_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, quick, slow = Scene(monkeypatch), _Connection(), _Connection()
    first = scene.send(quick)
    scene.after(20)
    scene.send(slow)
    del scene.requests[first]  # answered
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
