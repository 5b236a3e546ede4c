"""Topics are fenced in rounds with rests between, in order of arrival, and a unit has a single turn."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from kmigrate.workflow.promote import fence_rounds as turns
from kmigrate.workflow.promote.fence_rounds import FenceRounds
from tests.fakes.own_time import OwnTime


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> OwnTime:
    made = OwnTime()
    monkeypatch.setattr(turns, "monotonic", made.time)
    return made


class Line:
    """Topics of a single link that ask for turns, and the order in which the topics got their turns."""

    def __init__(self, most: int) -> None:
        self.turns = FenceRounds(most)
        self.gone: list[str] = []
        self.waited: dict[str, bool] = {}
        self._asked: list[asyncio.Task[None]] = []

    async def ask(self, topic: str, partitions: int, mates: Collection[str] = ()) -> None:
        self._asked.append(asyncio.create_task(self._take(topic, partitions, mates)))
        await self.settled()

    async def _take(self, topic: str, partitions: int, mates: Collection[str]) -> None:
        self.waited[topic] = await self.turns.take(topic, partitions, mates)
        self.gone.append(topic)

    async def over(self, topic: str) -> None:
        self.turns.over(topic)
        await self.settled()

    def give_up(self, place: int) -> None:
        self._asked[place].cancel()

    async def settled(self) -> None:
        await asyncio.sleep(0.01)


def test_who_comes_while_others_are_fenced_goes_with_the_next_round_in_the_order_in_which_they_came(
    loop: OwnTime,
) -> None:
    async def scene() -> None:
        line = Line(200)
        for topic in ("a", "b", "c", "d", "e"):
            await line.ask(topic, 100)
        assert line.gone == ["a"]
        await line.over("a")
        await asyncio.sleep(0.1)
        assert line.gone == ["a", "b", "c"]
        await line.over("b")
        await asyncio.sleep(0.2)
        assert line.gone == ["a", "b", "c"], "what is fenced with the others makes them wait for longer"
        await line.over("c")
        await asyncio.sleep(0.4)
        assert line.gone == ["a", "b", "c", "d", "e"]
        assert line.waited == {"a": False, "b": True, "c": True, "d": True, "e": True}

    loop.run(scene())


def test_after_a_round_nothing_is_fenced_for_as_long_as_it_took(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(200)
        await line.ask("a", 1)
        await asyncio.sleep(1.2)
        await line.over("a")
        await line.ask("b", 1)
        await line.ask("c", 1)
        await asyncio.sleep(1.1)
        assert line.gone == ["a"]
        await asyncio.sleep(0.1)
        assert line.gone == ["a", "b", "c"]

    loop.run(scene())


def test_a_topic_that_has_more_than_there_is_room_goes_alone_and_none_overtakes_it(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(200)
        await line.ask("a", 10)
        for topic, partitions in (("b", 10), ("large", 1000), ("c", 10)):
            await line.ask(topic, partitions)
        for before, now in (("a", ["b"]), ("b", ["large"]), ("large", ["c"])):
            gone = [*line.gone]
            await line.over(before)
            await asyncio.sleep(0.3)
            assert line.gone == [*gone, *now]

    loop.run(scene())


def test_a_unit_has_one_turn_and_who_comes_last_of_it_goes_at_once(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(200)
        await line.ask("a", 100)
        await line.ask("t", 180, ["u"])
        await line.ask("b", 50)
        assert line.gone == ["a"]
        await line.over("a")
        await asyncio.sleep(0.1)
        assert line.gone == ["a", "t"], "b has no room beside t and u"
        await line.ask("u", 180, ["t"])
        assert line.gone == ["a", "t", "u"], "and b, which came first, waits"
        await line.over("u")
        await line.over("t")
        await asyncio.sleep(0.3)
        assert line.gone == ["a", "t", "u", "b"]

    loop.run(scene())


def test_who_is_given_up_in_the_line_holds_nobody_up(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(100)
        for topic in ("a", "b", "c"):
            await line.ask(topic, 100)
        line.give_up(1)
        await line.over("a")
        await asyncio.sleep(0.1)
        assert line.gone == ["a", "c"]

    loop.run(scene())


def test_what_was_fenced_by_another_controller_counts_and_its_end_may_be_told_twice(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(100)
        line.turns.go("before")
        await line.ask("a", 100)
        assert line.gone == []
        await line.over("before")
        await line.over("before")
        await asyncio.sleep(0.05)
        assert line.gone == ["a"]

    loop.run(scene())


def test_one_that_is_given_up_in_the_moment_of_its_turn_leaves_it_to_the_next(loop: OwnTime) -> None:
    async def scene() -> None:
        line = Line(100)
        await line.ask("a", 100)
        await line.ask("b", 100)
        line.turns.over("a")
        await asyncio.sleep(0)
        line.turns._rested()
        line.give_up(1)
        await line.ask("c", 100)
        await asyncio.sleep(0.1)
        assert line.gone == ["a", "c"]

    loop.run(scene())
