"""Status names brokers without windows, and topics whose transactions wait for one round trip after another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kmigrate.mirror.copy.window_notes import window_notes
from kmigrate.mirror.partition.lane import Lane
from tests.unit.mirror.batches import CONTROL, TRANSACTIONAL, batch, fetched


def lane(topic: str, transactions: int) -> Lane:
    """Return a lane with so many queued transactions."""
    it = Lane(topic, 0, producer_id=77, epoch=0, hole_limit=100)
    it.recovered(0, 0, 0)
    of_one = (
        batch(at, 1) + batch(at + 1, 1, attributes=CONTROL | TRANSACTIONAL) for at in range(0, 2 * transactions, 2)
    )
    it.take(0, fetched(b"".join(of_one)), 5)
    return it


def holes(*in_turn: str, apart: tuple[int, ...] = (), window_s: float = 0.012) -> Any:
    return SimpleNamespace(slow_brokers=frozenset(apart), in_turn=frozenset(in_turn), window_s=window_s)


def test_nothing_is_said_where_windows_are_long_or_near_or_nothing_waits() -> None:
    waiting = [lane("a", 100)]
    assert window_notes(holes(), waiting, "new") == ()
    assert window_notes(holes("a", window_s=0.001), waiting, "new") == ()
    assert window_notes(holes("a"), [lane("a", 3), lane("b", 100)], "new") == ()


@pytest.mark.parametrize("apart", [(), (2,)])
def test_topics_that_wait_are_named_with_the_round_trip(apart: tuple[int, ...]) -> None:
    (*before, note) = window_notes(holes("a", "b", apart=apart), [lane("b", 100), lane("a", 100)], "new")
    assert note.startswith(
        "holes-in-turn: target new: a, b: each transaction of a partition takes a round trip, now 12 ms"
    )
    assert [each.partition(":")[0] for each in before] == ["holes-apart"] * len(apart)


def test_of_many_topics_five_are_named() -> None:
    names = [f"t{number}" for number in range(7)]
    (note,) = window_notes(holes(*names), [lane(name, 100) for name in names], "new")
    assert "t0, t1, t2, t3, t4 and 2 more: each" in note
