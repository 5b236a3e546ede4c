"""A router's memory of forwarded writes:

bounded by what the router reports, and freed when no client needs an entry.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmigrate.model.presences import RouterPresence
from kmigrate.model.records import ProducerMark
from kmigrate.model.routes import RoutingTable, Serve
from kmigrate.router.shared import forwards
from kmigrate.router.shared.forwards import InFlightForwards
from kmigrate.state.codec import PresenceWriter
from tests.unit.router.router_fakes import Stage, batch, route, table

KEY = "topic/l/t"
FENCED = table(route("t", Serve.HOLD, fence_epoch=2))


def kept(account: InFlightForwards) -> int:
    return sum(len(marks) for topic in account._acked.values() for marks in topic.values())


def told(account: InFlightForwards) -> dict[int, list[int]]:
    """Return the producer ids that the controller gets, by partition."""
    producers = account.fences(FENCED)[KEY].producers
    return {partition: [mark.producer_id for mark in marks] for partition, marks in producers.items()}


def test_of_many_producers_those_that_wrote_last_are_kept_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 10)
    account = InFlightForwards()
    for producer in range(25):
        account.acknowledged(KEY, 0, producer, 0, 0)
    account.acknowledged(KEY, 0, 15, 0, 1)
    account.acknowledged(KEY, 0, 25, 0, 0)
    assert kept(account) == 10
    assert told(account) == {0: [15, *range(17, 26)]}


def test_partitions_share_what_is_kept_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 10)
    account = InFlightForwards()
    for producer in range(25):
        for partition in range(2):
            account.acknowledged(KEY, partition, producer, 0, 0)
    assert kept(account) == 10
    assert told(account) == {0: [20, 21, 22, 23, 24], 1: [20, 21, 22, 23, 24]}


def test_more_partitions_than_marks_are_told_one_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_MOST_MARKS", 2)
    account = InFlightForwards()
    for producer in range(3):
        for partition in range(3):
            account.acknowledged(KEY, partition, producer, 0, 0)
    assert told(account) == {0: [2], 1: [2], 2: [2]}


def test_what_was_acknowledged_is_told_until_the_flip_and_forgotten_then() -> None:
    stage = Stage(route("t", Serve.FORWARD))
    stage.produce(("t", 0, batch(producer=5)))
    stage.edge.sent[-1].answer()
    account = stage.shared.forwards
    stage.swap(route("t", Serve.HOLD, fence_epoch=2))
    assert account.fences(stage.shared.table)[KEY].producers == {0: (ProducerMark(5, 0, 0),)}
    stage.swap(route("t", Serve.FORWARD))
    stage.swap(route("t", Serve.HOLD, fence_epoch=3))
    assert account.fences(stage.shared.table)[KEY].producers == {0: (ProducerMark(5, 0, 0),)}, "a fence was lifted"
    stage.swap(route("t", Serve.LOCAL))
    assert kept(account) == 0


def test_with_a_way_back_the_targets_acknowledgements_are_kept_until_the_next_flip() -> None:
    account = InFlightForwards()
    promoted = route("t", Serve.LOCAL, copied_back=True)
    fenced = route("t", Serve.HOLD, fence_epoch=2, copied_back=True, rolling_back=True)
    account.follow(table(route("t", Serve.FORWARD)))
    account.acknowledged(KEY, 0, 6, 0, 0)
    account.follow(table(promoted))
    assert kept(account) == 0, "the source's acknowledgements are in the barrier table"
    account.acknowledged(KEY, 0, 5, 0, 0)
    for each in (fenced, promoted, fenced):
        account.follow(table(each))
        assert kept(account) == 1
    assert told(account) == {0: [5]}
    account.follow(table(route("t", Serve.FORWARD, generation=1)))
    assert kept(account) == 0
    account.follow(table(promoted))
    account.acknowledged(KEY, 0, 5, 0, 0)
    account.follow(table(route("t", Serve.LOCAL)))
    assert kept(account) == 0, "the way back has ended"


def test_of_a_topic_whose_link_has_ended_nothing_is_kept_but_what_is_in_flight() -> None:
    account = InFlightForwards()
    for topic in ("t", "u"):
        account.sent(f"topic/l/{topic}")
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


def test_a_table_that_names_its_changes_forgets_what_a_table_made_anew_forgets() -> None:
    accounts = InFlightForwards(), InFlightForwards()
    topics = {name: route(name, Serve.HOLD, fence_epoch=2) for name in "tuv"}
    made = [
        (table(*topics.values()), ""),
        (table(route("t", Serve.LOCAL), topics["u"], topics["v"]), "t"),
        (table(route("t", Serve.LOCAL), topics["u"]), "v"),
        (table(route("t", Serve.LOCAL), topics["u"], topics["v"]), "v"),
        (table(), "tuv"),
    ]
    tables = [made[0][0]]
    for each, names in made[1:]:
        tables.append(replace(each, since=tables[-1].topics, changed=frozenset(names)))
    for account, anew in zip(accounts, (False, True), strict=True):
        for topic in topics:
            account.sent(f"topic/l/{topic}")
            account.acknowledged(f"topic/l/{topic}", 0, 7, 0, 0)
        account.resolved("topic/l/t")
        for each in tables:
            account.follow(replace(each, since=None) if anew else each)
            account.fences(each)
            account.held("topic/l/u", 0, 5)
    one, other = accounts
    assert (one.in_flight, one._acked, one._drained, one._epochs) == (
        other.in_flight, other._acked, other._drained, other._epochs
    )  # fmt: skip
    assert one.in_flight == {"topic/l/u": 1, "topic/l/v": 1}
    one.resolved("topic/l/u")
    one.follow(replace(table(), since=tables[-1].topics))
    assert one.in_flight == {"topic/l/v": 1}


def short_lived(account: InFlightForwards, topics: int, producers: int) -> RoutingTable:
    """Record topics that short-lived producers wrote, and return a table that fences all topics at once."""
    for topic in range(topics):
        for producer in range(producers):
            account.acknowledged(f"topic/l/t{topic}", 0, topic * producers + producer, 0, 0)
    return table(*(route(f"t{topic}", Serve.HOLD, fence_epoch=2) for topic in range(topics)))


def test_all_fenced_topics_together_tell_no_more_marks_than_fit_into_one_message() -> None:
    """20 topics of 9,000 producers made 8.7 MB, which no topic accepts, and the event loop stood still for 12 s."""
    account = InFlightForwards()
    fenced = short_lived(account, 20, 9_000)
    told = account.fences(fenced)
    marks = [len(ack.producers[0]) for ack in told.values()]
    assert (len(marks), sum(marks)) == (20, 10_000)
    assert [mark.producer_id for mark in told["topic/l/t0"].producers[0]] == list(range(8_500, 9_000)), "the newest"
    word = RouterPresence("i", "r", 1, 500, told)
    assert len(PresenceWriter().write(word)) < 400_000


def test_the_marks_of_a_fence_are_made_once() -> None:
    account = InFlightForwards()
    fenced = short_lived(account, 2, 3)
    first, again = (account.fences(fenced)["topic/l/t0"].producers for _ in range(2))
    assert first is again
    account.acknowledged("topic/l/t0", 0, 99, 0, 0)
    lifted = table(route("t0", Serve.FORWARD), route("t1", Serve.HOLD, fence_epoch=2))
    assert list(account.fences(lifted)) == ["topic/l/t1"]
    later = table(*(route(f"t{n}", Serve.HOLD, fence_epoch=3 - n) for n in range(2)))
    assert [mark.producer_id for mark in account.fences(later)["topic/l/t0"].producers[0]] == [0, 1, 2, 99]


def test_marks_are_told_once_nothing_is_in_flight() -> None:
    """While a write is in flight, more writes may be acknowledged, and the controller does not need the marks yet."""
    account = InFlightForwards()
    fenced = short_lived(account, 1, 3)
    account.sent("topic/l/t0")
    assert account.fences(fenced)["topic/l/t0"].producers == {}
    account.resolved("topic/l/t0")
    assert len(account.fences(fenced)["topic/l/t0"].producers[0]) == 3


def test_marks_that_no_client_asks_for_any_more_are_neither_told_nor_kept() -> None:
    account = InFlightForwards()
    account.tick(1_000.0)
    account.acknowledged(KEY, 0, 1, 0, 0)
    account.acknowledged(KEY, 0, 2, 0, 0)
    account.tick(1_800.0)
    account.acknowledged(KEY, 0, 1, 0, 1)
    account.acknowledged(KEY, 0, 3, 0, 0)
    account.now = 1_950.0  # The clock stands between two searches for old marks.
    assert told(account) == {0: [1, 3]}
    assert kept(account) == 3
    account.tick(1_950.0)
    assert kept(account) == 2
