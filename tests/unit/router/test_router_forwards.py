"""What a router remembers of forwarded writes: no more than is ever told, and nothing that nobody asks for."""

from __future__ import annotations

import pytest

from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import Serve
from kmigrate.router import forwards
from kmigrate.router.forwards import Forwards
from tests.unit.router.router_fakes import Stage, batch, route, table

KEY = "topic/l/t"
FENCED = table(route("t", Serve.HOLD, fence_epoch=2))


def kept(account: Forwards) -> int:
    return sum(len(marks) for topic in account._acked.values() for marks in topic.values())


def told(account: Forwards) -> dict[int, list[int]]:
    """The producer ids that the controller is told of, by partition."""
    producers = account.fences(FENCED)[KEY].producers
    return {partition: [mark.producer_id for mark in marks] for partition, marks in producers.items()}


def test_of_many_producers_those_that_wrote_last_are_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 10)
    account = Forwards()
    for producer in range(25):
        account.acknowledged(KEY, 0, producer, 0, 0)
    account.acknowledged(KEY, 0, 15, 0, 1)
    account.acknowledged(KEY, 0, 25, 0, 0)
    assert kept(account) == 10
    assert told(account) == {0: [15, *range(17, 26)]}


def test_partitions_share_what_is_kept_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 10)
    account = Forwards()
    for producer in range(25):
        for partition in range(2):
            account.acknowledged(KEY, partition, producer, 0, 0)
    assert kept(account) == 10
    assert told(account) == {0: [20, 21, 22, 23, 24], 1: [20, 21, 22, 23, 24]}


def test_more_partitions_than_marks_are_told_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 2)
    account = Forwards()
    for producer in range(3):
        for partition in range(3):
            account.acknowledged(KEY, partition, producer, 0, 0)
    assert told(account) == {0: [2], 1: [2], 2: [2]}


def test_what_was_acknowledged_is_told_until_the_flip_and_forgotten_then() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(producer=5)))
    stage.edge.sent[-1].answer()
    account = stage.core.forwards
    stage.swap(route("t", Serve.HOLD, fence_epoch=2))
    assert account.fences(stage.core.table)[KEY].producers == {0: (ProducerMark(5, 0, 0),)}
    stage.swap(route("t", Serve.FORWARD))
    stage.swap(route("t", Serve.HOLD, fence_epoch=3))
    assert account.fences(stage.core.table)[KEY].producers == {0: (ProducerMark(5, 0, 0),)}, "a fence was lifted"
    stage.swap(route("t", Serve.LOCAL))
    assert kept(account) == 0


def test_of_a_topic_whose_link_has_ended_nothing_is_kept_but_what_is_in_flight() -> None:
    account = Forwards()
    for topic in ("t", "u"):
        account.leave(f"topic/l/{topic}")
        account.held(f"topic/l/{topic}", 0, 5)
        account.acknowledged(f"topic/l/{topic}", 0, 7, 0, 0)
    account.resolved("topic/l/u")
    fenced = table(*(route(topic, Serve.HOLD, fence_epoch=2) for topic in ("t", "u")))
    account.follow(fenced)
    account.fences(fenced)
    account.held("topic/l/u", 0, 5)
    account.follow(table())
    assert account.in_flight == {KEY: 1}
    assert account.holds_ms() == {}
    assert not (account._acked or account._epochs or account._drained)
    assert account.resolved(KEY)
    account.follow(table())
    assert account.in_flight == {}
