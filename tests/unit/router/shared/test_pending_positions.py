"""Marks of partitions whose committed offset a client asked for and did not get."""

from __future__ import annotations

import pytest

from kmigrate.router.shared import pending_positions
from kmigrate.router.shared.pending_positions import PendingPositions

HERE, ELSEWHERE = 1, 2
T0, T1 = ("t", 0), ("t", 1)


def marks(*partitions: tuple[str, int], now: float = 0.0) -> PendingPositions:
    made = PendingPositions()
    made.left_out("g", partitions, HERE, now)
    return made


def test_a_mark_is_of_one_group_and_partition_and_ends_when_anybody_is_told() -> None:
    made = marks(T0, T1)
    assert made.marked("other", [T0], HERE, 0.0, of_member=True) == set()
    assert made.marked("g", [T0, T1, ("u", 0)], ELSEWHERE, 0.0, of_member=True) == {T0, T1}
    made.clear("g", [T0])
    assert made.marked("g", [T0, T1], HERE, 0.0, of_member=True) == {T1}


def test_a_commit_of_no_member_minds_the_marks_of_its_own_connection_alone() -> None:
    """An operator's tool shares no connection with the members of the group."""
    made = marks(T0)
    assert made.marked("g", [T0], HERE, 0.0, of_member=False) == {T0}
    assert made.marked("g", [T0], ELSEWHERE, 0.0, of_member=False) == set()


def test_a_mark_is_forgotten_when_every_consumer_has_committed_what_it_was_given() -> None:
    made = marks(T0, now=100.0)
    assert made.marked("g", [T0], HERE, 700.0, of_member=True) == {T0}
    assert made.marked("g", [T0], HERE, 701.0, of_member=True) == set()


def test_marks_end_with_the_promote_of_their_group() -> None:
    made = marks(T0)
    made.keep({"g"})
    assert made.marked("g", [T0], HERE, 0.0, of_member=True) == {T0}
    made.keep({"other"})
    assert made.marked("g", [T0], HERE, 0.0, of_member=True) == set()


def test_marks_are_bounded_and_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_positions, "_MOST", 2)
    made = marks(T0, T1)
    made.left_out("g", [T0], HERE, 1.0)
    made.left_out("g", [("t", 2)], HERE, 2.0)
    assert made.marked("g", [T0, T1, ("t", 2)], HERE, 2.0, of_member=True) == {T0, ("t", 2)}
