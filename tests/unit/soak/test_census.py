"""Whoever counts what is remembered sees it, wherever it hangs."""

from __future__ import annotations

from kmigrate.router.shared.forwards import InFlightForwards
from kmigrate.router.shared.gate import FirstWriteGate
from tests.soak.census import census, grown


def test_containers_are_counted_by_where_they_hang() -> None:
    forwards = InFlightForwards()
    for number in range(3):
        forwards.acknowledged("topic/l/t", number, 5, 0, 0)
        forwards.acknowledged("topic/l/u", number, 5, 0, 0)
    found = census(forwards)
    assert (found["_acked"], found["_acked[]"], found["_acked[][]"]) == (2, 6, 6)


def test_several_of_a_kind_are_summed_up_and_none_is_counted_twice() -> None:
    one = FirstWriteGate(opened={("t", 0, 5)})
    assert census([one, one, FirstWriteGate(opened={("t", 0, 5), ("t", 0, 6)})])["[].opened"] == 3


def test_what_grows_is_told_but_not_what_comes_and_goes_or_has_a_bound() -> None:
    early = [{"a": 10, "b": 500, "c": 0}]
    late = [{"a": 90, "b": 520, "c": 400, "d": 30}, {"a": 11, "b": 900, "c": 500, "d": 31}]
    assert grown(early, late, {"c": 400}) == {"d": (0, 30)}
